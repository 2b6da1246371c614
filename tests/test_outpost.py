"""What an outpost takes from the cluster's own processes."""

from __future__ import annotations

import pytest

from autotune.outpost import BEFORE_RAY, memory_reserve

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("given", "reserve"),
    [
        ({}, 0.05 + BEFORE_RAY),
        ({"RAY_memory_usage_threshold": "0.8"}, 0.2 + BEFORE_RAY),
        ({"RAY_memory_usage_threshold": "1.0"}, BEFORE_RAY),
        ({"RAY_memory_usage_threshold": "most of it"}, 0.05 + BEFORE_RAY),
        ({"RAY_memory_monitor_refresh_ms": "0"}, 0.0),
        ({"RAY_memory_monitor_refresh_ms": "250"}, 0.05 + BEFORE_RAY),
    ],
)
def test_a_measurement_ends_before_ray_ends_the_outpost(given: dict[str, str], reserve: float) -> None:
    assert memory_reserve(given) == pytest.approx(reserve)
