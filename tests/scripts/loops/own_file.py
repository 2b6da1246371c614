"""A script that finds its project by its own file, and works in a new folder there.

Fault: ``__file__`` was relative, and the line of the loader was looked for in the new folder. Truth: the path is whole,
as Python has it, and each start finds the same line: 8 samples take 8 * 2 + 20 ms, 222/s.
"""

import os
from pathlib import Path

from parts import Samples, train
from torch.utils.data import DataLoader

folder = Path(__file__).parents[1] / "runs" / str(os.getpid())
folder.mkdir(parents=True, exist_ok=True)
os.chdir(folder)
for _ in range(50):
    for x, y in DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True):
        train(x, y, 0.02)
