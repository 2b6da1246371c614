from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import Config
from autotune.limits import MemoryLimit
from autotune.outcome import Outcome
from autotune.records import Attempt, Part, Probe, WorkloadFacts
from autotune.search.observations import Observations
from autotune.search.probe_plan import AGREEMENT, MAX_RUNGS, next_probe, next_rung, untried_precision
from autotune.search.step_model import LARGEST_STEP
from tests import examples
from tests.search.there import there
from tests.simulated import gpu_facts, host, space_of

GIB = 2**30
DOUBLING = tuple(2**k for k in range(11))
BATCHES = st.sets(st.integers(1, 4096), min_size=1, max_size=40).map(sorted)


Climb = tuple[dict[int, int], list[int], list[int]]


def climb(allowed: Sequence[int], start: int, limit: int, memory: Callable[[int], int]) -> Climb:
    """Climb to the top: peaks of what ran, what did not fit, and everything tried in order."""
    peaks, failed, tried = dict[int, int](), list[int](), list[int]()
    while (rung := next_rung(peaks, failed, allowed, start, limit)) is not None:
        assert rung in allowed
        assert rung not in tried
        assert rung < min(failed, default=rung + 1)
        tried.append(rung)
        if memory(rung) <= limit:
            peaks[rung] = memory(rung)
        else:
            failed.append(rung)
    return peaks, failed, tried


@settings(max_examples=300)
@given(BATCHES, st.data(), st.integers(0, GIB), st.integers(0, 2**24), st.floats(0.5, 40))
def test_where_memory_is_a_line_no_rung_after_the_first_exceeds_the_limit(
    allowed: list[int], data: st.DataObject, fixed: int, slope: int, memory_limit: float
) -> None:
    start = data.draw(st.integers(allowed[0], 5000))
    first = max(batch for batch in allowed if batch <= start)
    limit = int(memory_limit * (fixed + slope * first))
    _, failed, tried = climb(allowed, start, limit, lambda batch: fixed + slope * batch)
    assert tried[0] == first
    if fixed + slope * first <= limit:
        assert failed == []
        assert len(tried) <= MAX_RUNGS
        assert all(rung <= LARGEST_STEP * max(tried[:count]) for count, rung in enumerate(tried) if count)


@settings(max_examples=300)
@given(st.sampled_from(DOUBLING[1:6]), st.integers(0, GIB), st.integers(1, 2**24), st.floats(1, 100))
def test_on_a_line_the_top_is_the_largest_that_fits_with_room(start: int, fixed: int, slope: int, most: float) -> None:
    limit = int(most * (fixed + slope * start))
    peaks, _, tried = climb(DOUBLING, start, limit, lambda batch: fixed + slope * batch)
    top = max(peaks)
    with_margin = top + (limit - peaks[top]) / (slope * (1 + AGREEMENT))
    if len(tried) < MAX_RUNGS:
        assert top == DOUBLING[-1] or 2 * top > with_margin
    else:
        assert top >= min(16 * start, DOUBLING[-1])  # a look below, then doublings


@settings(max_examples=200)
@given(st.sampled_from(DOUBLING), st.integers(1, GIB), st.integers(0, GIB), st.integers(1, 2**24), st.floats(1, 40))
def test_where_memory_is_flat_and_then_a_line_a_rung_overshoots_once_at_most_and_by_less_than_twice(
    start: int, floor: int, fixed: int, slope: int, memory_limit: float
) -> None:
    def memory(batch: int) -> int:
        return max(floor, fixed + slope * batch)

    limit = int(memory_limit * memory(start))
    _, failed, tried = climb(DOUBLING, start, limit, memory)
    assert len(failed) <= 1
    assert all(memory(batch) <= 2 * limit for batch in failed)
    assert len(tried) <= MAX_RUNGS


@settings(max_examples=200)
@given(BATCHES, st.data())
def test_whatever_memory_does_the_climb_ends_and_nothing_above_a_failure_is_tried(allowed: Any, data: Any) -> None:
    start = data.draw(st.sampled_from(allowed))
    peaks = dict(zip(allowed, data.draw(st.lists(st.integers(1, 100), min_size=40, max_size=40)), strict=False))
    limit = data.draw(st.integers(peaks[start], 200))
    found, _, tried = climb(allowed, start, limit, lambda batch: peaks[batch])
    assert len(tried) <= MAX_RUNGS
    assert start in found


@pytest.mark.parametrize("fits", [0, 2, 4, 16, 32])
def test_from_a_start_that_does_not_fit_the_way_leads_down_to_the_largest_that_does(fits: int) -> None:
    peaks, failed, tried = climb(DOUBLING, 64, 1000, lambda batch: 1 if batch <= fits else 1001)
    assert tried[0] == 64
    assert tried == sorted(tried, reverse=True)
    assert max(peaks, default=0) == fits
    assert not fits or min(failed) == 2 * fits
    assert len(tried) <= MAX_RUNGS


