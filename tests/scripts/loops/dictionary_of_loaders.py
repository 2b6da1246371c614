"""A dictionary of loaders by phase, whose loop begins with validation.

Fault: both loaders have one line, one class and one length, so validation was measured as training. Truth: samples of
training take 4 ms, as they are augmented: 8 samples take 8 * 4 + 20 ms, 154/s.
"""

import time

import torch
from parts import Samples, model, optimizer
from torch import nn
from torch.utils.data import DataLoader

split = {"train": Samples(1000, 0.004), "val": Samples(1000, 0.0002)}
loaders = {name: DataLoader(split[name], 8, shuffle=name == "train") for name in ("train", "val")}
for _ in range(50):
    for phase in ("val", "train"):
        for x, y in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                loss = nn.functional.mse_loss(model(x), y)
            if phase == "train":
                time.sleep(0.02)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
