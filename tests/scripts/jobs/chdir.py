"""A script that makes a folder for its run, works there, and appends to a file above it.

Fault: relative paths were held by the first working folder. Truth: they are held wherever the script works.
"""

import os

import torch

os.makedirs("run1", exist_ok=True)
os.chdir("run1")


def after(step, loss, model):
    if step % 10 == 0:
        torch.save(model.state_dict(), "model.pt")
        with open("../history.txt", "a") as history:
            history.write(f"run1 {loss.item()}\n")
