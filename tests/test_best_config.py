from __future__ import annotations

from typing import Any

import pytest
import torch

import autotune
from autotune import errors


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
