"""A stream of shard files without a length, which workers share among them."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARDS, SAMPLES = 8, 160


def write_shards(folder):
    folder.mkdir(exist_ok=True)
    for number in range(SHARDS):
        if not (path := folder / f"{number:03}.npz").exists():
            features = np.random.default_rng(number).normal(size=(SAMPLES, 32)).astype(np.float32)
            np.savez(path, features=features, labels=(features[:, 0] > 0).astype(np.int64))


class Shards(IterableDataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.npz"))

    def __iter__(self):
        worker = get_worker_info()
        mine = self.paths[worker.id :: worker.num_workers] if worker else self.paths
        for path in mine:
            with np.load(path) as shard:
                features, labels = shard["features"], shard["labels"]
            for feature, label in zip(features, labels, strict=True):
                time.sleep(0.002)  # a sample is decoded
                yield torch.from_numpy(feature), int(label)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default="shards")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    write_shards(args.data)
    stream = DataLoader(Shards(args.data), batch_size=16)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        total, samples, start = 0.0, 0, time.perf_counter()
        for features, labels in stream:
            loss = nn.functional.cross_entropy(model(features), labels)
            time.sleep(0.004)  # a larger network
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, samples = total + loss.item() * len(labels), samples + len(labels)
        rate = samples / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / samples:.9g}, {rate:.1f} samples/s", flush=True)
        torch.save(model.state_dict(), "shards.pt")


if __name__ == "__main__":
    main()
