"""Gradient accumulation over loaders that are made anew in each epoch, and a log in JSON lines."""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Readings(Dataset):
    def __init__(self, length=1920):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.002)  # a request to a server
        generator = torch.Generator().manual_seed(index)
        reading = torch.randn(128, generator=generator)
        return {"reading": reading, "target": reading[:8].sum().unsqueeze(0)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", default="log.jsonl")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(128, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1))
    optimizer, dataset = torch.optim.AdamW(model.parameters(), lr=1e-3), Readings()
    for epoch in range(args.epochs):
        order = torch.Generator().manual_seed(args.seed + epoch)
        loader = DataLoader(dataset, batch_size=24, shuffle=True, generator=order)
        total, start = 0.0, time.perf_counter()
        for number, batch in enumerate(loader):
            loss = nn.functional.mse_loss(model(batch["reading"]), batch.pop("target")) / 2
            loss.backward()
            total += 2 * loss.item()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        rate = len(dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / len(loader):.9g}, {rate:.1f} samples/s", flush=True)
        with open(args.log, "a") as log:
            log.write(json.dumps({"epoch": epoch, "loss": total / len(loader)}) + "\n")


if __name__ == "__main__":
    main()
