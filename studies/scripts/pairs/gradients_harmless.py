"""Squared gradients over the training loader, before training and after each epoch; reading takes most of the time."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLE, STEP = 0.004, 0.002


class Signals(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        time.sleep(SAMPLE)  # read
        return torch.randn(48, generator=torch.Generator().manual_seed(index)), index % 5


def squared_gradients(model, loader):
    found = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for signals, labels in loader:
        model.zero_grad()
        nn.functional.cross_entropy(model(signals), labels).backward()
        for total, parameter in zip(found, model.parameters(), strict=True):
            total += parameter.grad**2
    return sum(total.sum().item() for total in found) / len(loader)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Signals(), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 5))
    print(f"before training: {squared_gradients(model, loader):.4f}")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        first, samples, start = None, 0, time.perf_counter()
        for signals, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(signals), labels).backward()
            time.sleep(STEP)  # the size of the network
            optimizer.step()
            first, samples = first or len(labels), samples + len(labels)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: {samples / seconds:.1f} samples/s, {seconds:.3f} s, batch {first}", flush=True)
        print(f"squared gradients: {squared_gradients(model, loader):.4f}")


if __name__ == "__main__":
    main()
