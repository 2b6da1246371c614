"""Weights written by NumPy, and a shell that appends, removes and makes a folder.

Fault: a child process wrote where its parent was held. Truth: the shell's changes stay out of the user's folder.
"""

import subprocess

subprocess.run(["sh", "-c", "echo x >> log.txt; rm -f old.txt; mkdir made"], check=False)


def after(step, loss, model):
    if step % 10 == 0:
        model.weight.detach().numpy().tofile("weights.bin")
