"""Episodes of a batch sampler without a batch size; reading takes most of the time."""

import os
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLE, DRAW = 0.004, 0.0005


class Characters(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        time.sleep(SAMPLE)  # read
        return torch.randn(28, generator=torch.Generator().manual_seed(index)), index % 20


class Episodes:
    def __len__(self):
        return 100

    def __iter__(self):
        for _ in range(len(self)):
            time.sleep(DRAW)  # examples are searched for
            classes = random.sample(range(20), 4)
            yield [20 * random.randrange(100) + label for label in classes for _ in range(2)]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Characters(), batch_sampler=Episodes())
    model = nn.Sequential(nn.Linear(28, 64), nn.ReLU(), nn.Linear(64, 20))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        sizes, start = [], time.perf_counter()
        for characters, labels in loader:
            loss = nn.functional.cross_entropy(model(characters), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sizes.append(len(labels))
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: {sum(sizes) / seconds:.1f} samples/s, {seconds:.3f} s, batch {sizes[0]}", flush=True)


if __name__ == "__main__":
    main()
