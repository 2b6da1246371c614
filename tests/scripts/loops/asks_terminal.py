"""A script that fits its progress bar to the terminal when it starts.

Truth: 8 samples take 8 * 2 ms and a step of 20 ms, 222/s.
"""

import os

from parts import Samples, train
from torch.utils.data import DataLoader

_, columns = os.popen("stty size", "r").read().split()
bar = " " * int(columns)
loader = DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True)
for _ in range(50):
    for x, y in loader:
        train(x, y, 0.02)
