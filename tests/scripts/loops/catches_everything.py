"""A loop that catches whatever its steps raise, around a DataLoader that is iterated anew for each of them.

Truth: it never goes on to a second batch of an iterator, so it is refused; made once for an epoch, it is measured.
"""

import sys

from parts import Samples, train
from torch.utils.data import DataLoader

loader = DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True)
batches = iter(loader)
for _ in range(2000):
    try:
        x, y = next(batches if "once" in sys.argv else iter(loader))
        train(x, y, 0.02)
    except:  # noqa: E722
        batches = iter(loader)
