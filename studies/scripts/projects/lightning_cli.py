"""LightningCLI with a configuration file: ``python lightning_cli.py fit --config config.yaml``."""

from __future__ import annotations

import time

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """Noise, of which a sample takes 2 ms to read."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.002)
        return torch.randn(64), index % 4


class SignalData(LightningDataModule):
    def __init__(self, samples: int = 1280, batch_size: int = 16, num_workers: int = 0) -> None:
        super().__init__()
        self.save_hyperparameters()

    def loader(self, samples: int, shuffle: bool) -> DataLoader:
        return DataLoader(
            Signals(samples),
            batch_size=self.hparams.batch_size,
            shuffle=shuffle,
            num_workers=self.hparams.num_workers,
        )

    def train_dataloader(self) -> DataLoader:
        return self.loader(self.hparams.samples, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return self.loader(32, shuffle=False)


class Classifier(LightningModule):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 4))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.log("val_loss", self.loss(batch))

    def loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    LightningCLI(Classifier, SignalData)
