"""A dataset that keeps in a dict what it has read, and augments it anew each time, which takes longer."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self):
        self.kept = {}

    def __len__(self):
        return 800

    def __getitem__(self, index):
        if index not in self.kept:
            time.sleep(0.001)  # read
            self.kept[index] = torch.randn(64, generator=torch.Generator().manual_seed(index))
        time.sleep(0.004)  # augmented
        return self.kept[index] + 0.1 * torch.randn(64), index % 10


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Photos(), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        first, samples, start = None, 0, time.perf_counter()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            first, samples = first or len(labels), samples + len(labels)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: {samples / seconds:.1f} samples/s, {seconds:.3f} s, batch {first}", flush=True)


if __name__ == "__main__":
    main()
