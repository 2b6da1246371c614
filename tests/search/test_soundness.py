from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.probes import DEVIATION, NumericsCheck, reason_against
from tests import examples

SOUND = examples.numerics_check()
STEPS = len(SOUND.losses)


def with_late_losses(factor: float, **changes: object) -> NumericsCheck:
    losses = [loss * (factor if step >= STEPS // 2 else 1.0) for step, loss in enumerate(SOUND.reference_losses)]
    return examples.numerics_check(losses=tuple(losses), **changes)


def test_a_precision_that_does_what_fp32_does_is_trusted_and_one_whose_scaler_never_settles_is_not() -> None:
    assert reason_against(SOUND, "bf16") is None
    assert "overflow at every scale" in str(reason_against(replace(SOUND, settles=False), "fp16"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [0, 7, STEPS - 1])
def test_a_loss_that_is_not_finite_is_named_with_its_step(value: float, step: int) -> None:
    losses = [*SOUND.losses[:step], value, *SOUND.losses[step + 1 :]]
    broken, said = replace(SOUND, losses=tuple(losses)), f"the loss becomes {value} at step {step + 1} of {STEPS}"
    assert str(reason_against(broken, "bf16")).startswith(f"in bf16 {said}")
    assert str(reason_against(broken, "bf16", "compile")).startswith(f"with compile {said}")


def test_where_fp32_itself_is_not_finite_there_is_nothing_to_compare_with() -> None:
    broken = (*SOUND.reference_losses[:-1], math.inf)
    assert "cannot be compared" in str(reason_against(replace(SOUND, reference_losses=broken), "fp16"))


def reason_where(reference: tuple[float, ...], losses: tuple[float, ...]) -> str | None:
    check = examples.numerics_check(reference_losses=reference, other_losses=reference, losses=losses)
    return reason_against(check, "bf16")


def test_a_loss_that_starts_high_hides_nothing_and_of_one_that_vanishes_the_last_digits_do_not_matter() -> None:
    high = (1000.0, 100.0, 10.0, 1.0)
    assert reason_where((*high, *(0.5,) * 16), (*high, *(3.0,) * 16)) is not None
    assert reason_where((1.0, *(1e-5,) * 19), (1.0, *(3e-5,) * 19)) is None


@pytest.mark.parametrize(("count", "is_trusted"), [(0, True), (2, True), (3, False), (20, False)])
def test_a_single_gradient_that_is_not_finite_is_no_reason_and_many_are(count: int, is_trusted: bool) -> None:
    reason = reason_against(replace(SOUND, overflows=tuple(range(count))), "fp16")
    assert (reason is None) is is_trusted
    assert is_trusted or f"{count} of {STEPS}" in str(reason)


@pytest.mark.parametrize(("factor", "is_trusted"), [(1.02, True), (0.98, True), (1.3, False), (0.7, False)])
def test_losses_that_deviate_more_than_chance_makes_them_are_not_trusted(factor: float, is_trusted: bool) -> None:
    reason = reason_against(with_late_losses(factor), "bf16")
    assert (reason is None) is is_trusted
    assert is_trusted or "on the same batches" in str(reason)


def test_where_chance_alone_makes_much_of_a_difference_more_is_allowed() -> None:
    restless = tuple(1.2 * loss for loss in SOUND.reference_losses)
    assert reason_against(with_late_losses(1.3, other_losses=restless), "bf16") is None
    assert reason_against(with_late_losses(2.0, other_losses=restless), "bf16") is not None


@given(st.floats(1e-6, 1e6), st.floats(0, 0.9 * DEVIATION), st.integers(8, 40))
def test_the_unit_of_the_loss_does_not_matter(unit: float, deviation: float, steps: int) -> None:
    def reason(late: float) -> str | None:
        losses = tuple(unit * (late if step >= steps // 2 else 1.0) for step in range(steps))
        return reason_where((unit,) * steps, losses)

    assert reason(1 + deviation) is None
    assert reason(1 + DEVIATION + deviation + 0.01) is not None


def test_a_model_whose_loss_is_zero_can_be_judged() -> None:
    assert reason_where((0.0,) * STEPS, (0.0,) * STEPS) is None
    assert reason_where((0.0,) * STEPS, SOUND.losses) is not None
