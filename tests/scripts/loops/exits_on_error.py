"""A script that turns errors of its training into an exit code.

Fault: want of memory arrived as an exit, so larger batches stayed open. Truth: 8 samples take 8 * 2 + 20 ms, 222/s;
with 64 the outcome or its message is that of the first error.
"""

import sys

from parts import Samples, train
from torch.utils.data import DataLoader


def train_for_an_epoch():
    for x, y in DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True):
        if len(x) > 16:
            raise RuntimeError("CUDA out of memory")
        train(x, y, 0.02)


try:
    train_for_an_epoch()
except RuntimeError:
    sys.exit(1)
