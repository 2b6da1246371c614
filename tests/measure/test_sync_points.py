"""Which lines make the host wait, in steps that read values and in one that does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from autotune.config import Config
from autotune.measure.code_probe import look_inside
from autotune.measure.device import CpuDevice
from autotune.probes import Synchronisation
from autotune.settings import Amp
from autotune.workload import Workload
from tests.datasets import Squares

HERE = "tests/measure/test_sync_points.py"


def waits(
    training_step: Callable[[nn.Module, Any], torch.Tensor] | None = None, amp: Amp = "off", seconds: float = 0.3
) -> tuple[Synchronisation, ...]:
    workload = Workload(nn.Linear(1, 1), Squares(1000), training_step=training_step)
    return look_inside(workload, Config(batch_size=4, amp=amp), CpuDevice(), seconds).synchronisations


def line_of(function: Callable[..., Any], text: str = "") -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def reading_step(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(batch[0]).square().mean()
    if loss.detach().item() < 0:
        raise AssertionError
    return loss


def asking_step(model: nn.Module, batch: Any) -> Any:
    x, y = batch
    large = x[x > -1].reshape(-1, 1)
    for number in y.cpu().flatten().tolist():
        assert number >= 0
    kept = torch.unique(y).nonzero()
    return model(large).mean() + 0 * kept.sum() + 0 * x[torch.tensor([0, 1])].sum()


def backward_step(model: nn.Module, batch: Any) -> Any:
    return ReadsInBackward.apply(model(batch[0])).mean()  # type: ignore[no-untyped-call]


def test_reading_a_value_in_the_training_step_or_in_backward_is_found_with_its_line() -> None:
    (found,) = waits(reading_step)
    assert found.operator == "aten::_local_scalar_dense"
    assert found.where == f"{HERE}:{line_of(reading_step, '.item()')} reading_step"
    assert found.per_step == 1
    (found,) = waits(backward_step)
    assert found.where == f"{HERE}:{line_of(ReadsInBackward.backward, '.item()')} backward"


def test_what_depends_on_values_is_found_and_indexing_by_numbers_is_not() -> None:
    found = waits(asking_step)
    assert {(each.operator, each.where, each.per_step) for each in found} == {
        ("aten::index", f"{HERE}:{line_of(asking_step, 'x > -1')} asking_step", 1.0),
        ("aten::_to_copy", f"{HERE}:{line_of(asking_step, 'tolist')} asking_step", 2.0),
        ("aten::_unique2", f"{HERE}:{line_of(asking_step, 'unique')} asking_step", 1.0),
        ("aten::nonzero", f"{HERE}:{line_of(asking_step, 'nonzero')} asking_step", 1.0),
    }
    assert found[0].per_step == 2


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return gradient * gradient.sum().item()


@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_a_clean_step_does_not_wait_whatever_torchs_optimizer_and_scaler_read(amp: Amp) -> None:
    assert waits(amp=amp) == ()


def test_a_value_that_is_read_in_some_steps_counts_as_its_share() -> None:
    steps = 0

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        loss: torch.Tensor = model(batch[0]).mean()
        if steps % 2:
            loss.detach().item()
        return loss

    (found,) = waits(step, seconds=3.0)
    assert found.per_step == pytest.approx(0.5, abs=0.2)


def test_modes_are_off_again_after_an_error_in_a_watched_step() -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        if _get_current_dispatch_mode_stack():
            raise ValueError("their step is broken")
        return model(batch[0]).mean()

    with pytest.raises(ValueError, match="their step is broken"):
        waits(step)
    assert _get_current_dispatch_mode_stack() == _get_current_function_mode_stack() == []
