"""Checkpoints written beside the last one, renamed over it, copied to the best, and removed when they are old.

Fault: a measurement replaced and removed the user's checkpoints. Truth: theirs stay, and the script sees its own.
"""

import glob
import os
import shutil

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(2000, 8), torch.randn(2000, 1)), batch_size=64, shuffle=True)
for epoch in range(int(os.environ.get("EPOCHS", "50"))):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            torch.save(model.state_dict(), "last.pt.tmp")
            os.replace("last.pt.tmp", "last.pt")
            shutil.copyfile("last.pt", "best.pt")
            shutil.copyfile("last.pt", f"step-{epoch:03d}-{step:06d}.pt")
            for old in sorted(glob.glob("step-*.pt"))[:-2]:
                os.remove(old)
            model.load_state_dict(torch.load("best.pt"))
