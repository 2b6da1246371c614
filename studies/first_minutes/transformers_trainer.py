"""A script with a Transformers trainer: train, tune, train again."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import autotune


class Texts(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(0.003)  # a file on a server
        generator = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(1, 500, (32,), generator=generator), "labels": torch.tensor(index % 2)}


def main() -> None:
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = BertForSequenceClassification(BertConfig(vocab_size=500, **size))
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 10_000}
    arguments = TrainingArguments("out", per_device_train_batch_size=16, max_steps=30, **quiet)
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts())
    print(trainer.train().metrics["train_samples_per_second"], "samples/s before")
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts())  # one that has trained is refused
    arguments = autotune.transformers.tune(trainer, budget="60s", output="transformers.yaml")
    arguments.max_steps = 4000 // arguments.per_device_train_batch_size
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts())
    promised = (autotune.load_config("transformers.yaml").measured or {})["samples_per_second"]
    print(promised, "promised,", trainer.train().metrics["train_samples_per_second"], "samples/s after")


if __name__ == "__main__":
    main()
