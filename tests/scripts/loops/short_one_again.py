"""A long loader, and a short one that begins anew where it ends.

Truth: 2 samples of the first take 2 * 20 + 2 * 10 + 30 ms, 22/s.
"""

import time

from parts import Samples, model, optimizer
from torch import nn
from torch.utils.data import DataLoader

long = DataLoader(Samples(4000, 0.02), batch_size=2, shuffle=True)
short = DataLoader(Samples(8, 0.01), batch_size=2, shuffle=True)
shorts = iter(short)
for _ in range(50):
    for x, y in long:
        try:
            more, _ = next(shorts)
        except StopIteration:
            shorts = iter(short)
            more, _ = next(shorts)
        time.sleep(0.03)
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(x), y) + model(more).square().mean()).backward()
        optimizer.step()
