"""A loop of a fixed number of steps, each 2 ms with 8 samples of 1 ms; how it ends is an argument.

Fault: fast settings met the end within a measurement, and failed by it; slow ones did not. One that goes on from its
own checkpoint had nothing left to train once it was started again. Truth: 8 samples take 8 * 1 + 2 ms, 800/s.
"""

import os
import sys

import torch
from parts import Samples, model, optimizer, train
from torch.utils.data import DataLoader

steps, way = int(sys.argv[1]), sys.argv[2]
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps if way == "schedule" else 10**6)
torch.set_num_interop_threads(1)
torch.multiprocessing.set_start_method("fork")
step = 0
if way == "resume" and os.path.exists("step.pt"):
    step = torch.load("step.pt")["step"]
for _ in range(50):
    for x, y in DataLoader(Samples(4000, 0.001), batch_size=8, shuffle=True):
        if step == steps and way in ("return", "resume"):
            sys.exit()
        train(x, y, 0.002)
        schedule.step()
        step += 1
        if way == "resume" and step % 10 == 0:
            torch.save({"step": step}, "step.pt")
        if step == steps and way == "break":
            break
    if step == steps and way == "break":
        break
torch.save(model.state_dict(), "model.pt")
