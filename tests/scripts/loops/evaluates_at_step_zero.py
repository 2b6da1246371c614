"""A loop that evaluates at every fiftieth step, and so after its first.

Fault: the second start ended at the loader of the evaluation. Truth: 8 samples take 8 * 2 + 20 ms, 222/s, and the few
milliseconds of an evaluation change nothing. Where that cannot be measured, the evaluation's line is named.
"""

import torch
from parts import Samples, model, train
from torch import nn
from torch.utils.data import DataLoader


def evaluate():
    with torch.no_grad():
        return sum(nn.functional.mse_loss(model(x), y).item() for x, y in DataLoader(held_out, batch_size=8))


held_out, step = Samples(16, 0.0002), 0
for _ in range(50):
    for x, y in DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True):
        train(x, y, 0.02)
        if step % 50 == 0:
            evaluate()
        step += 1
