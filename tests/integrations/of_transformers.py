"""A script with a Hugging Face Trainer and a padding collator: ``tune``, or ``train`` with what came out of it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import autotune
from tests.integrations.data import BATCH, KNOBS, Slow, digest, say, unchanged

QUIET: dict[str, Any] = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1000}
ARGUMENTS = QUIET | {"output_dir": "output", "use_cpu": True, "num_train_epochs": 1, "learning_rate": 0.01}
ARGUMENTS["per_device_train_batch_size"] = BATCH


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.layer = nn.Linear(8, 3)
        self.lengths: set[int] = set()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.lengths.add(input_ids.shape[1])
        scores = self.layer(self.words(input_ids).mean(dim=1))
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def padded(samples: list[Any]) -> dict[str, torch.Tensor]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    rows = [sample["input_ids"] + [0] * (longest - len(sample["input_ids"])) for sample in samples]
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor([sample["labels"] for sample in samples])}


class Halving(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *given: Any, **options: Any) -> Any:
        found = super().compute_loss(model, inputs, *given, **options)
        return tuple(part / 2 for part in found) if isinstance(found, tuple) else found / 2


def made(arguments: TrainingArguments) -> Halving:
    return Halving(model=Classifier(), args=arguments, train_dataset=Slow(as_sentences=True), data_collator=padded)


def tune() -> None:
    made(TrainingArguments(**ARGUMENTS, max_steps=2)).train()  # which breaks an epoch off
    trainer = made(TrainingArguments(**ARGUMENTS))

    def look() -> str:
        state = (repr(trainer.args), repr(trainer.state), trainer.optimizer, trainer.lr_scheduler)
        loaders = (len(trainer.accelerator._dataloaders), len(trainer.accelerator._optimizers))
        return digest(trainer.model, state, loaders, sorted(trainer.model.lengths), sorted(vars(trainer)))

    same, arguments = unchanged(look, lambda: autotune.transformers.tune(trainer, output="autotune.yaml", **KNOBS))
    changed = {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(arguments)
        if getattr(arguments, field.name) != getattr(trainer.args, field.name)
    }
    Path("changed.json").write_text(json.dumps(changed))
    say(same=same, changed=changed, workers=arguments.dataloader_num_workers)


def train() -> None:
    arguments = TrainingArguments(**(ARGUMENTS | json.loads(Path("changed.json").read_text())))
    config = autotune.load_config("autotune.yaml")
    trainer = made(arguments)
    metrics = trainer.train().metrics
    promised = (config.measured or {})["samples_per_second"]
    say(rate=metrics["train_samples_per_second"], steps=trainer.state.global_step, promised=promised)


if __name__ == "__main__":
    {"tune": tune, "train": train}[sys.argv[1]]()
