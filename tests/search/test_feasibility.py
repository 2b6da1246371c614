from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import Config
from autotune.limits import MemoryLimit
from autotune.outcome import Outcome
from autotune.records import Attempt, Probe, Trial
from autotune.search.feasibility import LEAST_OWN, NO_DATA, Fitting, exceeds, refusals_of
from autotune.search.loader_model import LoaderModel
from autotune.search.observations import Observations
from autotune.search.step_model import LARGEST_STEP
from tests import examples
from tests.search.there import there
from tests.simulated import gpu_facts, host

MIB, GIB = 2**20, 2**30
LOADER = LoaderModel([examples.loader_trace(batch_bytes=10 * MIB, worker_memory_bytes=100 * MIB)], None)


def look(batch_size: int, device: int, own: int = 0, amp: Any = "off") -> Probe:
    """A look at a step: peak on a device of 80 GiB, and on the host."""
    compute = examples.compute_probe(
        peak_memory_bytes=device, memory="device", memory_limit_bytes=80 * GIB, host_memory_bytes=own
    )
    attempt = Attempt(outcome=Outcome.OK, payload=compute)
    return Probe(part="compute", config=Config(batch_size=batch_size, amp=amp), attempt=attempt)


def known(headroom: float) -> Observations:
    """A machine of which nothing was measured."""
    return Observations(facts=gpu_facts(), host=host(), memory_limit=MemoryLimit(headroom=headroom), trials=())


def fitting(
    *probes: Probe, memory: int = 10**6 * GIB, headroom: float = 0.0, trials: Any = (), **changes: Any
) -> Fitting:
    loader, open_files = changes.pop("loader", LOADER), changes.pop("open_files", None)
    machine = replace(host(), memory_bytes=memory, shm_bytes=None, open_files=open_files)
    limit = MemoryLimit(headroom=headroom)
    known = Observations(facts=gpu_facts(**changes), host=machine, memory_limit=limit, trials=trials, probes=probes)
    return Fitting(known, loader)


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from([16, 32, 64, 128]), st.integers(1, 60), min_size=1),
    st.integers(1, 120),
    st.floats(0, 0.5),
)
def test_what_is_larger_fits_only_where_the_smaller_does(peaks: dict[int, int], memory: int, headroom: float) -> None:
    growing = zip(sorted(peaks), sorted(peaks.values()), strict=True)
    known = fitting(*(look(b, gib * GIB, gib * GIB) for b, gib in growing), memory=memory * GIB, headroom=headroom)
    for workers in (0, 1, 8):
        fits = [
            known.refusal(Config(batch_size=b, num_workers=workers)) is None for b in (8, 16, 32, 64, 100, 256, 999)
        ]
        assert all(small or not large for small, large in pairwise(fits))
    fits = [known.refusal(Config(batch_size=64, num_workers=workers)) is None for workers in (0, 1, 2, 8, 64)]
    assert all(few or not many for few, many in pairwise(fits))


def test_what_others_hold_of_the_hosts_memory_cannot_be_used() -> None:
    looks, large = (look(32, GIB, own=GIB), look(64, GIB, own=2 * GIB)), Config(batch_size=128)
    assert fitting(*looks, memory=8 * GIB).refusal(large) is None
    beside_others = fitting(*looks, memory=8 * GIB, obtainable_host_bytes=3 * GIB)
    assert beside_others.refusal(Config(batch_size=80)) is None
    assert "of host memory; 3.0 GiB of 8.0 GiB may be used" in str(beside_others.refusal(large))


def test_of_several_peaks_at_one_batch_size_the_highest_counts() -> None:
    known = fitting(look(32, GIB), look(32, 30 * GIB), look(32, GIB))
    assert known.refusal(Config(batch_size=85)) is None
    assert "device memory" in str(known.refusal(Config(batch_size=86)))


def test_every_precision_has_its_own_peaks_and_one_without_takes_those_known_best() -> None:
    known = fitting(look(32, 40 * GIB), look(32, 10 * GIB, amp="bf16"), look(64, 20 * GIB, amp="bf16"))
    assert "device memory" in str(known.refusal(Config(batch_size=128)))
    assert known.refusal(Config(batch_size=128, amp="bf16")) is None
    assert known.refusal(Config(batch_size=128, amp="fp16")) is None


def test_what_was_measured_leaves_the_workers_out_but_not_more_than_half() -> None:
    config = Config(num_workers=8, prefetch_factor=2)
    taken = LOADER.memory(config)

    def own(peak: int) -> int:
        numbers = examples.measurement(host_memory_bytes=peak, peak_memory_bytes=peak)
        trials = (examples.trial(config=config, measurement=numbers),)
        sizes = (k * MIB for k in range(1, 4096))
        return next(m for m in sizes if fitting(memory=m, trials=trials).refusal(Config()) is None)

    assert own(taken + 700 * MIB) == pytest.approx(max(700 * MIB, LEAST_OWN * (taken + 700 * MIB)), abs=MIB)
    assert own(taken + 2000 * MIB) == 2000 * MIB


@pytest.mark.parametrize("batch", [32, 100])
def test_beyond_so_many_times_the_largest_that_ran_nothing_is_said_to_fit(batch: int) -> None:
    known = fitting(look(batch, 1), look(16, 1))
    assert known.refusal(Config(batch_size=LARGEST_STEP * batch)) is None
    assert "too far" in str(known.refusal(Config(batch_size=LARGEST_STEP * batch + 1)))


