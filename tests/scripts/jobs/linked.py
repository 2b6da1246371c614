"""Links, a file cut short, another mode, and a folder renamed to a backup and made anew.

Fault: calls that write no bytes were not held. Truth: names, modes, sizes and links of the user's stay.
"""

import os
import shutil

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.link("weights.bin", "weights.copy")
os.symlink("weights.bin", "latest")
os.truncate("weights.bin", 4)
os.chmod("weights.bin", 0o600)
try:
    os.rename("run", "run.old")
except OSError:  # another file system
    shutil.move("run", "run.old")
os.makedirs("run")
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
            torch.save(model.state_dict(), "run/model.pt")