def rate_of(config: Config) -> float:
    """Larger batches, bf16 and a single thread pay; samples per second."""
    seconds = 0.010 + 2e-4 * config.batch_size
    return (
        config.batch_size / seconds * (2.0 if config.amp == "bf16" else 1.0) / math.sqrt(config.intra_op_threads or 2)
    )


@dataclass(kw_only=True)
class Answerer:
    facts: WorkloadFacts
    bounds: dict[str, Any] = field(default_factory=dict)
    baseline: Config = examples.BASELINE
    rate: Callable[[Config], float] = rate_of
    memory: Callable[[Config], int] = lambda config: GIB
    fails: Callable[[Part, Config], Outcome | None] = lambda part, config: None
    build: float = 1e-3
    rejects: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.space = space_of(self.facts, 4, self.baseline, **self.bounds)
        rate = self.rate(self.space.base)
        measured = examples.measurement(
            samples_per_second=min(rate, 500.0),
            steady_samples_per_second=min(rate, 500.0),
            ceiling_samples_per_second=rate,
        )
        trials, limit = (examples.trial(config=self.space.base, measurement=measured),), MemoryLimit(headroom=0.1)
        self.start = Observations(facts=self.facts, host=host(), memory_limit=limit, trials=trials)

    def answer(self, part: Part, config: Config) -> Probe:
        outcome = Outcome.DEVICE_OOM if self.memory(config) > 8 * GIB else self.fails(part, config)
        payload: Any = examples.numerics_check()
        if part == "loader":
            builds = (self.build * config.batch_size,) * 10
            payload = examples.loader_trace(batch_size=config.batch_size, build_seconds=builds)
        elif part == "compute":
            memory: dict[str, Any] = {"peak_memory_bytes": self.memory(config), "memory_limit_bytes": 8 * GIB}
            memory |= {} if self.start.on_cpu else {"memory": "device"}
            payload = examples.compute_probe(samples_per_second=self.rate(config), **memory)
        message = "it overflows" if part == "numerics" and config.amp in self.rejects else ""
        found = Attempt(outcome=Outcome.OK, payload=payload, message=message)
        return Probe(part=part, config=config, attempt=Attempt(outcome=outcome) if outcome else found)

    def run(self, most: int = 60) -> list[Probe]:
        """Look until nothing more is wanted."""
        probes: list[Probe] = []
        for _ in range(most):
            if (planned := next_probe(replace(self.start, probes=tuple(probes)), self.space)) is None:
                return probes
            probes.append(self.answer(*planned))
        raise AssertionError("it does not end")


on_cpu = partial(Answerer, facts=examples.facts(epoch_samples=None))
on_gpu = partial(Answerer, facts=gpu_facts(epoch_samples=None))


def steps(probes: Sequence[Probe]) -> list[Config]:
    return [probe.config for probe in probes if probe.part == "compute"]


CASES: dict[str, tuple[Callable[..., Answerer], dict[str, Any]]] = {
    "larger batches pay": (on_cpu, {}),
    "a GPU": (on_gpu, {}),
    "smaller batches pay": (on_gpu, {"rate": lambda config: 1e5 / math.sqrt(config.batch_size)}),
    "memory is short": (on_gpu, {"memory": lambda config: GIB + config.batch_size * 2**25}),
    "memory jumps": (on_gpu, {"memory": lambda config: GIB * (9 if config.batch_size > 64 else 1)}),
    "nothing fits": (on_gpu, {"memory": lambda config: 9 * GIB}),
    "no look works": (on_cpu, {"fails": lambda part, config: Outcome.CRASHED}),
    "only the loader's look works": (on_cpu, {"fails": lambda p, c: Outcome.TIMEOUT if p == "compute" else None}),
    "baseline below": (on_cpu, {"bounds": {"batch_size": "64..256", "amp": "bf16", "threads": "1,4"}}),
    "baseline above": (
        on_gpu,
        {"bounds": {"batch_size": "16,24", "amp": "bf16,off"}, "baseline": Config(batch_size=512, amp="fp16")},
    ),
    "baseline between": (on_cpu, {"bounds": {"batch_size": "8,48,1000"}, "baseline": Config(batch_size=300)}),
    "one configuration": (on_gpu, {"bounds": {"batch_size": "32", "amp": "off", "num_workers": "0"}}),
    "every precision is rejected": (on_gpu, {"rejects": ["bf16", "fp16"], "bounds": {"amp": "bf16,fp16"}}),
    "every batch size": (on_cpu, {"bounds": {"batch_size": range(1, 600)}}),
}


