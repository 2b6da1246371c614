"""A loop that also trains on a batch of a second loader, every twentieth step.

Truth: no rate of one loader is that of training, so it is refused, and the second one's line is named.
"""

from parts import Samples, train
from torch.utils.data import DataLoader

unlabelled = iter(DataLoader(Samples(4000, 0.002), batch_size=4))
for _ in range(50):
    for step, (x, y) in enumerate(DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True), 1):
        train(x, y, 0.01)
        if step % 20 == 0:
            train(*next(unlabelled), 0.01)
