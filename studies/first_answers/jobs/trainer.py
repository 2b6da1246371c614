"""transformers.Trainer with a small BERT of random weights, on 4,000 sentences that Python tokenises one by one."""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from typing import Any

import torch
from epochs import Progress, config_of
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

SAMPLES, LENGTH, VOCABULARY = 4000, 48, 2000
"""Sentences, tokens of each with its padding, and kinds of tokens."""
WORD = re.compile(r"\w+|[^\w\s]")


class Sentences(Dataset):
    def __init__(self):
        rng = random.Random(0)
        words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 12))) for _ in range(3000)]
        self.texts = [" ".join(rng.choices(words, k=rng.randint(10, 40))) for _ in range(SAMPLES)]
        pieces = {word[:size] for word in words for size in range(1, 4)} | {word[-2:] for word in words}
        self.pieces = {piece: 1 + number % (VOCABULARY - 1) for number, piece in enumerate(sorted(pieces))}

    def __len__(self):
        return SAMPLES

    def tokenise(self, text):
        """Return the numbers of the longest known pieces from left to right, as WordPiece does."""
        found = []
        for word in WORD.findall(text.lower()):
            start = 0
            while start < len(word):
                end = next((e for e in range(len(word), start, -1) if word[start:e] in self.pieces), start + 1)
                found.append(self.pieces.get(word[start:end], 0))
                start = end
        return found

    def __getitem__(self, index):
        tokens = self.tokenise(self.texts[index])[:LENGTH]
        ids = torch.tensor(tokens + [0] * (LENGTH - len(tokens)))
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": tokens[0] % 2}


class Told(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self.progress = Progress(SAMPLES)

    def on_step_end(self, args, state, control, **kwargs):
        self.progress.step(args.train_batch_size * args.gradient_accumulation_steps)

    def on_epoch_end(self, args, state, control, **kwargs):
        self.progress.epoch()


def trainer_for(epochs: int, **arguments: Any) -> Trainer:
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128
    )
    present = {
        "output_dir": tempfile.gettempdir(),
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 16,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "report_to": [],
    }
    return Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(**(present | arguments)),
        train_dataset=Sentences(),
        callbacks=[Told()],
    )


def tune(output: str, **options: Any) -> TrainingArguments:
    import autotune

    return autotune.transformers.tune(trainer_for(1000), output=output, **options)


def train_as(config: Any, epochs: int) -> None:
    import autotune

    trainer_for(epochs, **autotune.export(config, "transformers").values["TrainingArguments"]).train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--config", help="train as this file of autotune says")
    parser.add_argument("--tune", metavar="FILE", help="tune from the trainer, and write this file")
    parser.add_argument("--budget", help="what tuning may take, such as 90s")
    options = parser.parse_args()
    if options.tune:
        tune(options.tune, **({"budget": options.budget} if options.budget else {}))
    elif options.config:
        train_as(config_of(options.config), options.epochs)
    else:
        trainer_for(options.epochs).train()


if __name__ == "__main__":
    main()
