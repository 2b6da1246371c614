"""An optimizer for each of sixty parameters, which steps as soon as the gradient is there.

Fault: its steps were taken for those of a script without a DataLoader. Truth: 2 samples take 2 * 20 + 200 ms.
"""

import time

import torch
from parts import Samples
from torch import nn
from torch.utils.data import DataLoader

training = DataLoader(Samples(40, 0.02), batch_size=2, shuffle=True)
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(60)), nn.Linear(8, 1))
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in optimizers:
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(50):
    for x, y in training:
        time.sleep(0.2)  # 120 optimizers step for each batch, which takes time of its own
        nn.functional.mse_loss(model(x), y).backward()
