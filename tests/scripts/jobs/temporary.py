"""A script that lies in the temporary folder, and writes there and beside itself.

Fault: the temporary folder was nobody's, so writes there were not held. Truth: they are held as everywhere.
"""

import os
import shutil
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model.pt")
number, note = tempfile.mkstemp()
os.write(number, b"a note")
os.close(number)
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
            with tempfile.TemporaryDirectory() as folder:
                torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
                shutil.copyfile(os.path.join(folder, "model.pt"), beside)
os.remove(note)
