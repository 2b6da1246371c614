from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune
from autotune import errors
from autotune.result import parse_verdict
from tests.processes import run_python

SCRIPT = """
import json, logging

import torch
from torch import nn
from torch.utils.data import Dataset

import autotune
import autotune.limits

autotune.limits.LEAST_BUDGET = 1.0

class Counted(Dataset):
    asked = 0
    def __len__(self):
        return 512
    def __getitem__(self, index):
        self.asked += 1
        return torch.randn(8), index % 3

def loss(output, target):
    return nn.functional.cross_entropy(output, target)

def state():
    places = [str(value.device) for value in model.state_dict().values()]
    gradients = [parameter.grad is None for parameter in model.parameters()]
    return [dataset.asked, places, gradients, logging.root.level, len(logging.root.handlers)]

model, dataset = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3)), Counted()
before = state()
config = autotune.best_config(
    model, dataset, loss=loss, device="cpu", budget=10, trials=2,
    batch_size=[16, 32], num_workers=[0, 1], amp="off", baseline={"batch_size": 16},
)
print(config)
print(json.dumps([before, state(), dict(config.measured), dict(config.made_on), config.to_document()]))
"""


@pytest.mark.machine
def test_a_plain_script_gets_its_answer_and_the_verdict_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else of its state stays as it was is in ``test_untouched``."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "train_as_people_write_it.py").write_text(SCRIPT)
    done = run_python("-W", "error", "train_as_people_write_it.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.match(
        r"([\d.]+ times the samples a second|No gain above|Undecided|Probably about) ?.*\.$",
        " ".join(done.stderr.split()),
    )
    shown, *changes, content = done.stdout.splitlines()
    before, after, measured, made_on, document = json.loads(content)
    assert after == before
    assert after[0] == 0
    assert shown.endswith(" samples/s")
    assert all(" → " in change for change in changes)
    is_larger = document["dataloader"]["batch_size"] == 32
    assert ("This changes training: batch size 16 → 32: adapt the learning rate." in done.stderr) == is_larger
    assert document["dataloader"]["batch_size"] in (16, 32)
    assert measured["samples_per_second"] > 0
    assert 0 < measured["peak_memory_bytes"] < measured["memory_limit_bytes"]
    assert measured["memory"] == "host"
    assert parse_verdict(measured["verdict"]) is not None
    assert measured["baseline"]["batch_size"] == 16
    assert made_on["workload"]


def test_a_model_in_place_of_a_workload_is_refused_with_the_function_that_takes_it() -> None:
    model: Any = torch.nn.Linear(1, 1)
    with pytest.raises(
        autotune.UsageError, match=r"workload is Linear; .* call autotune.best_config\(model, dataset\), or "
    ):
        autotune.tune(model, [1], quiet=True)


@pytest.mark.parametrize(
    ("name", "near"), [("bugdet", "budget"), ("optimiser", "optimizer"), ("batchsize", "batch_size")]
)
def test_an_argument_that_is_mistyped_is_told_with_the_nearest(name: str, near: str) -> None:
    wrong: Any = {name: 1}
    with pytest.raises(TypeError, match=rf"^best_config\(\) got .* '{name}': did you mean {near}\?$"):
        autotune.best_config(torch.nn.Linear(1, 1), [1], **wrong)


def test_every_error_can_be_caught_by_a_name_of_the_package() -> None:
    for error in (errors.AutotuneError, *errors.AutotuneError.__subclasses__()):
        assert getattr(autotune, error.__name__) is error
