"""A function that makes the loader of training and that of validation, for halves of one dataset.

Fault: both loaders have one line, one class and one length, so validation was measured as training. Truth: samples of
training take 4 ms, as they are augmented: 8 samples take 8 * 4 + 20 ms, 154/s.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Samples(Dataset):
    augmented = frozenset()

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        time.sleep(0.004 if index in self.augmented else 0.0002)
        return torch.randn(8), torch.randn(1)


def loader(data):
    return DataLoader(data, 8)


samples = Samples()
training, validation = random_split(samples, [0.5, 0.5])
samples.augmented = frozenset(training.indices)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(50):
    with torch.no_grad():
        error = sum(nn.functional.mse_loss(model(x), y).item() for x, y in loader(validation))
    for x, y in loader(training):
        time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
