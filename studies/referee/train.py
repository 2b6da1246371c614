"""Train a small network on random numbers: steps of some 20 ms, with a sleep of the length that is given, in seconds.

python studies/referee/train.py 0.015

Where the variable ``REFEREE`` names a socket, the seconds of the first steps are sent there.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SENT = 30
"""Steps that are sent."""


def main() -> None:
    pause, times = float(sys.argv[1]), list[float]()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(4096, 256), torch.randint(10, (4096,)))
    for _ in range(1000):
        for x, y in DataLoader(data, batch_size=64, shuffle=True):
            time.sleep(pause)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter())
            if len(times) == SENT and "REFEREE" in os.environ:
                send(times)


def send(times: list[float]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own, suppress(BlockingIOError):  # it may be full
        own.setblocking(False)
        steps = (after - before for before, after in pairwise(times))
        own.sendto(" ".join(f"{step:.6f}" for step in steps).encode(), "\0" + os.environ["REFEREE"])


if __name__ == "__main__":
    main()