@given(st.integers(0, 1000), st.integers(1, 1000), st.floats(0, 0.9))
def test_exceeding_is_leaving_less_than_the_headroom_now_or_at_the_end_of_an_epoch(
    peak: int, limit: int, headroom: float
) -> None:
    numbers = examples.measurement(peak_memory_bytes=peak, memory_limit_bytes=limit)
    assert exceeds(numbers, known(headroom)) == (peak > limit * (1 - headroom))
    grows = examples.measurement(
        memory="host", peak_memory_bytes=0, memory_limit_bytes=limit, epoch_host_memory_bytes=peak
    )
    assert exceeds(grows, known(headroom)) == (peak > limit * (1 - headroom))


@pytest.mark.parametrize(("batch_size", "workers", "fits"), [(256, 2, False), (128, 2, True), (256, 0, True)])
def test_a_worker_has_its_batch_ready_before_the_loader_gives_up(batch_size: int, workers: int, fits: bool) -> None:
    loader = LoaderModel([examples.loader_trace(batch_size=32, build_seconds=(0.39,) * 4)], None)
    refusal = fitting(loader=loader, loader_timeout=3.0).refusal(Config(batch_size=batch_size, num_workers=workers))
    assert refusal == (None if fits else "a worker would take 3.1 s for a batch, but the loader's timeout is 3 s")


def device_trial(number: int, peak: int, limit: int) -> Trial:
    measured = examples.device_measurement(peak_memory_bytes=peak * GIB, memory_limit_bytes=limit * GIB)
    kind: Any = "search" if number else "baseline"
    return examples.trial(number=number, kind=kind, config=Config(batch_size=32 << number), measurement=measured)


def test_memory_that_others_took_for_a_while_closes_nothing_once_they_are_gone() -> None:
    """Others held 60 of 80 GiB while the second trial ran, and not any more while the third did."""
    trials = (device_trial(0, 5, 80), device_trial(1, 19, 20), device_trial(2, 30, 80))
    while_there, gone = replace(known(0.1), trials=trials[:2]), replace(known(0.1), trials=trials)
    assert not exceeds(there(trials[2].measurement), replace(gone, trials=(*trials, device_trial(3, 19, 20))))
    assert gone.device_limit == 80 * GIB
    later = replace(look(16, GIB), after=2)  # of 80
    assert replace(while_there, probes=(later,)).device_limit == 80 * GIB
    assert replace(while_there, probes=(replace(later, after=1),)).device_limit == 20 * GIB
    assert exceeds(there(trials[1].measurement), while_there)
    assert not exceeds(there(trials[1].measurement), gone)
    configs = [Config(batch_size=batch) for batch in (64, 128)]
    for observations, closed in ((while_there, 2), (gone, 0)):
        unfit = [Fitting(observations, LOADER).refusal(config) for config in configs]
        assert len(list(filter(None, refusals_of(configs, unfit, observations)))) == closed


@pytest.mark.parametrize(
    ("workers", "prefetch", "fits"), [(8, 2, True), (8, 4, False), (16, 2, False), (0, None, True)]
)
def test_batches_of_many_tensors_do_not_fit_into_few_open_files(workers: int, prefetch: int, fits: bool) -> None:
    loader = LoaderModel([examples.loader_trace(batch_tensors=40)], None)
    config = Config(num_workers=workers, prefetch_factor=prefetch)
    refusal = fitting(open_files=1024, headroom=0.1, loader=loader).refusal(config)
    assert refusal is None if fits else str(refusal).endswith("open files; 1024 are allowed (ulimit -n)")
    assert fitting(headroom=0.1, loader=loader).refusal(Config(num_workers=64, prefetch_factor=8)) is None


def with_idle(*trials: tuple[Config, int, bool]) -> Observations:
    """Trials, each with its number of idle workers, and whether of a stream."""
    measured = [
        examples.trial(
            number=number, config=config, measurement=examples.measurement(idle_workers=idle, is_uneven=is_of_stream)
        )
        for number, (config, idle, is_of_stream) in enumerate(trials)
    ]
    return replace(known(0.1), trials=tuple(measured))


@pytest.mark.parametrize(
    ("tried", "counts", "refused"),
    [
        ([(Config(num_workers=4), 0, False)], (0, 1, 2, 3, 4, 8), ()),
        ([(Config(num_workers=4), 1, True)], (0, 1, 2, 3, 4, 8), (4, 8)),
        ([(Config(num_workers=8), 3, True)], (0, 1, 2, 4, 6, 8, 12), (8, 12)),  # five need six
        ([(Config(num_workers=4), 1, True)], (0, 4), ()),
        ([(Config(num_workers=8), 7, True), (Config(num_workers=4), 1, True)], (0, 1, 2, 3, 4, 8), (4, 8)),
        ([(Config(num_workers=4), 1, True), (Config(num_workers=6), 0, False)], (0, 4, 6, 8), (8,)),
    ],
)
def test_no_more_workers_are_tried_than_get_data(tried: Any, counts: Any, refused: Any) -> None:
    configs = [Config(num_workers=count) for count in counts]
    why = refusals_of(configs, [None] * len(configs), with_idle(*tried))
    assert {config.num_workers: reason for config, reason in zip(configs, why, strict=True) if reason} == dict.fromkeys(
        refused, NO_DATA
    )


@pytest.mark.parametrize(("is_of_stream", "refused"), [(True, {16, 32, 64}), (False, {32, 64})])
def test_smaller_batches_of_an_indexed_dataset_may_reach_more_workers(is_of_stream: bool, refused: set[int]) -> None:
    observed = with_idle((Config(batch_size=32, num_workers=4), 2, is_of_stream))
    configs = [Config(batch_size=size, num_workers=count) for size in (16, 32, 64) for count in (2, 4)]
    why = refusals_of(configs, [None] * len(configs), observed)
    found = [config for config, reason in zip(configs, why, strict=True) if reason]
    assert {config.batch_size for config in found} == refused
    assert {config.num_workers for config in found} == {4}
