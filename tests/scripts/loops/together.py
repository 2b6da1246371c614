"""A step on two batches, of a loader with labels and of one without.

Fault: a measurement knew one loader only. Truth: without workers 2 samples of the first take 2 * 20 + 2 * 10 + 30 ms,
22/s. With two for each they take 30 ms. All times are multiplied by an argument.
"""

import sys
import time

from parts import Samples, model, optimizer
from torch import nn
from torch.utils.data import DataLoader

times = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
labelled = DataLoader(Samples(4000, times * 0.02), batch_size=2, shuffle=True)
unlabelled = DataLoader(Samples(4000, times * 0.01), batch_size=2, shuffle=True)
for _ in range(50):
    for (x, y), (more, _) in zip(labelled, unlabelled, strict=True):
        time.sleep(times * 0.03)
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(x), y) + model(more).square().mean()).backward()
        optimizer.step()
