"""Checkpoints written beside the last one, renamed over it, copied to the best, and removed when they are old.

Fault: a measurement replaced and removed the user's checkpoints. Truth: theirs stay, and the script sees its own.
"""

import glob
import os
import shutil
from itertools import count

import torch

numbers = count()


def after(step, loss, model):
    if step % 10 == 0:
        torch.save(model.state_dict(), "last.pt.tmp")
        os.replace("last.pt.tmp", "last.pt")
        shutil.copyfile("last.pt", "best.pt")
        shutil.copyfile("last.pt", f"step-{next(numbers):010d}.pt")
        for old in sorted(glob.glob("step-*.pt"))[:-2]:
            os.remove(old)
        model.load_state_dict(torch.load("best.pt"))
