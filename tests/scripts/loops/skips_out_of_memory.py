"""A loop that skips the batches for which memory is too small.

Fault: batches without a step counted as training, so a batch that does not fit was the fastest. Truth: 8 samples take
8 * 2 + 20 ms, 222/s; batches of 64 make no step and are refused.
"""

from parts import Samples, train
from torch.utils.data import DataLoader


def train_or_fail(x, y):
    if len(x) > 16:
        raise RuntimeError("CUDA out of memory")
    train(x, y, 0.02)


for _ in range(50):
    for x, y in DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True):
        try:
            train_or_fail(x, y)
        except RuntimeError:
            continue
