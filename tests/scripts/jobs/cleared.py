"""A folder of results that the script clears before it fills it again.

Fault: a measurement removed the results of the last training. Truth: they stay, and the script finds an empty folder.
"""

import os
import shutil

import torch

shutil.rmtree("output")
os.makedirs("output")
assert not os.listdir("output")


def after(step, loss, model):
    if step % 10 == 0:
        torch.save(model.state_dict(), f"output/model-{step % 100}.pt")
