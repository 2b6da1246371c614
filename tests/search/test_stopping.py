from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autotune.config import Config
from autotune.search.forecast import HOPE, Forecast
from autotune.search.observations import GAIN
from autotune.search.stopping import CEILING_SHARE, reason_to_stop
from tests import examples
from tests.search.test_forecast import forecast_with


def forecast_of(
    best: float,
    others: Sequence[float] = (),
    *,
    error: float = 0.0,
    ceilings: Sequence[float] | float = 1e6,
    limits: float | None = None,
    refused: Sequence[int] = (),
    closed: Sequence[int] = (),
) -> Forecast:
    """A measured configuration of index 0 at a rate, and others of which so much is expected."""
    count = 1 + len(others)
    configs = [Config(batch_size=batch) for batch in range(1, count + 1)]
    is_open = [index not in (0, *refused, *closed) for index in range(count)]
    given = {"errors": error, "is_open": is_open, "ceiling": ceilings, "last": configs[0], "best": best}
    found = forecast_with(configs, [best, *others], **given)
    refusals = tuple("too large" if index in refused else None for index in range(count))
    allowed = found.prediction.ceilings if limits is None else np.full(count, limits)
    prediction = replace(found.prediction, refusals=refusals, limits=allowed)
    is_untried, trial = np.arange(count) > 0, examples.trial(config=configs[0])
    return replace(found, prediction=prediction, refusals=refusals, is_untried=is_untried, base=configs[0], best=trial)


@pytest.mark.parametrize(("rate", "stops"), [(96.9, False), (97.1, True), (100.0, True), (110.0, True)])
def test_within_three_percent_of_the_ceiling_the_search_ends(rate: float, stops: bool) -> None:
    assert CEILING_SHARE == 0.97
    reason = reason_to_stop(forecast_of(rate, [200.0], ceilings=100.0))
    assert (reason is not None) == stops
    if stops:
        most = max(100.0, rate)  # what was measured refutes a ceiling below it
        assert reason == f"within 3% of the ceiling: no data loader can give more than {most:.0f} samples/s"


def test_the_ceiling_is_the_highest_of_all_that_fit_measured_or_not_and_not_what_the_loader_allows() -> None:
    assert reason_to_stop(forecast_of(60.0, [90.0], ceilings=100.0, limits=61.0)) is None
    assert reason_to_stop(forecast_of(98.0, [150.0], ceilings=[100.0, 200.0])) is None
    assert reason_to_stop(forecast_of(90.0, [95.0, 95.0], ceilings=[90.0, 200.0, 100.0], closed=[1])) is None
    reason = reason_to_stop(forecast_of(98.0, [150.0, 90.0], ceilings=[100.0, 200.0, 95.0], refused=[1]))
    assert "no data loader can give more than 100 samples/s" in str(reason)


def test_where_nothing_is_left_that_could_win_the_search_ends() -> None:
    for nothing in (forecast_of(50.0), forecast_of(50.0, [100.0], closed=[1])):
        assert reason_to_stop(nothing) == "every allowed configuration that could win was measured"


@pytest.mark.parametrize(("gain", "stops"), [(0.5, False), (0.021, False), (0.019, True), (0.0, True), (-0.5, True)])
def test_where_less_than_two_percent_is_expected_the_search_ends(gain: float, stops: bool) -> None:
    assert GAIN == 0.02
    reason = reason_to_stop(forecast_of(100.0, [10.0, 100.0 * (1 + gain)]))
    assert reason == ("no untried setting is expected to gain more than 2 %" if stops else None)


@pytest.mark.parametrize(("hope", "stops"), [(0.0, True), (0.019, True), (0.021, False)])
def test_what_is_unsure_keeps_the_search_going(hope: float, stops: bool) -> None:
    assert (reason_to_stop(forecast_of(100.0, [100.0], error=hope / HOPE)) is not None) == stops


def test_hopes_end_at_the_ceiling_of_each_configuration() -> None:
    for ceiling, stops in ((101.0, True), (103.0, False)):
        found = forecast_of(100.0, [100.0, 50.0], error=2.0, ceilings=[500.0, ceiling, 50.0])
        assert (reason_to_stop(found) is not None) == stops


def test_where_too_little_is_known_of_the_steps_no_ceiling_is_claimed() -> None:
    found = forecast_of(98.0, [99.0], ceilings=100.0)
    unsure = replace(found, prediction=replace(found.prediction, most=np.array([100.0, 150.0])))
    assert reason_to_stop(unsure) == (
        "within 3% of the expected ceiling; steps that were hardly measured may give up to 150 samples/s"
    )
