"""Data made once and read from a cache file ever after, as PyTorch Geometric keeps its own.

Fault: the write led nowhere, so the script could not read its cache. Truth: the script reads what it has written.
"""

import io
import os

import torch
from torch.utils.data import TensorDataset

CACHE = "processed/data.pt"
if not os.path.exists(CACHE):
    os.makedirs(os.path.dirname(CACHE), exist_ok=True)
    content = io.BytesIO()
    torch.save((torch.randn(2000, 8), torch.randn(2000, 1)), content)
    with open(CACHE, "wb") as file:
        file.write(content.getvalue())
data = TensorDataset(*torch.load(CACHE))
