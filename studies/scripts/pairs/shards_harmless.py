"""Shard files shared among workers: all are of one length."""

import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

LENGTHS = (72,) * 12


def write_shards(folder):
    folder.mkdir(exist_ok=True)
    for number, length in enumerate(LENGTHS):
        if not (path := folder / f"{number}.npy").exists():
            np.save(path, np.random.default_rng(number).normal(size=(length, 33)).astype(np.float32))


class Shards(IterableDataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.npy"))

    def __iter__(self):
        worker = get_worker_info()
        for path in self.paths[worker.id :: worker.num_workers] if worker else self.paths:
            for row in torch.from_numpy(np.load(path)):
                time.sleep(0.004)  # a sample is decoded
                yield row[:32], row[32:]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    folder = Path("shards")
    write_shards(folder)
    loader = DataLoader(Shards(folder), batch_size=16)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        first, samples, start = None, 0, time.perf_counter()
        for features, target in loader:
            loss = nn.functional.l1_loss(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            first, samples = first or len(target), samples + len(target)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: {samples / seconds:.1f} samples/s, {seconds:.3f} s, batch {first}", flush=True)


if __name__ == "__main__":
    main()
