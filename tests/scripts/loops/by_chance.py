"""Two tasks that train by chance, each on a loader of its own.

Truth: no rate of one loader is that of training, so it is refused, and both lines are named.
"""

import random

from parts import Samples, train
from torch.utils.data import DataLoader

slow = DataLoader(Samples(4000, 0.02), batch_size=2, shuffle=True)
fast = DataLoader(Samples(4000, 0.01), batch_size=2, shuffle=True)
chance = random.Random(0)
a, b = iter(slow), iter(fast)
for _ in range(1000):
    x, y = next(b if chance.random() < 0.5 else a)
    train(x, y, 0.03)
