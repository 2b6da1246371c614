from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.config import Config
from autotune.limits import Budget
from autotune.search.forecast import CEILING_SHARE, SURE, Forecast
from autotune.search.gp import OWN
from autotune.search.observations import GAIN
from autotune.search.predict import BOUND_ERRORS
from autotune.search.run import Ending
from autotune.search.setup import Setup
from autotune.search.study import TuningStudy, open_study
from studies.stopping.machines import FAMILIES, usual
from tests import simulated
from tests.search.test_forecast import forecast_with

NEAR = ("batch_size", "num_workers", "amp", "threads")


def ended(ceiling: float = 1e6, *, is_open: bool = False) -> Forecast:
    """A best of 100 samples/s beside a configuration that may win or not, below a ceiling."""
    configs = [Config(), Config(batch_size=64)]
    return forecast_with(configs, [100.0, 90.0], ceiling=ceiling, is_open=[False, is_open])


def test_the_search_goes_on_while_a_configuration_could_win_and_else_says_why_not() -> None:
    assert ended(is_open=True).reason_to_stop is None
    assert ended().reason_to_stop == "no untried setting is expected to gain more than 2 %"
    measured = replace(ended(), is_untried=np.array([False, False]))
    assert measured.reason_to_stop == "every allowed configuration that fits was measured"


@pytest.mark.parametrize(("ceiling", "is_near"), [(104.0, False), (102.9, True), (90.0, True)])
def test_within_three_percent_of_the_ceiling_that_is_the_reason(ceiling: float, is_near: bool) -> None:
    assert CEILING_SHARE == 0.97
    reason, most = str(ended(ceiling).reason_to_stop), max(100.0, ceiling)  # a rate refutes a ceiling below it
    assert reason.startswith("within 3 % of the ceiling") == is_near
    assert reason.endswith(f"no data loader can give more than {most:.0f} samples/s") == is_near


def searched(family: str, seed: int) -> TuningStudy:
    machine = usual(family, seed, 0.03)
    study = open_study(Setup(space=machine.space, facts=machine.facts, host=machine.host))
    time = Budget(3600.0, machine.now)
    stop = simulated.search_only(machine, study, time)
    assert stop.ending is Ending.COMPLETE
    return study


@pytest.mark.parametrize("family", FAMILIES)
def test_no_neighbour_of_the_best_and_nothing_that_may_win_is_left_untried(family: str) -> None:
    study = searched(family, 1)
    space = study.setup.space
    forecast, best = study.known.forecast, study.known.forecast.best.config
    ceilings = np.log(forecast.prediction.ceilings)
    for config, index in forecast.position.items():
        if not forecast.is_untried[index] or forecast.refusals[index] is not None:
            continue
        one, other = (space.settings(each) for each in (config, best))
        differ = [knob for knob in one if one[knob] != other.get(knob, one[knob])]
        apart = [abs(space.allowed[k].index(one[k]) - space.allowed[k].index(other[k])) for k in differ if k in NEAR]
        is_near = apart == [1] and len(differ) == 1
        beyond = BOUND_ERRORS * np.hypot(forecast.apart[index], OWN) if is_near else SURE * forecast.apart[index]
        most = min(forecast.posterior.means[index] + beyond, ceilings[index])
        assert most < forecast.best_log + np.log(1 + GAIN), config
