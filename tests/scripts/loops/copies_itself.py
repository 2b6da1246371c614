"""A script that keeps its code beside its results, and asks what is installed, by other programs.

Truth: none of these trains; 8 samples take 8 * 2 ms and a step of 20 ms, 222/s.
"""

import os
import shutil
import subprocess

from parts import Samples, train
from torch.utils.data import DataLoader

os.makedirs("runs", exist_ok=True)
os.system(f"cp {__file__} runs/")
os.system("which torchrun")
subprocess.run(["tar", "-cf", "runs/code.tar", __file__], check=True)
subprocess.run(f"sha256sum {__file__} && pip show accelerate > runs/versions", shell=True, check=False)
if shutil.which("git"):
    subprocess.run(["git", "log", "-1", "--", __file__], check=False)
loader = DataLoader(Samples(4000, 0.002), batch_size=8, shuffle=True)
for _ in range(50):
    for x, y in loader:
        train(x, y, 0.02)
