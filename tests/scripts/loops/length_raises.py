"""A dataset that raises where it is asked for its length, which its sampler knows.

Fault: the length was asked for although training never asks, and the error ended the script. Truth: 8 samples take
8 * 2 + 20 ms, 222/s.
"""

from parts import Samples, train
from torch.utils.data import DataLoader, SubsetRandomSampler


class Unsized(Samples):
    def __len__(self):
        raise ValueError("the archive has no index")


for _ in range(50):
    for x, y in DataLoader(Unsized(4000, 0.002), batch_size=8, sampler=SubsetRandomSampler(range(4000))):
        train(x, y, 0.02)
