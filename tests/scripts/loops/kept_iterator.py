"""An iterator that a name keeps while the one of the next epoch, of fifteen batches, is made.

Truth: every one trains: 2 samples take 2 * 20 + 40 ms, 25/s.
"""

from parts import Samples, train
from torch.utils.data import DataLoader

training = DataLoader(Samples(40, 0.02), batch_size=2, shuffle=True)
for _ in range(500):
    batches = iter(training)
    for _ in range(15):
        x, y = next(batches)
        train(x, y, 0.04)
