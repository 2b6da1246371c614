"""A decoder behind a cache that is smaller than the dataset: shuffled, it hardly ever hits."""

import functools
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH = 800


@functools.lru_cache(maxsize=64)
def decoded(index):
    time.sleep(0.004)
    return torch.randn(64, generator=torch.Generator().manual_seed(index))


class Recordings(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return decoded(index), torch.tensor([float(index % 7)])


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train_loader = DataLoader(Recordings(), batch_size=10, shuffle=True)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        sizes, start = [], time.perf_counter()
        for signal, target in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(signal), target)
            loss.backward()
            optimizer.step()
            sizes.append(len(signal))
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: {sum(sizes) / seconds:.1f} samples/s, {seconds:.3f} s, batch {sizes[0]}", flush=True)


if __name__ == "__main__":
    main()
