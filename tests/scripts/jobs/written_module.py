"""Modules that the script writes, or changes, before it imports them, as ``trust_remote_code`` does.

Fault: Python imported the module of before, or none. Truth: it imports what the script has written.
"""

import importlib
import os
import sys

import torch
from torch.utils.data import TensorDataset

os.makedirs("made", exist_ok=True)
for path, text in (("made/__init__.py", ""), ("made/sizes.py", "WIDTH = 8"), ("package/deep.py", "ROWS = 2000")):
    with open(path, "w") as file:
        file.write(text)
with open("settings.py", "a") as file:
    file.write("RATE = 0.01\n")
os.remove("removed.py")
importlib.invalidate_caches()
sys.path.insert(0, os.getcwd())
import package.deep  # noqa: E402
import settings  # noqa: E402
from made.sizes import WIDTH  # noqa: E402

assert importlib.util.find_spec("removed") is None
assert os.path.samefile(settings.__file__, "settings.py")
data = TensorDataset(torch.randn(package.deep.ROWS, WIDTH), settings.RATE * torch.randn(package.deep.ROWS, 1))
