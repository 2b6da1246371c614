"""Training in a child process, which writes the model.

Fault: the child trained to its end and replaced the model. Truth: the script is refused before its child trains.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(rank, epochs):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in DataLoader(TensorDataset(torch.randn(2000, 8), torch.randn(2000, 1)), batch_size=64):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(int(os.environ.get("EPOCHS", "50")),), nprocs=1)
