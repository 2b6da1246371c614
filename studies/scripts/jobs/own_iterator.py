"""A detector whose DataLoader makes its one iterator in the constructor, so that workers live through all epochs."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.003)  # a large file
        scene = torch.randn(3, 24, 24, generator=torch.Generator().manual_seed(index))
        left, top = index % 20, index // 20 % 20
        scene[:, top : top + 4, left : left + 4] += 2
        return scene, torch.tensor([left / 20, top / 20])


class ForEver:
    """A sampler that begins anew where it ends."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


class EndlessLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", ForEver(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.SiLU(), nn.Conv2d(8, 8, 3, 2), nn.Flatten(), nn.Linear(200, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    order = torch.Generator().manual_seed(args.seed)
    loader = EndlessLoader(Scenes(1200), batch_size=24, shuffle=True, generator=order)
    for epoch in range(args.epochs):
        total, samples, start = 0.0, 0, time.perf_counter()
        for scenes, corners in loader:
            loss = nn.functional.smooth_l1_loss(model(scenes), corners)
            time.sleep(0.007)  # a larger network
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, samples = total + loss.item() * len(scenes), samples + len(scenes)
        rate = samples / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / samples:.9g}, {rate:.1f} samples/s", flush=True)
    torch.save({"model": model.state_dict(), "epochs": args.epochs}, "detector.pt")


if __name__ == "__main__":
    main()
