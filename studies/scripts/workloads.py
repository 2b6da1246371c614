"""Two of the scripts as workloads: the same model, data, loss and optimizer."""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import autotune

sys.path.insert(0, str(Path(__file__).resolve().parent / "jobs"))


def digits():
    from digits import Digits, Net

    return autotune.Workload(Net(), Digits(True), loss=F.nll_loss, optimizer=partial(torch.optim.Adadelta, lr=0.1))


def tokens():
    from tokens import Crops, Model, collate

    def loss(predicted, targets):
        return F.cross_entropy(predicted.flatten(0, 1), targets.flatten())

    return autotune.Workload(
        Model(),
        Crops("tokens.bin"),
        loss=loss,
        collate_fn=collate,
        optimizer=partial(torch.optim.AdamW, lr=3e-4),
    )
