"""A loop that leaves out every third batch, the first one among them.

Fault: a batch without a step may be taken for a failure. Truth: skipping is the script's own way from its first batch
on. Three batches take 3 * 8 * 2 + 2 * 20 ms, 273 samples/s.
"""

from parts import Samples, train
from torch.utils.data import DataLoader

for _ in range(50):
    for number, (x, y) in enumerate(DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True)):
        if number % 3 == 0:
            continue
        train(x, y, 0.02)
