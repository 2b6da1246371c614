from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.benchmark import EpochCost

SECONDS = st.floats(1e-3, 100)
RATES = st.floats(0.1, 1e6)
SAMPLES = st.integers(1, 10**9)


@given(SAMPLES, RATES, SECONDS, st.booleans())
def test_an_epoch_takes_what_its_samples_take_and_one_start(
    samples: int, rate: float, seconds: float, keeps_workers: bool
) -> None:
    other = seconds + 1
    start, restart = (other, seconds) if keeps_workers else (seconds, other)
    cost = EpochCost(samples=samples, rate=rate, start=start, restart=restart)
    length = samples / cost.rate_over_epochs(keeps_workers=keeps_workers)
    assert length == pytest.approx(samples / rate + seconds)


@given(SAMPLES, RATES, SECONDS, st.floats(0, 1))
def test_keeping_the_workers_gains_where_a_restart_is_shorter_than_a_start(
    samples: int, rate: float, start: float, share: float
) -> None:
    gain = EpochCost(samples=samples, rate=rate, start=start, restart=share * start).persistence_gain
    loss = EpochCost(samples=samples, rate=rate, start=share * start, restart=start).persistence_gain
    saved = (1 - share) * start
    assert gain == pytest.approx(saved / (samples / rate + share * start), rel=1e-6, abs=1e-12)
    assert loss == pytest.approx(-saved / (samples / rate + start), rel=1e-6, abs=1e-12)
