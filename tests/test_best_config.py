from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.result import parse_verdict

pytestmark = pytest.mark.machine

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = '''
import hashlib, json, logging, os, random, signal, sys, threading

import numpy
import torch
from torch import nn
from torch.utils.data import Dataset

import autotune

class Noisy(nn.Module):
    """Has parameters, buffers and randomness, so that training leaves traces everywhere."""
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))
    def forward(self, x):
        return self.layers(x)

class Drawn(Dataset):
    def __init__(self):
        self.asked = 0
    def __len__(self):
        return 512
    def __getitem__(self, index):
        self.asked += 1
        random.random(), numpy.random.rand()
        return torch.randn(8), index % 3

def loss(output, target):
    return nn.functional.cross_entropy(output, target)

def state():
    return {
        "weights": {k: hashlib.sha256(v.numpy().tobytes()).hexdigest() for k, v in model.state_dict().items()},
        "gradients": [p.grad is None for p in model.parameters()],
        "where": [str(v.device) for v in model.state_dict().values()],
        "addresses": [v.data_ptr() for v in model.state_dict().values()],
        "training": [m.training for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()],
        "asked": dataset.asked,
        "torch random": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        "numpy random": str(numpy.random.get_state()),
        "python random": str(random.getstate()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "dtype": str(torch.get_default_dtype()),
        "grad mode": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "streams": [id(sys.stdin), id(sys.stdout), id(sys.stderr)],
        "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "logging": [logging.root.level, len(logging.root.handlers)],
        "files": sorted(os.listdir()),
    }

torch.manual_seed(3); numpy.random.seed(4); random.seed(5)
model = Noisy().eval()
dataset = Drawn()
torch.randn(7), numpy.random.rand(), random.random()
torch.set_grad_enabled(False)
signal.signal(signal.SIGUSR1, lambda *_: None)

torch.set_num_interop_threads(1)
before = state()
config = autotune.best_config(
    model, dataset, loss=loss, device="cpu", budget=BUDGET, trials=3,
    batch_size=[16, 32], num_workers=[0, 1], amp="off", baseline={"batch_size": 16},
)
print(config)
print(json.dumps([before, state(), dict(config.measured), dict(config.made_on), config.to_document()]))
'''


def run_script(folder: Path, budget: str) -> tuple[str, list[dict[str, object]]]:
    script = folder / "train_as_people_write_it.py"
    script.write_text(SCRIPT.replace("BUDGET", budget))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    first, second = done.stdout.splitlines()
    return first, json.loads(second)


def test_a_plain_script_gets_its_answer_and_finds_everything_as_it_was(tmp_path: Path) -> None:
    printed, [before, after, measured, made_on, document] = run_script(tmp_path, "30")
    for name in before:
        assert after[name] == before[name], name
    assert after["asked"] == 0
    assert printed.startswith("Config(batch_size=")
    assert document["dataloader"]["batch_size"] in (16, 32)  # type: ignore[index]
    assert measured["samples_per_second"] > 0  # type: ignore[operator]
    assert 0 < measured["peak_memory_bytes"] < measured["memory_limit_bytes"]  # type: ignore[operator]
    assert measured["memory"] == "host"
    assert parse_verdict(measured["verdict"]) is not None
    assert measured["baseline"]["batch_size"] == 16  # type: ignore[index]
    assert made_on["workload"]
