"""Links, a file cut short, another mode, and a folder renamed to a backup and made anew.

Fault: calls that write no bytes were not held. Truth: names, modes, sizes and links of the user's stay.
"""

import os
import shutil

import torch

os.link("weights.bin", "weights.copy")
os.symlink("weights.bin", "latest")
os.truncate("weights.bin", 4)
os.chmod("weights.bin", 0o600)
try:
    os.rename("run", "run.old")
except OSError:  # another file system
    shutil.move("run", "run.old")
os.makedirs("run")


def after(step, loss, model):
    if step % 10 == 0:
        torch.save(model.state_dict(), "run/model.pt")
