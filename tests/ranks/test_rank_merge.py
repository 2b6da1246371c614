"""What several ranks have measured, as one measurement."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.rank_group import as_one
from autotune.outcome import Outcome
from autotune.records import Attempt, Measurement, Payload
from tests import examples


def attempt(payload: Payload, outcome: Outcome = Outcome.OK, message: str = "") -> Attempt:
    return Attempt(outcome=outcome, payload=payload, message=message)


def measured(**fields: object) -> Measurement:
    """1,000 samples in 10 s: what counts is 100 samples/s unless a field says otherwise."""
    given = {"samples": 1000, "seconds": 10.0, "samples_per_second": 100.0, "steady_samples_per_second": 100.0}
    return examples.measurement(**{**given, "ci95": (98.0, 102.0), "memory": "host", **fields})


def split(measurement: Measurement, wait: float, communication: float) -> Measurement:
    return replace(measurement, step_time=replace(measurement.step_time, data_wait=wait, communication=communication))


def one_of(*measurements: Measurement) -> Measurement:
    found = as_one([attempt(each) for each in measurements]).measurement
    assert found is not None
    return found


@given(st.lists(st.floats(0.5, 1.0), min_size=2, max_size=5), st.floats(50, 150))
def test_the_rate_is_that_of_all_with_the_least_share_that_counts(shares: list[float], own: float) -> None:
    ranks = [measured(samples_per_second=share * own, samples=round(10 * own)) for share in shares]
    expected = sum(rank.samples / rank.seconds for rank in ranks) * min(
        rank.samples_per_second * rank.seconds / rank.samples for rank in ranks
    )
    assert one_of(*ranks).samples_per_second == pytest.approx(expected)


def test_equal_ranks_add_up() -> None:
    found = one_of(*[measured(seen_samples=1500)] * 3)
    assert (found.samples_per_second, *(found.ci95 or ())) == pytest.approx((300, 294, 306))
    assert (found.samples, found.seen_samples) == (3000, 4500)
    assert found.ceiling_samples_per_second == pytest.approx(3 * measured().ceiling_samples_per_second)
    assert found.step_time == measured().step_time


def test_workers_of_all_ranks_have_data_where_those_of_one_do_and_different_amounts_where_those_of_one_have() -> None:
    found = one_of(measured(idle_workers=2, is_uneven=True), measured(idle_workers=1, is_uneven=True), measured())
    assert (found.idle_workers, found.is_uneven) == (0, True)
    assert not one_of(measured(), measured()).is_uneven


def test_the_split_of_a_step_is_the_slowest_ranks() -> None:
    fast, slow = split(measured(), 0.01, 0.05), split(measured(), 0.05, 0.01)
    found = one_of(fast, slow)
    assert found.step_time == slow.step_time
    assert found.slowest_rank is found.ranks[1]
    assert found.rank_spread == pytest.approx(0.04 / (slow.step_time.total - slow.step_time.communication))
    assert [rank.data_wait_seconds for rank in found.ranks] == [0.01, 0.05]


@pytest.mark.parametrize(
    ("memory", "of_ranks", "counts"),
    [
        ("host", {10: 100, 30: 100}, (30, 50)),
        ("device", {10: 100, 30: 100}, (30, 100)),
        ("device", {5: 100, 4: 6}, (4, 6)),  # of the second, others hold most
    ],
)
def test_memory_is_that_of_the_rank_with_the_least_room_and_host_memory_is_shared(
    memory: str, of_ranks: dict[int, int], counts: tuple[int, int]
) -> None:
    ranks = [{"peak_memory_bytes": peak, "memory_limit_bytes": most} for peak, most in of_ranks.items()]
    found = one_of(*(measured(memory=memory, **each) for each in ranks))
    assert (found.peak_memory_bytes, found.memory_limit_bytes) == counts


def test_a_loss_that_is_not_finite_is_seen_in_whichever_rank_and_an_interval_that_no_one_knows_is_not_known() -> None:
    found = one_of(measured(loss=1.0), measured(loss=math.nan, ci95=None))
    assert math.isnan(found.loss or 0.0)
    assert found.ci95 is None


def test_what_one_rank_suspects_all_suspect() -> None:
    suspicion = attempt(measured(), Outcome.SUSPECT, "others used the CPUs")
    found = as_one([attempt(measured()), suspicion, suspicion])
    assert (found.outcome, found.message) == (Outcome.SUSPECT, "others used the CPUs")


@pytest.mark.parametrize("slowest", [0, 1, 2])
def test_the_gpu_that_others_use_most_counts_whichever_rank_is_slowest(slowest: int) -> None:
    others = [(None, ()), (0.3, (7,)), (0.6, (8, 9))]
    conditions = [examples.conditions(gpu_foreign_share=share, gpu_foreign_pids=pids) for share, pids in others]
    ranks = [measured(conditions=each) for each in conditions]
    ranks[slowest] = split(ranks[slowest], 1.0, 0.0)
    found = one_of(*ranks).conditions
    assert (found.gpu_foreign_share, found.gpu_foreign_pids, found.taken_share) == (0.6, (8, 9), 0.6)


def test_the_first_rank_that_went_wrong_decides() -> None:
    wrong = Attempt(outcome=Outcome.NUMERICS, message="the loss became nan")
    found = as_one([attempt(measured()), wrong])
    assert (found.outcome, found.message, found.found) == (Outcome.NUMERICS, "rank 1: the loss became nan", False)


def test_looks_are_put_together_too() -> None:
    numbers = [{"samples_per_second": rate, "host_seconds": rate / 1e6, "spread": rate / 1e4} for rate in (1e3, 900.0)]
    found = as_one([attempt(examples.compute_probe(**each)) for each in numbers]).compute
    assert found is not None
    assert (found.samples_per_second, found.host_seconds, found.spread) == (1900.0, 0.001, 0.1)
    traces = [examples.loader_trace(build_seconds=(seconds,)) for seconds in (0.1, 0.3, 0.2)]
    assert as_one(list(map(attempt, traces))).loader == traces[1]
