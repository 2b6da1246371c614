"""transformers.Trainer with evaluation and a checkpoint in each epoch."""

import argparse
import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Sentences(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.003)  # a tokenizer
        ids = torch.randint(0, 1000, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids[0] % 2)}


class Losses(TrainerCallback):
    def on_epoch_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_epoch_end(self, args, state, control, **kwargs):
        self.rate = 1280 / (time.perf_counter() - self.start)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"epoch {round(state.epoch) - 1}: loss {logs['loss']:.9g}, {self.rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="bert")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    config = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=args.out,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        seed=args.seed,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Sentences(1280),
        eval_dataset=Sentences(64),
        callbacks=[Losses()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
