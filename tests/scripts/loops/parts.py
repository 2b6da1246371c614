"""The parts that loops of this folder have in common: samples that take time, a model, and a step."""

import time

import torch
from torch import nn
from torch.utils.data import Dataset


class Samples(Dataset):
    def __init__(self, length, seconds):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(8), torch.randn(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(x, y, seconds):
    time.sleep(seconds)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
