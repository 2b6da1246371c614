"""A loop that takes the first batch of a new iterator in each step.

Fault: no iterator gave two batches, so the script trained on until the limit for loading. Truth: it is refused, since
no loader's settings pay where its workers end with each batch.
"""

from parts import Samples, train
from torch.utils.data import DataLoader

loader = DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True)
for _ in range(10**6):
    x, y = next(iter(loader))
    train(x, y, 0.02)
