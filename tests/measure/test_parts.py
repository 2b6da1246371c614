"""Looks at the parts of a pipeline, from the parent's end to the measuring process and back."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from autotune.config import Config
from autotune.machine.host import inspect_host
from autotune.measure.process_memory import held_bytes
from autotune.measure.worker import Session
from autotune.outcome import Outcome
from autotune.probes import Anatomy, ComputeProbe, LoaderTrace
from autotune.records import Attempt, Measurement, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Workload
from tests import workloads
from tests.datasets import Squares
from tests.runner.test_local import OURS, SOUND, runner_of
from tests.workloads import SAMPLE_SECONDS

LOADER = Request(seconds=0.4, time_limit=60, part="loader")
COMPUTE = Request(seconds=0.4, time_limit=60, part="compute")
ANATOMY = Request(seconds=1.0, time_limit=60, part="anatomy")
TRAINING = Request(seconds=0.3, time_limit=60)
Found = TypeVar("Found", LoaderTrace, ComputeProbe, Measurement, Anatomy)

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are POSIX"),
    pytest.mark.usefixtures("shared_processes"),
]


def has_run(attempt: Attempt) -> bool:
    """A busy neighbour makes numbers suspect, but is no failure of a look."""
    return attempt.outcome in (Outcome.OK, Outcome.SUSPECT)


def found_in(attempt: Attempt, kind: type[Found]) -> Found:
    assert has_run(attempt), (attempt.message, attempt.details)
    assert isinstance(attempt.payload, kind)
    return attempt.payload


def traced(attempt: Attempt) -> LoaderTrace:
    return found_in(attempt, LoaderTrace)


@pytest.fixture(scope="module")
def sleeping() -> Iterator[ProcessRunner]:
    with runner_of("sleeping") as runner:
        runner.inspect(SOUND)
        yield runner


def test_a_look_inside_names_the_users_code(sleeping: ProcessRunner) -> None:
    attempt = sleeping.measure(SOUND, ANATOMY)
    assert (attempt.outcome, attempt.message) == (Outcome.OK, ""), attempt.details
    found = found_in(attempt, Anatomy)
    assert found.sample_seconds >= SAMPLE_SECONDS
    assert (found.code[0].where, found.synchronisations) == ("built-in time.sleep", ())


def test_what_a_look_at_the_step_gave_is_the_ceiling_of_training_after_it(sleeping: ProcessRunner) -> None:
    config = Config(batch_size=4, intra_op_threads=1)
    attempt = sleeping.measure(config, COMPUTE)
    ceiling = found_in(sleeping.measure(config, TRAINING), Measurement).ceiling_samples_per_second
    assert (ceiling == found_in(attempt, ComputeProbe).samples_per_second) == (attempt.outcome is Outcome.OK)


@pytest.mark.parametrize(("workers", "parts"), [(0, [COMPUTE]), (2, [LOADER, COMPUTE])])
def test_looks_and_training_of_other_batch_sizes_share_a_process(workers: int, parts: list[Request]) -> None:
    trained, looked_at = (Config(batch_size=size, num_workers=workers, intra_op_threads=1) for size in (8, 16))
    with runner_of("telling_process") as runner:
        runner.inspect(SOUND)
        first = found_in(runner.measure(trained, TRAINING), Measurement).loss
        for part in parts:
            assert runner.measure(looked_at, part).found
        assert found_in(runner.measure(trained, TRAINING), Measurement).loss == first


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the broken workloads break in this process too."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


ITEM = ("ValueError: item 3 is broken", "raise_value_error")
STEP = ("ValueError: cannot train on 7", "step")


@pytest.mark.usefixtures("breaks")
@pytest.mark.parametrize(
    ("make", "batch_size", "look", "told"),
    [
        (workloads.item_raises, 8, TRAINING, ITEM),
        (workloads.item_raises, 8, LOADER, ITEM),
        (workloads.item_raises_in_worker, 8, LOADER, ITEM),
        (workloads.collate_raises_in_worker, 8, LOADER, ("ValueError: cannot collate", "collate")),
        (workloads.item_raises, 64, ANATOMY, ITEM),
        (workloads.raising_at_batch_size_7, 7, ANATOMY, STEP),
        (workloads.item_raises, 64, COMPUTE, ITEM),
        (workloads.raising_at_batch_size_7, 7, COMPUTE, STEP),
    ],
    ids=[
        "item in training",
        "item",
        "item in worker",
        "collate",
        "item inside",
        "step inside",
        "item of the resident batch",
        "step",
    ],
)
def test_an_error_in_the_users_code_is_an_outcome_with_their_frames_and_none_of_ours(
    make: Callable[[], Workload], batch_size: int, look: Request, told: tuple[str, str]
) -> None:
    attempt = Session(make(), "cpu").measure(Config(batch_size=batch_size), look)
    assert (attempt.outcome, attempt.message, attempt.found) == (Outcome.USER_ERROR, told[0], False)
    assert 'workloads.py", line ' in attempt.details
    assert f", in {told[1]}\n" in attempt.details
    assert OURS not in attempt.details


@pytest.mark.usefixtures("breaks")
def test_a_worker_that_runs_out_of_memory_in_a_look_is_told_from_an_error_of_the_user() -> None:
    attempt = Session(workloads.worker_out_of_memory(), "cpu").measure(Config(batch_size=8), LOADER)
    assert (attempt.outcome, attempt.found) == (Outcome.HOST_OOM, False), (attempt.message, attempt.details)


class Names(Squares):
    """Looks at the names of a thousand samples for every item, which copies their pages into the worker."""

    def __init__(self) -> None:
        super().__init__(10**8)
        self._names = [f"{index:040}.jpg" for index in range(300_000)]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.001)
        generator = random.Random(index)
        assert all(len(generator.choice(self._names)) == 44 for _ in range(1000))
        return super().__getitem__(index)


def test_what_workers_copy_is_carried_on_to_the_end_of_an_epoch_and_no_further_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session(Workload(nn.Linear(1, 1), Names(), sampler=range(10**8)), "cpu")
    config = Config(batch_size=8, num_workers=2, intra_op_threads=1)
    found = found_in(session.measure(config, TRAINING), Measurement)
    assert found.epoch_host_memory_bytes is not None
    copies = found.epoch_host_memory_bytes - found.host_memory_bytes
    assert 2**20 < copies <= 2 * held_bytes()
    small = replace(inspect_host(), memory_bytes=found.host_memory_bytes // 2)
    monkeypatch.setattr("autotune.measure.session.inspect_host", lambda: small)
    refused = session.measure(config, TRAINING)
    assert (refused.outcome, refused.found) == (Outcome.HOST_OOM, False)
    assert re.match(r"loader workers copy the dataset as they read it: an epoch would need [\d.]+ of ", refused.message)


def session_with(step: Any) -> Session:
    return Session(Workload(nn.Linear(1, 1), Squares(256), training_step=step), "cpu")


def test_a_session_keeps_its_last_step_and_warms_another_for_another_batch_size() -> None:
    warmed: list[int] = []

    def step(model: nn.Module, batch: Any) -> Any:
        warmed.append(len(batch[0]))
        return model(batch[0]).sum()

    session = session_with(step)
    attempts = [session.measure(Config(batch_size=batch_size), COMPUTE) for batch_size in (8, 4)]
    assert all(has_run(attempt) for attempt in attempts)
    assert list(dict.fromkeys(warmed)) == [8, 4]
    warmed.clear()
    assert has_run(session.measure(Config(batch_size=4, num_workers=1), COMPUTE))
    assert bool(warmed) == (attempts[-1].outcome is Outcome.SUSPECT)


def test_a_part_that_was_not_asked_for_is_not_run() -> None:
    steps: list[object] = []
    traced(session_with(lambda model, batch: steps.append(batch)).measure(Config(batch_size=8), LOADER))
    assert not steps
