"""A LightningModule on 20,000 random rows, each augmented by NumPy."""

from __future__ import annotations

import argparse
from typing import Any

import lightning as L
import numpy as np
import torch
from epochs import Progress, config_of
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, WIDTH, CLASSES = 20000, 512, 8


class Rows(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.rows = rng.standard_normal((SAMPLES, WIDTH), dtype=np.float32)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        row = np.roll(self.rows[index], np.random.randint(-16, 17))
        row = row * np.random.uniform(0.8, 1.2) + np.random.normal(0.0, 0.05, WIDTH)
        row[np.random.rand(WIDTH) < 0.05] = 0.0
        return torch.from_numpy(row.astype(np.float32)), index % CLASSES


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 256),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, CLASSES),
        )

    def training_step(self, batch, _):
        rows, labels = batch
        return nn.functional.cross_entropy(self.layers(rows), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Told(Callback):
    def on_train_start(self, trainer, module):
        self.progress = Progress(SAMPLES)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.progress.step(len(batch[1]))

    def on_train_epoch_end(self, trainer, module):
        self.progress.epoch()


def trainer_for(epochs: int, **arguments: Any) -> L.Trainer:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "barebones"), False
    )
    return L.Trainer(max_epochs=epochs, callbacks=[Told()], **{"devices": 1, **quiet, **arguments})


def tune(output: str, **options: Any) -> None:
    import autotune

    loader = DataLoader(Rows(), batch_size=64, shuffle=True)
    result = autotune.lightning.tune(trainer_for(1000), Classifier(), loader, **options)
    result.config.save(output)
    print(result)


def train(epochs: int) -> None:
    trainer_for(epochs).fit(Classifier(), DataLoader(Rows(), batch_size=64, shuffle=True))


def train_as(config: Any, epochs: int) -> None:
    import autotune

    trainer = trainer_for(epochs, **autotune.export(config, "lightning").values["Trainer"])
    trainer.fit(Classifier(), config.dataloader(Rows(), shuffle=True))


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
        train(options.epochs)


if __name__ == "__main__":
    main()
