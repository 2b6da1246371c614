"""Every branch of the tree, on evidence that was built for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import Config
from autotune.diagnosis.findings import Cause, Evidence, Finding
from autotune.diagnosis.limits import find
from autotune.machine.host import Gpu
from autotune.outcome import Outcome
from autotune.probes import Anatomy, CodeShare, Synchronisation
from autotune.records import Attempt, Measurement, Probe, StepTime
from tests import examples

BATCH = 32
LOADED = Config(batch_size=BATCH, num_workers=2, prefetch_factor=2)
HOST = examples.host(cpus=4, affinity_cpus=4, memory_bytes=2**34, shm_bytes=2**33, versions={})
GPU = Gpu(uuid="GPU-1", name="a GPU", memory_bytes=2**36, driver="1")
ON_GPU = {"device": "cuda:0"}


def split(**parts: float) -> StepTime:
    """A step of 30 ms of computing, and what is added, in milliseconds."""
    computing = {"forward": 10.0, "backward": 17.0, "optimizer": 3.0}
    nothing = dict.fromkeys(("data_wait", "host_to_device", "other"), 0.0)
    return StepTime(**{name: value / 1000 for name, value in (nothing | computing | parts).items()})


def measured(step: StepTime, **changes: Any) -> Measurement:
    """What such steps give; on a resident batch they take 30 ms."""
    conditions = examples.conditions(**{"cpus": 4, **changes.pop("conditions", {})})
    rate = BATCH / step.total
    rates = {"samples_per_second": rate, "steady_samples_per_second": rate, "ceiling_samples_per_second": BATCH / 0.030}
    steps = {"steps": 100, "samples": 100 * BATCH, "step_time": step, "conditions": conditions}
    return examples.measurement(**(rates | steps | changes))


def clean(**changes: Any) -> Anatomy:
    """Code without any of the habits that are told."""
    return examples.anatomy(**{"synchronisations": (), **changes})


def evidence(step: StepTime, *, config: Config = LOADED, **changes: Any) -> Evidence:
    of_evidence = {name: changes.pop(name) for name in ("compute", "loader", "anatomy", "host") if name in changes}
    facts = examples.facts(**changes.pop("facts", {}))
    example = Evidence(config=config, facts=facts, host=HOST, measurement=measured(step, **changes))
    return replace(example, **of_evidence)


WAITS = split(data_wait=40.0)
COMPUTING = {"loader": examples.loader_trace(build_seconds=(0.14,) * 20, cpu_seconds=0.13, storage_share=0.0)}
BLOCKED = {"loader": examples.loader_trace(build_seconds=(0.14,) * 20, cpu_seconds=0.02, storage_share=0.0)}

HOT = {"gpu_slowdowns": ("software thermal slowdown",)}
BY_HOST = examples.compute_probe(samples_per_second=BATCH / 0.030, host_seconds=0.029)
PINNED, SLOW_PIN = replace(LOADED, pin_memory=True), examples.loader_trace(pin_seconds=0.068)
PINS_AND_RECEIVES = examples.loader_trace(pin_seconds=0.04, receive_seconds=0.03)
HALF_RATE = {"samples_per_second": BATCH / 0.060}
CROWDED = {"is_crowded": True, "foreign_cpus": 2.0}
THREADED = {"own_cpus": 3.9, "worker_threads": 4}

LIMITS: dict[str, tuple[Cause, Evidence]] = {
    "the step is all there is": (Cause.COMPUTE, evidence(split())),
    "a hot GPU": (Cause.HEAT, evidence(split(), facts=ON_GPU, conditions=HOT)),
    "a full GPU": (Cause.MEMORY, evidence(split(), facts=ON_GPU, conditions={"allocator_retries": 12})),
    "many small operators": (
        Cause.LAUNCH,
        evidence(split(), facts=ON_GPU, compute=BY_HOST, anatomy=clean(operators_per_step=4000)),
    ),
    "a throttled step": (Cause.QUOTA, evidence(split(), conditions={"throttled_share": 0.4})),
    "a throttled loader": (Cause.QUOTA, evidence(WAITS, conditions={"throttled_share": 0.4}, **COMPUTING)),
    "building without workers": (Cause.BUILDING, evidence(WAITS, config=Config(batch_size=BATCH), **COMPUTING)),
    "building with few workers": (Cause.BUILDING, evidence(WAITS, **COMPUTING)),
    "building, no probe of the loader": (Cause.BUILDING, evidence(WAITS, conditions={"own_cpus": 3.0})),
    "decoding": (Cause.DECODING, evidence(WAITS, anatomy=clean(), **COMPUTING)),
    "a cold disk": (Cause.STORAGE, evidence(WAITS, conditions={"storage_share": 0.95}, **BLOCKED)),
    "a network": (Cause.WAITING, evidence(WAITS, **BLOCKED)),
    "a network, no probe of the loader": (Cause.WAITING, evidence(WAITS, conditions={"own_cpus": 0.5})),
    "all CPUs decode": (Cause.CPUS, evidence(WAITS, conditions={"own_cpus": 3.9}, **COMPUTING)),
    "the step beside busy workers": (
        Cause.CPUS,
        evidence(split(forward=25.0, backward=35.0), conditions={"own_cpus": 3.9}),
    ),
    "threads in workers": (Cause.WORKER_THREADS, evidence(WAITS, conditions=THREADED, **COMPUTING)),
    "large batches through pipes": (
        Cause.RECEIVE,
        evidence(WAITS, ready_batches=3.0, loader=examples.loader_trace(receive_seconds=0.035)),
    ),
    "one thread pins": (Cause.PINNING, evidence(WAITS, config=PINNED, facts=ON_GPU, loader=SLOW_PIN)),
    "receiving that takes longer than training waits": (
        Cause.BUILDING,
        evidence(WAITS, ready_batches=3.0, loader=examples.loader_trace(receive_seconds=0.2)),
    ),
    "the pinning thread receives too": (
        Cause.PINNING,
        evidence(WAITS, config=PINNED, facts=ON_GPU, ready_batches=3.0, loader=PINS_AND_RECEIVES),
    ),
    "nothing is pinned": (Cause.RECEIVE, evidence(WAITS, facts=ON_GPU, ready_batches=3.0, loader=PINS_AND_RECEIVES)),
    "a slow copy": (Cause.COPY, evidence(split(host_to_device=25.0), facts=ON_GPU)),
    "a slow loop": (Cause.LOOP, evidence(split(other=15.0))),
    "short epochs": (Cause.RESTARTS, evidence(split(), restart_seconds=2.0, **HALF_RATE)),
    "a slow sampler": (Cause.SAMPLER, evidence(split(), order_seconds=0.6, epoch_samples=640, **HALF_RATE)),
    "the same samples from all": (Cause.SAME_SAMPLES, evidence(split(), unique_share=0.5, **HALF_RATE)),
    "a neighbour on the GPU": (
        Cause.SHARED_GPU,
        evidence(split(), facts=ON_GPU, conditions={"gpu_foreign_share": 0.6, "gpu_foreign_pids": (7,)}),
    ),
    "a busy neighbour": (Cause.NEIGHBOURS, evidence(WAITS, conditions=CROWDED, **COMPUTING)),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_cause_comes_first_with_evidence_and_something_to_do(name: str) -> None:
    cause, known = LIMITS[name]
    found = find(known)
    assert (found[0].cause, found[0].is_limit) == (cause, True)
    assert sum(finding.share or 0.0 for finding in found) <= 1.0 + 1e-9
    for finding in found:
        assert finding.evidence
        assert all(finding.evidence)
        assert finding.advice
        assert "  " not in finding.what + finding.advice


def advice_of(known: Evidence) -> Finding:
    return find(known)[0]


def tried(
    known: Evidence, rate: float | None = None, outcome: Outcome = Outcome.OK, idle: int = 0, **settings: Any
) -> Evidence:
    gave = None if rate is None else examples.measurement(samples_per_second=rate, idle_workers=idle)
    other = examples.trial(
        config=replace(known.config, **settings), measurement=gave, outcome=outcome, message=f"{outcome} in it"
    )
    return replace(known, trials=(*known.trials, other))


ONE_RATE = BATCH / 0.14
"""Samples per second of one worker that waits."""
AS_ONE = {"samples_per_second": ONE_RATE, "steady_samples_per_second": ONE_RATE}


def test_workers_that_are_served_one_at_a_time_are_told_as_that() -> None:
    found = advice_of(evidence(split(data_wait=110.0), **BLOCKED, **AS_ONE))
    assert found.cause is Cause.ONE_READER
    assert found.what.startswith("two workers are no faster than one: they wait for storage")
    assert "worker" not in found.advice
    alone = evidence(split(data_wait=140.0), config=Config(batch_size=BATCH), **BLOCKED)
    assert advice_of(alone).advice.startswith("use loader workers")
    beside = advice_of(tried(alone, ONE_RATE, num_workers=3))
    assert beside.what.startswith("three workers are no faster than one")
    assert "workers" not in beside.advice
    assert advice_of(tried(alone, 2 * ONE_RATE, num_workers=2)).cause is Cause.WAITING
    without_data = evidence(split(data_wait=110.0), idle_workers=1, **BLOCKED, **AS_ONE)
    assert advice_of(without_data).cause is Cause.WAITING


UNEQUAL: dict[str, dict[str, Any]] = {
    "a window with a pause": {"pauses": 1, "pause_seconds": 2.0},
    "a window beside others": {"conditions": examples.conditions(cpus=4, is_crowded=True, foreign_cpus=0.8)},
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_one_reader_is_concluded_from_windows_that_nothing_held_up(name: str) -> None:
    alone = evidence(split(data_wait=140.0), config=Config(batch_size=BATCH), **BLOCKED)
    quiet, unequal = (
        examples.trial(
            config=replace(alone.config, num_workers=workers),
            measurement=examples.measurement(samples_per_second=ONE_RATE, **changes),
        )
        for workers, changes in ((2, {}), (3, UNEQUAL[name]))
    )
    assert advice_of(replace(alone, trials=(unequal,))).cause is Cause.WAITING
    assert advice_of(replace(alone, trials=(unequal, quiet))).what.startswith("two workers are no faster than one")
    own = evidence(split(data_wait=110.0), **BLOCKED, **AS_ONE)
    held_up = replace(own, measurement=replace(own.measurement, pauses=1))
    assert (advice_of(own).cause, advice_of(held_up).cause) == (Cause.ONE_READER, Cause.WAITING)
    fast = examples.measurement(samples_per_second=2 * ONE_RATE, **UNEQUAL[name])
    refuted = examples.trial(config=replace(alone.config, num_workers=4), measurement=fast)
    assert advice_of(replace(alone, trials=(quiet, refuted))).cause is Cause.WAITING


@pytest.mark.parametrize(
    ("alone", "training", "cause", "said"),
    [
        (0.0, 0.0, Cause.WAITING, "loading a sample waits on a network, a lock or another process"),
        (0.9, None, Cause.STORAGE, "loading a sample waits for storage"),
        (0.0, 0.9, Cause.STORAGE, "loading a sample waits for storage"),
        (None, 0.9, Cause.STORAGE, "loading a sample waits for storage"),
        (None, 0.0, Cause.WAITING, "loading a sample waits on a network, a lock or another process"),
        (None, None, Cause.WAITING, "loading a sample waits on storage, a network, a lock or another process"),
    ],
)
def test_storage_is_excluded_only_where_the_bytes_are_known_to_come_from_memory(
    alone: float | None, training: float | None, cause: Cause, said: str
) -> None:
    loader = replace(BLOCKED["loader"], storage_share=alone)
    found = advice_of(evidence(WAITS, loader=loader, conditions={"storage_share": training}))
    assert (found.cause, found.what) == (cause, f"training waits for data: {said}")


def test_a_look_at_the_loader_beside_others_tells_no_waiting_from_computing() -> None:
    crowded = replace(BLOCKED["loader"], taken_share=0.4)
    known = evidence(WAITS, loader=crowded, conditions={"own_cpus": 3.0})
    assert known.blocked_share is None
    assert "training waits for data: building a batch takes CPU time" in advice_of(known).what
    assert not any("on a CPU" in figure for figure in advice_of(known).evidence)


RATE = BATCH / WAITS.total
NO_WORKERS = {"num_workers": 0, "prefetch_factor": None}


def with_workers(count: int, **changes: Any) -> Evidence:
    return evidence(WAITS, config=replace(LOADED, num_workers=count), **changes)


def restarting(**changes: Any) -> Evidence:
    return evidence(split(), samples_per_second=BATCH / 0.060, restart_seconds=2.0, **changes)


def of_more_workers(slow: dict[str, Any]) -> list[tuple[str, bool, Evidence]]:
    one, two, four = (with_workers(count, **slow) for count in (1, 2, 4))
    return [
        ("more workers", True, two),
        ("more workers", False, tried(two, 1.01 * RATE, num_workers=4)),
        ("more workers", True, tried(two, 1.5 * RATE, num_workers=4)),
        ("more workers", True, tried(two, 1.01 * RATE, num_workers=4, batch_size=64)),  # another step
        ("more workers", True, four),
        ("worker", False, with_workers(4, idle_workers=1, is_uneven=True, **slow)),  # some get no data
        ("more workers", False, tried(two, 1.5 * RATE, idle=2, num_workers=4)),
        ("more workers", True, tried(one, 1.5 * RATE, idle=2, num_workers=4)),
        ("more workers", True, tried(two, 1.5 * RATE, idle=2, num_workers=4, batch_size=2 * BATCH)),
    ]


ALONE = evidence(WAITS, config=Config(batch_size=BATCH), **COMPUTING)
LOST = tried(tried(ALONE, 0.42 * RATE, num_workers=1, intra_op_threads=1), 0.55 * RATE, num_workers=2, amp="bf16")
LARGER_FAILED = tried(with_workers(2, **COMPUTING), None, Outcome.SHM, num_workers=4, batch_size=512)
PIPED = LIMITS["large batches through pipes"][1]
ADVISED: list[tuple[str, bool, Evidence]] = [
    *(row for slow in (COMPUTING, BLOCKED) for row in of_more_workers(slow)),
    ("more workers", True, tried(LARGER_FAILED, None, Outcome.NUMERICS, num_workers=4)),  # the step failed
    ("more workers", False, with_workers(8, **COMPUTING)),
    ("more workers", True, with_workers(8, **BLOCKED)),  # they only wait
    ("use loader workers", True, ALONE),
    ("worker", False, LOST),
    ("use loader workers", True, tried(ALONE, 0.42 * RATE, num_workers=2, batch_size=8)),
    ("use loader workers", True, tried(LOST, 0.9 * RATE, num_workers=2, intra_op_threads=1)),
    ("no workers at all may be faster", True, PIPED),
    ("no workers at all may be faster", False, tried(PIPED, 0.9 * RATE, **NO_WORKERS)),
    ("no workers at all may be faster", False, tried(PIPED, 0.9 * RATE, **NO_WORKERS, intra_op_threads=1)),
    ("no workers at all may be faster", True, tried(PIPED, 1.5 * RATE, **NO_WORKERS)),
    ("fewer workers", True, restarting()),
    ("fewer workers", False, tried(restarting(), BATCH / 0.060, num_workers=1)),
    ("fewer workers", True, tried(restarting(), BATCH / 0.040, num_workers=1)),
    ("fewer workers", False, tried(restarting(), BATCH / 0.090, num_workers=1, amp="bf16")),
    ("fewer workers", True, tried(restarting(), BATCH / 0.090, num_workers=4, amp="bf16")),
    ("persistent_workers=True", True, restarting()),
    ("persistent_workers=True", True, restarting(persistence_gain=0.3)),
    ("persistent_workers", False, restarting(persistence_gain=-0.1)),
    ("persistent_workers", False, tried(restarting(), 500.0, persistent_workers=True)),
    ("persistent_workers", False, restarting(config=replace(LOADED, persistent_workers=True))),
]


@pytest.mark.parametrize(("words", "is_advised", "known"), ADVISED)
def test_workers_are_advised_unless_they_were_no_faster_or_have_no_cpus_or_no_data(
    words: str, is_advised: bool, known: Evidence
) -> None:
    assert (words in advice_of(known).advice) == is_advised


@pytest.mark.parametrize("workers", [0, 2])
def test_where_workers_failed_the_advice_says_so_and_why_and_the_way_out(workers: int) -> None:
    known = evidence(WAITS, config=Config(batch_size=BATCH, num_workers=workers), **COMPUTING)
    hung = Attempt(outcome=Outcome.TIMEOUT, message="no answer within 29 s: it was in __getitem__, data.py line 16")
    look = Probe(part="loader", config=Config(batch_size=BATCH), attempt=hung)
    found = advice_of(replace(known, looks=(look,)) if not workers else tried(known, None, Outcome.SHM, num_workers=4))
    assert "use loader workers" not in found.advice
    assert "more workers" not in found.advice
    said = f"one worker failed here ({hung.message}): create threads"
    assert found.advice.startswith("four workers failed here (shm in it): give it more" if workers else said)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_that_a_search_expects_nothing_of_are_not_advised(workers: int) -> None:
    known = evidence(WAITS, config=Config(batch_size=BATCH, num_workers=workers), **COMPUTING)
    assert "workers; " in advice_of(known).advice or "workers (num_workers); " in advice_of(known).advice
    assert advice_of(replace(known, are_workers_vain=True)).advice.startswith("do less for each sample")


def test_where_workers_would_not_fit_or_failed_the_way_out_is_said_once() -> None:
    why = "its batches in flight would need 900 open files; 512 are allowed (ulimit -n)"
    alone, two = (
        evidence(WAITS, config=Config(batch_size=BATCH, num_workers=workers), **COMPUTING) for workers in (0, 2)
    )
    for known, said in ((alone, "loader"), (two, "more")):
        advice = advice_of(replace(known, refusal_of_more_workers=why)).advice
        assert advice.startswith(f"{said} workers would not fit ({why}); ")
    files = Attempt(outcome=Outcome.SHM, message="too many open files; allow more (ulimit -n)")
    look = Probe(part="loader", config=Config(batch_size=BATCH), attempt=files)
    advice = advice_of(replace(alone, looks=(look,))).advice
    assert advice.startswith("one worker failed here (too many open files; allow more (ulimit -n)); ")


def test_where_others_take_most_of_the_cpus_nothing_else_is_claimed() -> None:
    crowded = evidence(WAITS, conditions=CROWDED, **COMPUTING)
    assert [finding.cause for finding in find(crowded) if finding.is_limit] == [Cause.NEIGHBOURS]
    said = "measure again: what else limits training is not known while they run"  # no word against a proof beside it
    assert advice_of(crowded).advice.endswith(said)
    less = evidence(WAITS, conditions=CROWDED | {"foreign_cpus": 1.0}, **COMPUTING)
    assert [finding.cause for finding in find(less) if finding.is_limit] == [Cause.BUILDING, Cause.NEIGHBOURS]
    assert all("is not known" not in finding.advice for finding in find(less))


def test_fewer_threads_are_not_advised_where_one_is_left_or_trials_with_fewer_were_no_faster() -> None:
    known = evidence(WAITS, conditions={"own_cpus": 3.9}, **COMPUTING)
    own = known.measurement.samples_per_second
    assert "fewer threads" in advice_of(known).advice
    assert "fewer threads" in advice_of(tried(known, 1.5 * own, intra_op_threads=1)).advice
    for other in (
        tried(known, 0.9 * own, intra_op_threads=1),
        replace(known, config=replace(known.config, intra_op_threads=1)),
    ):
        assert advice_of(other).cause is Cause.CPUS
        assert advice_of(other).advice == "do less for each sample"


def test_the_step_itself_is_told_with_its_batch_size_and_precision_and_what_it_has_is_not_advised() -> None:
    of_bf16 = advice_of(evidence(split(), config=replace(LOADED, amp="bf16")))
    assert "no data loader could make training with batches of 32 in bf16 much faster" in of_bf16.what
    assert not of_bf16.advice.startswith("amp")
    plain = evidence(split())
    assert advice_of(plain).advice.startswith("amp and larger batches first")
    rate = plain.measurement.samples_per_second
    larger_is_no_faster = tried(plain, rate, batch_size=64)
    assert advice_of(larger_is_no_faster).advice.startswith("amp first")
    assert advice_of(tried(larger_is_no_faster, rate, amp="bf16")).advice.startswith("torch.compile")
    looked_at = [examples.compute_probe(samples_per_second=factor * rate) for factor in (1.0, 1.5)]
    attempts = [Attempt(outcome=Outcome.OK, payload=look) for look in looked_at]
    config = replace(plain.config, amp="bf16")
    slow, fast = (replace(plain, looks=(Probe(part="compute", config=config, attempt=each),)) for each in attempts)
    assert advice_of(slow).advice.startswith("larger batches first")
    assert advice_of(fast).advice.startswith("amp and larger batches first")
    message, check = "in bf16 the loss becomes inf", examples.numerics_check()
    for attempt, is_advised in (
        (Attempt(outcome=Outcome.OK, payload=check), True),
        (Attempt(outcome=Outcome.OK, payload=check, message=message), False),
        (Attempt(outcome=Outcome.USER_ERROR, message=message), False),
        (Attempt(outcome=Outcome.TIMEOUT, message="took too long"), True),
    ):
        compared = replace(plain, looks=(Probe(part="numerics", config=config, attempt=attempt),))
        assert advice_of(compared).advice.startswith("amp") == is_advised
    many_small = advice_of(evidence(split(data_wait=3.0, other=3.0, host_to_device=3.0)))
    assert many_small.cause is Cause.COMPUTE
    assert "no data loader" not in many_small.what


READ_BACK = Synchronisation(operator="item", where="train.py:12 step", per_step=1.0)
BESIDES: dict[str, tuple[Cause | None, Evidence]] = {
    "nothing": (None, evidence(split(), anatomy=clean())),
    "values read back": (Cause.SYNCHRONISATION, evidence(split(), anatomy=clean(synchronisations=(READ_BACK,)))),
    "many tensors": (Cause.MANY_TENSORS, evidence(split(), anatomy=clean(batch_tensors=40))),
    "numpy samples": (Cause.NUMPY, evidence(split(), anatomy=clean(numpy_arrays=1))),
    "small samples one by one": (
        Cause.GETITEMS,
        evidence(split(), batch_bytes=128 * BATCH, anatomy=clean(sample_seconds=0.001, has_getitems=False)),
    ),
    "validation in the loop": (Cause.VALIDATION, evidence(split(), apart_share=0.3)),
    "spawned workers": (Cause.SPAWN, evidence(split(), first_batch_seconds=6.0, anatomy=clean(start_method="spawn"))),
    "a pickled dataset": (
        Cause.DATASET_COPIES,
        evidence(split(), anatomy=clean(start_method="spawn", dataset_bytes=2**30)),
    ),
    "a list of a million": (Cause.DATASET_COPIES, evidence(split(), anatomy=clean(python_objects=1_000_000))),
    "memory that grows": (
        Cause.DATASET_COPIES,
        evidence(split(), host_memory_bytes=2**30, epoch_host_memory_bytes=2**32),
    ),
    "CPUs lost by an import": (Cause.AFFINITY, evidence(split(), conditions={"cpus": 1, "own_cpus": 0.2})),
    "workers with one CPU": (Cause.AFFINITY, evidence(split(), conditions={"worker_cpus": 1})),
    "a cache that is freed": (Cause.EMPTY_CACHE, evidence(split(), anatomy=clean(cache_frees=1.0, cache_seconds=0.01))),
    "a cache that is freed now and then": (None, evidence(split(), anatomy=clean(cache_frees=0.1, cache_seconds=0.01))),
    "a shared card": (Cause.SHARED_GPU, evidence(split(), facts=ON_GPU, conditions={"gpu_foreign_bytes": 2**33})),
    "threads in workers": (Cause.WORKER_THREADS, evidence(split(), conditions={"worker_threads": 4})),
}


@pytest.mark.parametrize("name", BESIDES)
def test_what_is_worth_knowing_comes_after_the_limit(name: str) -> None:
    cause, known = BESIDES[name]
    found = find(known)
    assert found[0].cause is Cause.COMPUTE
    assert [finding.cause for finding in found if not finding.is_limit] == ([cause] if cause else [])


def test_lost_cpus_come_first_where_the_others_are_in_full_use() -> None:
    found = find(evidence(WAITS, conditions={"cpus": 1, "own_cpus": 0.95}, **COMPUTING))
    assert found[0].cause is Cause.AFFINITY
    assert found[0].evidence == (f"1 of {HOST.affinity_cpus} CPUs",)
    assert found[0].is_limit
    assert found[1].is_limit
    assert found[0].what.startswith(f"training may use 1 of {HOST.affinity_cpus} CPUs")
    assert "os.sched_setaffinity" in found[0].advice
    beside = find(evidence(WAITS, conditions=CROWDED | {"cpus": 3, "own_cpus": 2.9, "foreign_cpus": 0.3}, **COMPUTING))
    assert beside[0].cause is Cause.AFFINITY
    assert sum(finding.share or 0.0 for finding in beside if finding.is_limit) <= 1
    assert find(evidence(WAITS, conditions={"cpus": 1, "own_cpus": 0.3}, **COMPUTING))[0].cause is not Cause.AFFINITY


HALF = {"samples_per_second": BATCH / 0.060, "steady_samples_per_second": BATCH / 0.060}
AT_STARTS = {"steady_samples_per_second": BATCH / 0.030, "restart_seconds": 2.0}
SHARES: dict[str, tuple[dict[Cause, float | None], Evidence]] = {
    "what takes the most time comes first, the next after it": (
        {Cause.COPY: 40 / 90, Cause.WAITING: 20 / 90},
        evidence(split(data_wait=20.0, host_to_device=40.0), facts=ON_GPU, **BLOCKED),
    ),
    "a slow launch is told beside others by the time it takes": (
        {Cause.LAUNCH: 30 / 50, Cause.WAITING: 20 / 50},
        evidence(split(data_wait=20.0), facts=ON_GPU, compute=BY_HOST, anatomy=clean(), **BLOCKED),
    ),
    "a queue that drained in the window hides no late loader": (
        {Cause.WAITING: 0.5}, evidence(split(), **HALF, **BLOCKED)
    ),
    "waiting at the start of epochs is no late loader": (
        {Cause.RESTARTS: 0.5}, evidence(split(data_wait=30.0), **AT_STARTS)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARES)
def test_limits_come_by_the_share_of_the_time_that_each_takes(name: str) -> None:
    shares, known = SHARES[name]
    found = find(known)
    assert [finding.cause for finding in found] == list(shares)
    assert [finding.share for finding in found] == pytest.approx(list(shares.values()))


@pytest.mark.parametrize(
    ("host", "utilisation", "waits", "cause"),
    [
        (0.026, None, False, Cause.LAUNCH),
        (0.026, 0.97, False, Cause.LAUNCH),  # short kernels, one after the other, count as busy
        (0.024, 0.4, False, Cause.COMPUTE),
        (0.030, None, True, Cause.COMPUTE),
        (0.030, 0.97, True, Cause.COMPUTE),
        (0.030, 0.4, True, Cause.LAUNCH),
    ],
)
def test_the_hosts_time_tells_a_slow_launch_unless_the_step_waits_for_the_device(
    host: float, utilisation: float | None, waits: bool, cause: Cause
) -> None:
    code = clean(synchronisations=(READ_BACK,) if waits else ())
    compute, conditions = replace(BY_HOST, host_seconds=host), {"gpu_utilisation": utilisation}
    known = evidence(split(), facts=ON_GPU, compute=compute, anatomy=code, conditions=conditions)
    assert find(known)[0].cause is cause
    scaled = replace(known, config=replace(known.config, amp="fp16" if waits else "bf16"), anatomy=clean())
    assert find(scaled)[0].cause is cause


def test_the_code_that_takes_the_time_is_named() -> None:
    anatomy = clean(
        code=(CodeShare(where="data.py:7 decode", share=0.7), CodeShare(where="data.py:9 crop", share=0.05))
    )
    found = advice_of(evidence(WAITS, anatomy=anatomy, **COMPUTING))
    assert "70 % in data.py:7 decode" in found.evidence
    assert not any("crop" in figure for figure in found.evidence)
    collating = clean(collate_seconds=0.032, sample_seconds=0.001)
    assert (
        "collating is 50 % of building a batch" in advice_of(evidence(WAITS, anatomy=collating, **COMPUTING)).evidence
    )


@pytest.mark.parametrize(
    ("collating", "sample", "cause"),
    [(0.002, 1e-3, Cause.DECODING), (0.03, 5e-4, Cause.COLLATING), (0.0, 1.5e-5, Cause.COLLATING)],
)
def test_where_nothing_is_decoded_no_decoder_is_advised(collating: float, sample: float, cause: Cause) -> None:
    anatomy = clean(collate_seconds=collating, sample_seconds=sample)
    found = advice_of(evidence(WAITS, anatomy=anatomy, **COMPUTING))
    assert found.cause is cause
    assert ("decod" in found.what + found.advice) is (cause is Cause.DECODING)
    assert found.advice.startswith("more workers; ")


def test_where_nobody_has_looked_inside_no_code_is_blamed_and_what_looks_there_is_named() -> None:
    known = evidence(WAITS, **COMPUTING)
    found = advice_of(known)
    assert found.what == "training waits for data: building a batch takes CPU time"
    assert "decod" not in found.advice
    assert found.advice.endswith("do less for each sample; python -m autotune diagnose tells which code takes the time")
    failed = Probe(part="anatomy", config=known.config, attempt=Attempt(outcome=Outcome.TIMEOUT, message="too long"))
    again = advice_of(replace(known, looks=(failed,)))
    assert again.advice.endswith("do less for each sample")  # it was diagnose that looked


@given(
    wait=st.floats(0, 200),
    copy=st.floats(0, 200),
    other=st.floats(0, 200),
    forward=st.floats(1, 200),
    slowdown=st.floats(1, 4),
    on_gpu=st.booleans(),
    workers=st.integers(0, 8),
)
def test_there_is_always_a_limit_and_each_cause_is_told_once(
    wait: float, copy: float, other: float, forward: float, slowdown: float, on_gpu: bool, workers: int
) -> None:
    step = split(data_wait=wait, host_to_device=copy, other=other, forward=forward)
    rate = BATCH / step.total
    config = Config(batch_size=BATCH, num_workers=workers)
    facts = ON_GPU if on_gpu else {}
    found = find(evidence(step, config=config, samples_per_second=rate / slowdown, facts=facts, anatomy=clean()))
    causes = [finding.cause for finding in found]
    limits = [finding for finding in found if finding.is_limit]
    assert found[0].is_limit
    assert list(found[: len(limits)]) == limits
    assert len(set(causes)) == len(causes)
    assert all(finding.share is None or 0 <= finding.share <= 1 for finding in found)
