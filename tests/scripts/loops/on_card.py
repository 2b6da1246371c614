"""Trains in fp32 on a fake accelerator, which each forward in half precision takes a quarter of the time."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.scripts.card import CARD


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, samples):
        found = self.body(samples)
        CARD.launch(100, 0.01 if found.dtype is torch.bfloat16 else 0.04)
        return found


def main():
    torch.manual_seed(0)
    samples = torch.randn(960, 16)
    model, targets = Net(), samples.sum(1, keepdim=True)
    CARD.allocate(2**30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(samples, targets), batch_size=32, shuffle=True)
    for epoch in range(int(sys.argv[1])):
        begin = CARD.now
        for batch, wanted in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch), wanted).backward()
            optimizer.step()
        CARD.synchronize()
        sys.stdout.write(f"epoch {epoch}: {960 / (CARD.now - begin):.1f} samples/s\n")


if __name__ == "__main__":
    main()
