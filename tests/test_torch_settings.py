"""What the caller has set of torch for its whole process holds where its model is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autotune.errors import UsageError
from autotune.measure.workload_facts import fingerprint
from autotune.workload import (
    PickledWorkload,
    Workload,
    describe,
    differing_settings,
    load,
    set_settings,
    torch_settings,
)
from tests.datasets import Squares

OTHER: dict[str, Any] = {
    "float32_matmul_precision": "high",
    "cudnn.allow_tf32": False,
    "cudnn.benchmark": True,
    "cudnn.deterministic": True,
    "deterministic_algorithms": 1,  # which warns
    "anomaly_detection": True,
    "default_dtype": "float64",
    "cuda.matmul.fp32_precision": "tf32",
    "cudnn.conv.fp32_precision": "ieee",
    "cudnn.rnn.fp32_precision": "ieee",
    "mkldnn.matmul.fp32_precision": "bf16",
    "mkldnn.conv.fp32_precision": "bf16",
    "mkldnn.rnn.fp32_precision": "bf16",
}

MKLDNN = ("matmul", "conv", "rnn")


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    yield
    set_settings({name: default for name, (default, *_) in torch_settings().items()})
    assert differing_settings() == {}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", sorted(torch_settings()))
def test_what_is_set_here_is_set_where_the_workload_is_loaded(name: str) -> None:
    model = nn.Linear(1, 1)
    set_settings({name: OTHER[name]})
    source = describe(Workload(model, Squares(4)))
    set_settings({name: torch_settings()[name][0]})
    assert differing_settings() == {}
    assert isinstance(source, PickledWorkload)
    load(source)
    assert differing_settings() == {name: OTHER[name]}


def test_one_name_for_all_of_torchs_precisions_reaches_every_library() -> None:
    torch.backends.fp32_precision = "tf32"
    found = differing_settings()
    torch.backends.fp32_precision = "none"
    assert found.keys() == {"cuda.matmul.fp32_precision", *(f"mkldnn.{each}.fp32_precision" for each in MKLDNN)}
    assert set(found.values()) == {"tf32"}


def test_another_setting_makes_another_workload() -> None:
    workload = Workload(nn.Linear(1, 1), Squares(4))
    plain = fingerprint(workload, 4)
    torch.set_float32_matmul_precision("high")
    assert fingerprint(workload, 4) != plain


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_a_model_that_is_compiled_in_place_is_refused() -> None:
    model = nn.Linear(1, 1)
    model.compile()
    with pytest.raises(UsageError, match=r"compiled in place.*explore=\"compile\""):
        describe(Workload(model, Squares(4)))


class Steps:
    def __init__(self, *parts: Any) -> None:
        self.depends_on = parts

    def training_step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return torch.zeros(())


def half(loss: float) -> float:
    return loss / 2


def twice(loss: float) -> float:
    return loss * 2


def test_what_a_method_depends_on_tells_workloads_apart() -> None:
    digests = [
        fingerprint(Workload(nn.Linear(1, 1), Squares(4), training_step=Steps(*parts).training_step), 4)
        for parts in ((half,), (half,), (twice,), (half, "optim=sgd"))
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
