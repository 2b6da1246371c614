"""A folder of results that the script clears before it fills it again.

Fault: a measurement removed the results of the last training. Truth: they stay, and the script finds an empty folder.
"""

import os
import shutil

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

shutil.rmtree("output")
os.makedirs("output")
assert not os.listdir("output")
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(2000, 8), torch.randn(2000, 1)), batch_size=64, shuffle=True)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            torch.save(model.state_dict(), f"output/model-{step % 100}.pt")
