"""Transformers' Trainer with evaluation, on sentences that are token numbers already."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from clock import Clock
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

LENGTH, WORDS = 64, 2000


class Sentences(Dataset[dict[str, Any]]):
    def __init__(self, count: int) -> None:
        self.words = torch.randint(1, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.words[index], "labels": int(self.words[index][0]) % 2}


class Told(TrainerCallback):
    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.clock = Clock()

    def on_step_end(self, args: Any, *more: Any, **kwargs: Any) -> None:
        self.clock.step(args.train_batch_size)


def main() -> None:
    config = BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        num_train_epochs=1000,
        eval_strategy="steps",
        eval_steps=100,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        report_to=[],
    )
    model = BertForSequenceClassification(config)
    trained, held = Sentences(4000), Sentences(64)
    Trainer(model=model, args=arguments, train_dataset=trained, eval_dataset=held, callbacks=[Told()]).train()


if __name__ == "__main__":
    main()
