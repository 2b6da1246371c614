"""A loop without a DataLoader that compiles the step of its optimizer.

Fault: Dynamo followed the hook of the step into the measuring code. Truth: a step takes 20 ms.
"""

import time

import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@torch.compile(backend="eager")
def step():
    optimizer.step()


for _ in range(10**6):
    time.sleep(0.02)
    model(torch.randn(8, 8)).square().mean().backward()
    step()
    optimizer.zero_grad()
