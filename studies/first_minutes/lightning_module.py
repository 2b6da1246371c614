"""A Lightning script, tuned by the README's line before ``fit``."""

from __future__ import annotations

import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import autotune


class Images(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.randn(3, 64, 64)
        for _ in range(3):
            image = nn.functional.avg_pool2d(image.repeat(1, 2, 2), 2)
        return image, index % 10


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        convolution = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        self.net = nn.Sequential(*convolution, nn.Flatten(), nn.Linear(16, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Clock(lightning.Callback):
    """Prints the rate of each epoch."""

    def on_train_epoch_start(self, *_: object) -> None:
        self.begin = time.perf_counter()

    def on_train_epoch_end(self, *_: object) -> None:
        print(f"{4000 / (time.perf_counter() - self.begin):.0f} samples/s")


QUIET = {"enable_checkpointing": False, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
PRECISION = {"off": "32-true", "bf16": "bf16-mixed"}


def tune() -> None:
    trainer = lightning.Trainer(max_epochs=1, **QUIET)
    loader = DataLoader(Images(), batch_size=32, shuffle=True)
    result = autotune.lightning.tune(trainer, Module(), loader, budget="60s")
    result.config.save("lightning.yaml")


def train() -> None:
    config = autotune.load_config("lightning.yaml")
    torch.set_num_threads(config.intra_op_threads or torch.get_num_threads())
    trainer = lightning.Trainer(max_epochs=3, precision=PRECISION[config.amp], callbacks=[Clock()], **QUIET)
    trainer.fit(Module(), config.dataloader(Images(), shuffle=True))
    print(f"{config.measured['samples_per_second']:.0f} promised")


if __name__ == "__main__":
    tune()
    train()
