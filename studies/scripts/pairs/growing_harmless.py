"""Batches grow from epoch to epoch; reading takes most of the time."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZES = (8, 16, 32)
SAMPLE, STEP = 0.004, 0.0002


class Images(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        time.sleep(SAMPLE)  # read
        return torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(index)), index % 10


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = Images()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        size = SIZES[min(epoch, len(SIZES) - 1)]
        loader = DataLoader(images, batch_size=size, shuffle=True)
        first, samples, start = None, 0, time.perf_counter()
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch), labels)
            time.sleep(STEP * len(labels))  # the size of the network
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            first, samples = first or len(labels), samples + len(labels)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: {samples / seconds:.1f} samples/s, {seconds:.3f} s, batch {first}", flush=True)


if __name__ == "__main__":
    main()
