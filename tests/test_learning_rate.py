"""The learning rate that goes with another batch: rule, number, and who says it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import Config, learning_rate_advice, learning_rate_of
from autotune.errors import UsageError

BATCHES = st.integers(1, 10_000)


def answer(optimizer: str | None, before: int, after: int, **changes: Any) -> Config:
    learning_rate = learning_rate_of(optimizer, before, after)
    return Config(batch_size=after, measured={"learning_rate": learning_rate}, **changes)


@given(BATCHES, BATCHES, st.sampled_from([("SGD", 1.0), ("Adam", 0.5), ("AdamW", 0.5)]))
def test_the_learning_rate_goes_with_the_batch_or_its_square_root(
    before: int, after: int, of: tuple[str, float]
) -> None:
    optimizer, power = of
    config = answer(optimizer, before, after)
    assert config.scaled_lr(0.1) == pytest.approx(0.1 * (after / before) ** power, rel=1e-5)
    assert bool(learning_rate_advice(config)) == (before != after)


@given(BATCHES, st.sampled_from(["SGD", "Lion", None]))
def test_the_learning_rate_stays_with_the_batch_whatever_the_optimizer(batch_size: int, optimizer: str | None) -> None:
    config = answer(optimizer, batch_size, batch_size)
    assert config.scaled_lr(0.3) == 0.3
    assert learning_rate_advice(config) == ""


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (answer("Lion", 16, 32), "no rule is known for Lion; set the learning rate yourself"),
        (answer(None, 16, 32), "the configuration does not say how; set the learning rate yourself"),
        (answer("a\nb", 16, 32), "the configuration does not say how; set the learning rate yourself"),
        (Config(), "the configuration does not say how; set the learning rate yourself"),
        (replace(answer("SGD", 16, 32), ranks=2), "an optimizer step has 64 samples now, not the 32 that were tuned"),
        (replace(answer("SGD", 16, 32), batch_size=8), "an optimizer step has 8 samples now, not the 32"),
    ],
)
def test_a_learning_rate_without_a_rule_is_refused_with_the_reason(config: Config, why: str) -> None:
    with pytest.raises(UsageError, match=f"scaled_lr: {why}"):
        config.scaled_lr(0.1)
