"""A loop that validates with gradients: at its first step a pass, then a single batch every five steps.

Fault: a batch after which nothing is trained was taken for one that is trained on. Truth: outside of it 2 samples take
2 * 20 + 40 ms, 25/s.
"""

from parts import Samples, model, train
from torch import nn
from torch.utils.data import DataLoader

training = DataLoader(Samples(4000, 0.02), batch_size=2, shuffle=True)
held_out = DataLoader(Samples(6, 0.067), batch_size=2)
step = 0
for _ in range(50):
    for x, y in training:
        train(x, y, 0.04)
        if step == 0:
            total = sum(nn.functional.mse_loss(model(x), y).item() for x, y in held_out)
        step += 1
        if step % 5 == 0:
            x, y = next(iter(held_out))
            loss = nn.functional.mse_loss(model(x), y).item()
