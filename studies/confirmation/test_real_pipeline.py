"""A pipeline whose best is known, tuned on this machine: some minutes, and a quiet machine.

pytest studies/confirmation/test_real_pipeline.py
"""

from __future__ import annotations

import pytest

from autotune import tune
from autotune.report.result import Result
from tests.quiet import undisturbed
from tests.search.test_tuner import searched


def test_on_a_real_pipeline_whose_step_takes_ten_times_its_loading_six_trials_reach_the_ceiling() -> None:
    def measure() -> Result:
        return tune("tests/workloads.py:ten_loadings", device="cpu", budget=120.0, batch_size="16..128", amp="off")

    def is_right(result: Result) -> bool:
        stops = result.stop_reason.startswith("within 3 % of the ceiling") and len(searched(result)) <= 6
        return stops and result.verdict == "faster" and result.speedup == pytest.approx(1.1, rel=0.05)

    result = undisturbed(measure, is_right)
    assert is_right(result), (result.stop_reason, searched(result), result.verdict, result.speedup)
