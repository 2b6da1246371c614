"""What holds for all tests: operators and matrices are small here, and threads that share a CPU wait for each other."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is first imported

import torch

torch.set_num_threads(1)
