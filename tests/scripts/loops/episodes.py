"""Few-shot training: a sampler of the script's own draws the lists of each episode, and has no ``batch_size``.

Fault: the script was refused although its workers, pinning and threads could vary. Truth: 10 samples of 2 ms and a step
of 20 ms, 250/s.
"""

import random

from parts import Samples, train
from torch.utils.data import DataLoader


class Episodes:
    def __len__(self):
        return 50

    def __iter__(self):
        for _ in range(50):
            yield random.sample(range(400), 10)


loader = DataLoader(Samples(400, 0.002), batch_sampler=Episodes())
for _ in range(50):
    for x, y in loader:
        train(x, y, 0.02)
