"""A loop that accumulates gradients over four batches.

Fault: three of four batches end without a step, which may be taken for a failure. Truth: four batches take
4 * 8 * 2 + 4 * 10 + 10 ms, 281 samples/s.
"""

import time

from parts import Samples, model, optimizer
from torch import nn
from torch.utils.data import DataLoader

for _ in range(50):
    for number, (x, y) in enumerate(DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True), 1):
        time.sleep(0.01)
        (nn.functional.mse_loss(model(x), y) / 4).backward()
        if number % 4 == 0:
            time.sleep(0.01)
            optimizer.step()
            optimizer.zero_grad()
