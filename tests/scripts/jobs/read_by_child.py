"""Rows that the script writes, and a child process that reads them.

Fault: the child did not find them, and nothing said why. Truth: it reads them, or the refusal names file and flag.
"""

import subprocess

import torch
from torch.utils.data import TensorDataset

with open("rows.txt", "w") as file:
    file.write("1.5 " * 16000)
read = subprocess.run(["cat", "rows.txt"], check=True, capture_output=True, text=True).stdout
data = TensorDataset(torch.tensor([float(each) for each in read.split()]).reshape(2000, 8), torch.randn(2000, 1))
