"""A loop that draws its batches from a tensor, without a DataLoader.

Fault: the script trained on in silence until the limit for loading. Truth: it is refused within seconds, since there is
no loader to tune.
"""

import time

import torch
from torch import nn

data = torch.randn(4000, 9)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10**6):
    batch = data[torch.randint(len(data), (8,))]
    time.sleep(0.01)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(batch[:, :8]), batch[:, 8:]).backward()
    optimizer.step()
