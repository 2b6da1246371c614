"""A loop that validates every five steps, in a pass that takes as long as these.

Fault: a measurement ended at the first validation. Truth: outside of it 2 samples take 2 * 20 + 40 ms, 25/s.
"""

import torch
from parts import Samples, model, train
from torch import nn
from torch.utils.data import DataLoader


def validate():
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), y).item() for x, y in held_out]
    assert len(losses) == 3, losses


training = DataLoader(Samples(4000, 0.02), batch_size=2, shuffle=True)
held_out = DataLoader(Samples(6, 0.067), batch_size=2)
step = 0
for _ in range(50):
    for x, y in training:
        train(x, y, 0.04)
        step += 1
        if step % 5 == 0:
            validate()
