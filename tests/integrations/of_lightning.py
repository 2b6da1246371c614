"""A Lightning script: ``tune``, or ``train`` with what came out of it."""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ThroughputMonitor
from lightning.pytorch.loggers import Logger
from torch.nn import functional
from torch.utils.data import DataLoader

import autotune
from tests.integrations.data import BATCH, KNOBS, Slow, digest, say, unchanged

RATE = "train/device/samples_per_sec"
QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


class Classifier(lightning.LightningModule):
    """Asks its trainer for what such modules ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)
        self.steps_made = 0

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.cross_entropy(self.layer(inputs), targets)
        self.log("loss", loss)
        self.log("progress", batch_idx / self.trainer.num_training_batches)
        self.steps_made += 1
        return {"loss": loss}

    def on_train_start(self) -> None:
        self.logger.log_hyperparams({"layers": 1})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Data(lightning.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.dataset = Slow()

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.dataset, batch_size=BATCH, shuffle=True)


def tune() -> None:
    module, loader = Classifier(), Data()
    given: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 1, "logger": False, "limit_train_batches": 150}
    trainer = lightning.Trainer(gradient_clip_val=1.0, **given, **QUIET)

    def look() -> str:
        state = (trainer.global_step, trainer.current_epoch, trainer.state.status, trainer.train_dataloader)
        return digest(module, state, module.steps_made, module._trainer, sorted(vars(loader)))

    same, result = unchanged(look, lambda: autotune.lightning.tune(trainer, module, loader, **KNOBS))
    result.config.save("autotune.yaml")
    say(same=same, workers=result.config.num_workers, epoch=result.baseline_measurement.epoch_samples)


class Kept(Logger):
    name = version = "kept"

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def log_hyperparams(self, *given: Any, **more: Any) -> None:
        """Keep nothing."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rates += [metrics[RATE]] if RATE in metrics else []


def train() -> None:
    config = autotune.load_config("autotune.yaml")
    arguments = autotune.export(config, "lightning").values
    loader = DataLoader(Slow(), shuffle=True, **arguments["DataLoader"])
    monitor = ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=100)
    logger = Kept()
    given: dict[str, Any] = {"max_epochs": 1, "callbacks": [monitor], "logger": logger, "log_every_n_steps": 10}
    trainer = lightning.Trainer(**given, **QUIET, **arguments["Trainer"])
    trainer.fit(module := Classifier(), loader)
    say(rate=logger.rates[-1], steps=module.steps_made, promised=(config.measured or {})["samples_per_second"])


if __name__ == "__main__":
    {"tune": tune, "train": train}[sys.argv[1]]()
