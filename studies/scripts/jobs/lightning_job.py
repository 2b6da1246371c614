"""A LightningModule with a data module, validation, checkpoints and a CSV log."""

import argparse
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.002)  # a request to a server
        signal = torch.randn(256, generator=torch.Generator().manual_seed(index))
        return signal, (signal.sum() > 0).long()


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Signals(1920), batch_size=24, shuffle=True)

    def val_dataloader(self):
        return DataLoader(Signals(96), batch_size=24)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2))

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Losses(Callback):
    def on_train_epoch_start(self, trainer, module):
        self.start = time.perf_counter()

    def on_validation_start(self, trainer, module):
        self.end = time.perf_counter()

    def on_train_epoch_end(self, trainer, module):
        rate, loss = 1920 / (self.end - self.start), trainer.callback_metrics["loss"].item()
        print(f"epoch {trainer.current_epoch}: loss {loss:.9g}, {rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="lightning")
    args = parser.parse_args()
    L.seed_everything(args.seed)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=CSVLogger(args.out),
        callbacks=[ModelCheckpoint(dirpath=args.out, monitor="val_loss"), Losses()],
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), datamodule=Data())


if __name__ == "__main__":
    main()
