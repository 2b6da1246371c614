"""transformers.Trainer with evaluations inside the epoch, and a model of one's own."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Reviews(Dataset):
    def __init__(self, first, length):
        self.first, self.length = first, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.002)  # a tokenizer
        ids = torch.randint(0, 500, (24,), generator=torch.Generator().manual_seed(self.first + index))
        return {"input_ids": ids, "labels": int(ids[0] % 2)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.EmbeddingBag(500, 32), nn.Linear(32, 2)

    def forward(self, input_ids, labels=None):
        time.sleep(0.006)  # a larger network
        logits = self.head(self.embedding(input_ids))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Clock(TrainerCallback):
    """Tells the rate of each epoch, without its evaluations."""

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.start, self.first = time.perf_counter(), state.global_step

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_evaluate:
            self.paused = time.perf_counter()

    def on_evaluate(self, args, state, control, **kwargs):
        self.start += time.perf_counter() - self.paused

    def on_epoch_end(self, args, state, control, **kwargs):
        samples = (state.global_step - self.first) * args.train_batch_size
        self.rate = samples / (time.perf_counter() - self.start)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"epoch {round(state.epoch) - 1}: loss {logs['loss']:.9g}, {self.rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    arguments = TrainingArguments(
        "reviews", num_train_epochs=args.epochs, per_device_train_batch_size=16, per_device_eval_batch_size=16,
        eval_strategy="steps", eval_steps=30, save_strategy="epoch", save_total_limit=1, logging_strategy="epoch",
        seed=args.seed, use_cpu=True, disable_tqdm=True, report_to=[],
    )  # fmt: skip
    train, held_out = Reviews(0, 1280), Reviews(10_000, 64)
    Trainer(Model(), arguments, train_dataset=train, eval_dataset=held_out, callbacks=[Clock()]).train()


if __name__ == "__main__":
    main()