@pytest.mark.parametrize(("make", "options"), CASES.values(), ids=CASES)
def test_looks_end_none_is_taken_twice_and_each_keeps_to_the_bounds_and_a_ladder_to_its_rungs(
    make: Callable[..., Answerer], options: dict[str, Any]
) -> None:
    answerer = make(**options)
    probes, allowed = answerer.run(), answerer.space.allowed
    assert (probes[0].part, probes[0].config.num_workers) == ("loader", 1)
    assert sum(probe.part == "loader" for probe in probes) <= 2
    assert set(Counter((probe.part, answerer.start.step_key(probe.config)) for probe in probes).values()) == {1}
    for config in (probe.config for probe in probes):
        assert config.batch_size in allowed["batch_size"]
        assert config.amp in allowed["amp"]
        assert config.intra_op_threads in allowed["threads"]
    assert {probe.config.num_workers for probe in probes if probe.part != "loader"} <= {0}
    groups = Counter((config.amp, answerer.start.threads(config)) for config in steps(probes))
    assert max(groups.values(), default=0) <= MAX_RUNGS == 6


@pytest.mark.parametrize("outcome", [Outcome.NUMERICS, Outcome.CRASHED, Outcome.USER_ERROR, Outcome.TIMEOUT])
@pytest.mark.parametrize("fails_from", [1, 128])
def test_a_precision_that_fails_for_another_reason_than_memory_is_left_alone(outcome: Outcome, fails_from: int) -> None:
    def fails(part: Part, config: Config) -> Outcome | None:
        return outcome if (part, config.amp) == ("compute", "bf16") and config.batch_size >= fails_from else None

    probes = on_gpu(fails=fails, bounds={"amp": "off,bf16,fp16"}).run()
    of_bf16 = [probe.attempt.outcome for probe in probes if (probe.part, probe.config.amp) == ("compute", "bf16")]
    assert of_bf16.count(outcome) == 1
    assert {config.amp for config in steps(probes)} == {"off", "bf16", "fp16"}
    if fails_from == 1:
        assert len(of_bf16) == 1


def test_half_precision_is_looked_at_where_fp32_leaves_too_little_memory_free() -> None:
    def memory(config: Config) -> int:
        """fp32 takes too much from 128 on, by a jump that the line does not foretell."""
        return round(GIB * ((7.5 if config.amp == "off" else 6) if config.batch_size >= 128 else 2))

    def rate(config: Config) -> float:
        return config.batch_size * (1.0 if config.amp == "off" else 0.8)

    probes = on_gpu(bounds={"amp": "off,bf16", "batch_size": "32,64,128"}, memory=memory, rate=rate).run()
    assert Config(batch_size=128, amp="bf16").step_key in {config.step_key for config in steps(probes)}


@pytest.mark.parametrize(
    ("files", "shared", "ahead"), [(None, None, 4), (400, None, 2), (None, 25, 1), (40, None, None), (None, 1, None)]
)
def test_a_look_at_the_loader_asks_ahead_for_what_there_is_room_for(
    files: int | None, shared: int | None, ahead: int | None
) -> None:
    start = on_cpu().start
    measured = examples.measurement(batch_tensors=100, batch_bytes=10 * 2**20)
    few = replace(host(), open_files=files, shm_bytes=None if shared is None else shared * 2**20)
    known = replace(start, host=few, trials=(examples.trial(config=on_cpu().space.base, measurement=measured),))
    part, config = there(next_probe(known, on_cpu().space))
    assert (part, config.num_workers, config.prefetch_factor) == (
        ("compute", 0, None) if ahead is None else ("loader", 1, ahead)
    )


@pytest.mark.parametrize(("fits", "untried"), [(128, None), (64, None), (0, "bf16")])
def test_where_fp32_does_not_fit_a_precision_is_compared_at_the_largest_half_that_does_and_else_untried(
    fits: int, untried: str | None
) -> None:
    def fails(part: Part, config: Config) -> Outcome | None:
        return Outcome.DEVICE_OOM if part == "numerics" and config.batch_size > fits else None

    answerer = on_gpu(baseline=Config(batch_size=256, amp="fp16"), bounds={"amp": "off,bf16,fp16"}, fails=fails)
    probes = answerer.run()
    assert {config.amp for config in steps(probes)} == {"off", "fp16", *(() if untried else ("bf16",))}
    assert not fits or [probe.config.batch_size for probe in probes if probe.part == "numerics"][-1] == fits
    assert untried_precision(replace(answerer.start, probes=tuple(probes)), answerer.space) == untried


def test_threads_that_the_baseline_sets_beside_an_accelerator_make_another_step_than_torchs_own() -> None:
    for threads, counts in ((1, {1, 2}), (2, {0}), (None, {0})):
        answerer = on_gpu(baseline=replace(examples.BASELINE, intra_op_threads=threads))
        asked = [answerer.space.base, *steps(answerer.run())]
        assert {answerer.start.threads(config) for config in asked} == counts
