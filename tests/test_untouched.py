"""A script that calls ``best_config`` gets its answer, and its own state is bit for bit what it was: after success,
after failure, after an interruption."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest

from autotune.result import parse_verdict
from tests.processes import run_python

pytestmark = pytest.mark.machine


SCRIPT = """
import hashlib, json, locale, logging, multiprocessing, os, random, resource, signal, sys, threading, time

import numpy
import optuna
import psutil
import torch
from torch import nn
from torch.utils.data import Dataset

import autotune
import autotune.limits

autotune.limits.LEAST_BUDGET = 1.0

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))
    def forward(self, x):
        return self.layers(x)

class Drawn(Dataset):
    asked, fails = 0, False
    def __len__(self):
        return 512
    def __getitem__(self, index):
        self.asked += 1
        random.random(), numpy.random.rand()
        if self.fails:
            raise ValueError("their dataset fails")
        return torch.randn(8), index % 3

def loss(output, target):
    return nn.functional.cross_entropy(output, target)

def digest(value):
    return hashlib.sha256(value.detach().numpy().tobytes()).hexdigest()

def flat(value):
    if isinstance(value, torch.Tensor):
        return digest(value)
    if isinstance(value, dict):
        return {str(key): flat(inner) for key, inner in value.items()}
    return [flat(inner) for inner in value] if isinstance(value, (list, tuple)) else repr(value)

def shared_memory():
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return sorted(name for name in names if name.startswith(f"torch_{os.getpid()}_"))

def state():
    return {
        "samples drawn": dataset.asked,
        "places": [str(value.device) for value in model.state_dict().values()],
        "logging": [logging.root.level, len(logging.root.handlers)],
        "weights and buffers": flat(model.state_dict()),
        "gradients": [flat(p.grad) if p.grad is not None else None for p in model.parameters()],
        "optimizer": flat(optimizer.state_dict()),
        "addresses": [v.data_ptr() for v in model.state_dict().values()],
        "versions": [v._version for v in model.state_dict().values()],
        "training": [m.training for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()],
        "torch random": digest(torch.get_rng_state()),
        "numpy random": str(numpy.random.get_state()),
        "python random": str(random.getstate()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "dtype": str(torch.get_default_dtype()),
        "grad mode": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "flags": [
            torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic,
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.mkldnn.enabled,
        ],
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "children": len(psutil.Process().children(recursive=True)),
        "our threads": sorted(thread.name for thread in threading.enumerate()),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)],
        "streams": [id(sys.stdin), id(sys.stdout), id(sys.stderr)],
        "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "blocked signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "files": sorted(os.listdir()),
        "open files": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if
            os.path.exists(f"/proc/self/fd/{fd}")) if os.path.isdir("/proc/self/fd") else [],
        "shared memory": shared_memory(),
        "optuna": optuna.logging.get_verbosity(),
        "locale": locale.setlocale(locale.LC_ALL),
    }

torch.manual_seed(3); numpy.random.seed(4); random.seed(5)
torch.set_num_interop_threads(1)
torch.set_num_threads(2)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = False
multiprocessing.set_start_method("spawn")
model = Noisy()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
model.eval()
dataset = Drawn()
torch.randn(7), numpy.random.rand(), random.random()
torch.set_grad_enabled(False)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGTERM, lambda *_: None)

def on_progress(progress):
    is_wanted = way == "interruption of the search" and progress.phase not in ("inspect", "baseline")
    if progress.running is not None and is_wanted and not timers:
        timers.append(threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)))
        timers[0].start()  # while the measurement runs

given = {"loss": loss, "device": "cpu", "trials": 2, "batch_size": [16, 32], "num_workers": [0, 1], "amp": "off"}
given |= {"threads": 2, "baseline": {"batch_size": 16}}
for way in ("success", "failure", "interruption of the search"):
    timers, became, said = [], "success", []
    dataset.fails = way == "failure"
    before = state()
    try:
        if way == "interruption of the search":
            autotune.best_config(model, dataset, budget=600, on_progress=on_progress, **given)
        else:
            config = autotune.best_config(model, dataset, budget=6, optimizer=optimizer, **given)
            said = [str(config), dict(config.measured), dict(config.made_on), config.to_document()]
    except (Exception, KeyboardInterrupt) as error:
        became = type(error).__name__
    for timer in timers:
        timer.join()
    print(json.dumps([way, became, len(timers), before, state(), said]))
    print("--- end of", way, file=sys.stderr)
"""


class Called(NamedTuple):
    became: str
    interruptions: int
    before: dict[str, Any]
    after: dict[str, Any]
    said: list[Any]
    errors: str


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Called]:
    folder = tmp_path_factory.mktemp("caller")
    (folder / "train_as_people_write_it.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        done = run_python("-W", "error", "train_as_people_write_it.py", folder=folder)
    assert done.returncode == 0, done.stderr
    lines, errors = map(json.loads, done.stdout.splitlines()), re.split(r"--- end of .*\n", done.stderr)
    return {way: Called(*told, said) for (way, *told), said in zip(lines, errors, strict=False)}


@pytest.mark.parametrize(
    ("way", "expected"),
    [("success", "success"), ("failure", "UserCodeError"), ("interruption of the search", "success")],
)
def test_the_callers_state_is_bit_for_bit_what_it_was(way: str, expected: str, called: dict[str, Called]) -> None:
    found = called[way]
    assert found.became == expected, found.errors
    assert found.interruptions == (way == "interruption of the search")
    assert found.before["samples drawn"] == 0
    assert list(found.after) == list(found.before)
    for name in found.before:
        assert found.after[name] == found.before[name], name


def test_a_plain_script_gets_its_answer_and_the_verdict_in_a_sentence(called: dict[str, Called]) -> None:
    found = called["success"]
    shown, measured, made_on, document = found.said
    assert re.match(
        r"([\d.]+ times the samples a second|No gain above|Undecided|Probably about) ?.*\.$",
        " ".join(found.errors.split()),
    )
    first, *changes = shown.splitlines()
    assert first.endswith(" samples/s")
    assert all(" → " in change for change in changes)
    is_larger = document["dataloader"]["batch_size"] == 32
    assert ("This changes training: batch size 16 → 32: adapt the learning rate." in found.errors) == is_larger
    assert document["dataloader"]["batch_size"] in (16, 32)
    assert measured["samples_per_second"] > 0
    assert 0 < measured["peak_memory_bytes"] < measured["memory_limit_bytes"]
    assert measured["memory"] == "host"
    assert parse_verdict(measured["verdict"]) is not None
    assert measured.get("baseline", document["dataloader"])["batch_size"] == 16  # left out where it is the answer
    assert made_on["workload"]
