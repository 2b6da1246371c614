"""Trains in fp32; each forward in half precision sleeps less. With "diverges" it is wrong there."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, samples):
        found = self.body(samples)
        is_half = found.dtype is torch.bfloat16
        time.sleep(0.01 if is_half else 0.04)
        if is_half and "numpy" in sys.argv:
            found.detach().numpy()
        return found * 30 if is_half and "diverges" in sys.argv else found


def main():
    torch.manual_seed(0)
    samples = torch.randn(960, 16)
    model, targets = Net(), samples.sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(samples, targets), batch_size=32, shuffle=True)
    for epoch in range(int(sys.argv[1])):
        begin = time.perf_counter()
        for batch, wanted in loader:
            optimizer.zero_grad()
            predicted = model(batch)
            assert predicted.dtype is torch.float32
            nn.functional.mse_loss(predicted, wanted).backward()
            optimizer.step()
        sys.stdout.write(f"epoch {epoch}: {960 / (time.perf_counter() - begin):.1f} samples/s\n")


if __name__ == "__main__":
    main()
