"""A script that lies in the temporary folder, and writes there and beside itself.

Fault: the temporary folder was nobody's, so writes there were not held. Truth: they are held as everywhere.
"""

import atexit
import os
import shutil
import tempfile

import torch

beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model.pt")
number, note = tempfile.mkstemp()
os.write(number, b"a note")
os.close(number)
atexit.register(os.remove, note)


def after(step, loss, model):
    if step % 10 == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
            shutil.copyfile(os.path.join(folder, "model.pt"), beside)
