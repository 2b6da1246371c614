"""Lightning with validation twice in each epoch, a monitor of the learning rate and a CSV log."""

import argparse
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Traces(Dataset):
    def __init__(self, first, length):
        self.first, self.length = first, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.002)  # a request to a server
        trace = torch.randn(64, generator=torch.Generator().manual_seed(self.first + index))
        return trace, trace[:4].sum().unsqueeze(0)


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, _):
        time.sleep(0.006)  # a larger network
        loss = nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)]


class Clock(Callback):
    """Tells loss and rate of each epoch, without its validation."""

    def on_train_epoch_start(self, trainer, module):
        self.start, self.samples = time.perf_counter(), 0

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.samples += len(batch[0])

    def on_validation_start(self, trainer, module):
        self.paused = time.perf_counter()

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.start += time.perf_counter() - self.paused

    def on_train_epoch_end(self, trainer, module):
        rate, loss = self.samples / (time.perf_counter() - self.start), trainer.callback_metrics["train_loss"].item()
        print(f"epoch {trainer.current_epoch}: loss {loss:.9g}, {rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    L.seed_everything(args.seed)
    trainer = L.Trainer(
        max_epochs=args.epochs, accelerator="cpu", val_check_interval=0.5, enable_progress_bar=False,
        logger=CSVLogger("logs"), callbacks=[LearningRateMonitor(logging_interval="step"), Clock()],
    )  # fmt: skip
    training = DataLoader(Traces(0, 1280), batch_size=16, shuffle=True)
    trainer.fit(Regressor(), training, DataLoader(Traces(10_000, 64), batch_size=16))


if __name__ == "__main__":
    main()
