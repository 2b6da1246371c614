"""A training of sixty steps whose folder of results must be new, and which takes the file that asks for it away.

Fault: its second start met the files of its first, and refused them. Truth: each start finds the user's files.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.remove("wanted.txt")
os.makedirs("output/deep")
os.symlink("output", "latest")
os.chdir("latest/deep")
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(6400, 8), torch.randn(6400, 1)), batch_size=64, shuffle=True)
for step, (x, y) in enumerate(loader):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open("log.txt", "a" if step else "x") as log:
        log.write(f"{step}\n")
    if step == 59:
        break
torch.save(model.state_dict(), "model.pt")
