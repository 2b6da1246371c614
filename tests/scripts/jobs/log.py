"""A log and a table of losses to which every run appends.

Fault: each measurement added lines to the user's files. Truth: both files end where the last training left them.
"""

import logging
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(filename="train.log", level=logging.INFO)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(2000, 8), torch.randn(2000, 1)), batch_size=64, shuffle=True)
for epoch in range(int(os.environ.get("EPOCHS", "50"))):
    logging.info("epoch %d begins", epoch)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logging.info("step %d: loss %.4f", step, loss.item())
        with open("metrics.csv", "a") as table:
            table.write(f"{epoch},{step},{loss.item()}\n")
