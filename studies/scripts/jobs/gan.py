"""A generator against a discriminator, with a new DataLoader in each epoch."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rings(Dataset):
    def __init__(self, length, epoch):
        self.length, self.epoch = length, epoch

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = np.random.default_rng(index + 100_000 * self.epoch)
        angle = rng.uniform(0, 2 * np.pi, 4000)
        points = np.stack([np.cos(angle), np.sin(angle)]) + 0.05 * rng.normal(size=(2, 4000))
        return torch.tensor(np.histogram2d(*points, bins=16, range=[[-2, 2], [-2, 2]])[0] / 100, dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="generator.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    generator = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 256))
    discriminator = nn.Sequential(nn.Linear(256, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
    for_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        loader = DataLoader(Rings(2560, epoch), batch_size=32, shuffle=True, drop_last=True)
        total, start = 0.0, time.perf_counter()
        for real in loader:
            real = real.flatten(1)
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = generator(torch.randn(len(real), 32))
            loss = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
            for_discriminator.zero_grad()
            loss.backward()
            for_discriminator.step()
            cheat = criterion(discriminator(fake), ones)
            for_generator.zero_grad()
            cheat.backward()
            for_generator.step()
            total += loss.item() + cheat.item()
        rate = len(loader.dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / len(loader):.9g}, {rate:.1f} samples/s", flush=True)
    torch.save(generator.state_dict(), args.out)


if __name__ == "__main__":
    main()
