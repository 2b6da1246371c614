"""The whole program on a fake accelerator: search, guard of precisions, diagnosis, check and report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from autotune import diagnostics as diagnosis
from autotune.comparison import Side, checked, read_promise
from autotune.config import Config
from autotune.diagnosis.findings import Cause
from autotune.limits import Budget
from autotune.measure.rank_group import RankGroup
from autotune.measure.session import Session
from autotune.messages import Messages
from autotune.outcome import Outcome
from autotune.records import Request
from autotune.report.html import html_report
from autotune.result import Verdict
from autotune.runner.process import ProcessLostError
from autotune.search import agenda
from autotune.search.read import read_study
from studies.openings.run import on_accelerator
from tests.accelerator import GIB, Card, FakeAccelerator, Job, on_card, workload_of
from tests.on_card import CardRunner, runner_on, tuned

pytestmark = pytest.mark.machine

FEW = {"num_workers": "0,4", "prefetch_factor": 2}
FED = Config(batch_size=64, num_workers=8, prefetch_factor=4, pin_memory=True)
QUICK = Job(fixed=0.001, sample=1e-3, half=0.4, weights=GIB, activations=300 * 2**20, sample_bytes=600_000, build=1e-3)


def test_half_precision_is_looked_at_in_three_minutes_however_long_sessions_take_to_open() -> None:
    row = on_accelerator("H200, decoding of 8 ms", seed=100)
    assert row["half precision after"]
    assert float(str(row["share"])) >= 0.9
    assert float(str(row["seconds"])) <= 180 + 15


def over_the_limit(runner: CardRunner, room: Callable[[float], float]) -> list[Any]:
    found, now = [], 0.0
    for config, request, attempt in runner.asked:
        now += attempt.seconds
        part = attempt.measurement or attempt.compute
        peak = part.peak_memory_bytes if part else 0
        if attempt.outcome is Outcome.DEVICE_OOM or peak > 0.9 * room(now):
            found.append((config, request.part, attempt.outcome, peak / GIB))
    return found


def test_beside_a_neighbour_on_the_card_nothing_takes_more_than_is_left() -> None:
    taken = 0.75
    card = Card(neighbour=lambda seconds: round(taken * 80 * GIB))
    with runner_on(card, QUICK) as runner:
        result, _ = tuned(runner, budget=120.0, **FEW)
    assert not over_the_limit(runner, lambda now: card.total * (1 - taken) - card.context)
    assert result.config.batch_size >= 64


def test_a_neighbour_that_comes_and_goes_closes_no_batch_size() -> None:
    """It takes nearly the whole card before half precision is looked at, and gives it back half a minute later."""
    card = Card(neighbour=lambda seconds: round(0.93 * 80 * GIB) if 8 < seconds < 25 else 0)
    with runner_on(card, QUICK) as runner:
        result, known = tuned(runner, budget=150.0, **FEW)
    outcomes = {attempt.outcome for _, _, attempt in runner.asked}
    assert outcomes == {Outcome.OK, Outcome.SUSPECT}
    forecast = known.forecast
    fits = [c for c in forecast.configs if QUICK.peak(c.batch_size, c.amp) < 0.85 * (card.total - card.context)]
    closed = {str(forecast.refusal(config)) for config in fits} - {"None"}
    assert all(why.startswith("batches beyond") for why in closed)  # what was not climbed to, whoever held the memory
    assert QUICK.rate(card, result.config) >= 0.9 * max(QUICK.rate(card, config) for config in fits)


def test_probes_that_a_neighbour_made_fail_are_taken_again_so_many_times_where_it_stays() -> None:
    card = Card(neighbour=lambda seconds: round(0.93 * 80 * GIB) if seconds > 8 else 0)
    with runner_on(card, QUICK) as runner, patch.object(agenda, "MOST_RETAKEN", 2):
        result, _ = tuned(runner, budget=80.0, **FEW)
    assert result.verdict is not Verdict.FASTER
    lost = [attempt for _, request, attempt in runner.asked if request.part != "training" and not attempt.found]
    assert len(lost) == 3 + 2


def test_want_of_memory_while_loading_is_not_the_batch_s_fault_where_there_was_room_before() -> None:
    with runner_on(Card(), QUICK) as runner:
        runner.inspect(FED)
        full = ProcessLostError(Outcome.DEVICE_OOM, "no room for a context", "")
        with patch.object(runner.process, "open", side_effect=full):
            attempt = runner.measure(FED, Request(seconds=1.0, fresh=True))
    assert (attempt.outcome, attempt.message) == (Outcome.SUSPECT, "no room for a context")


@pytest.mark.parametrize(("room", "outcome"), [((0, 80), Outcome.SUSPECT), ((80, 0), Outcome.DEVICE_OOM)])
def test_a_rank_whose_own_card_others_have_filled_wants_no_smaller_batch(
    room: tuple[int, int], outcome: Outcome
) -> None:
    card = Card(neighbour=lambda seconds: round(0.93 * 80 * GIB))
    with on_card(card, QUICK):
        session = Session(workload_of(card, QUICK), FakeAccelerator(card), group=RankGroup(rank=1))
        config = Config(batch_size=4096)
        attempt = session.measure(config, Request(seconds=1.0), [each * GIB for each in room])
    assert attempt.outcome is outcome, attempt
    assert ("others have taken" in attempt.message) == (outcome is Outcome.SUSPECT)


LIMITS: dict[str, tuple[Cause, Job, dict[str, Any], Card]] = {
    "compute": (Cause.COMPUTE, Job(sample=1e-3), {}, Card()),
    "compute in half precision": (Cause.COMPUTE, Job(sample=1e-3, half=0.4), {"amp": "bf16"}, Card()),
    "launches": (Cause.LAUNCH, Job(sample=1e-5, kernels=4000), {}, Card()),
    "decoding in the loop": (Cause.DECODING, Job(sample=1e-4, build=1e-3), {"num_workers": 0}, Card()),
    "decoding in workers": (Cause.DECODING, Job(sample=1e-4, build=4e-3), {"num_workers": 2}, Card()),
    "a network": (Cause.WAITING, Job(sample=1e-4, build=4e-3, cpu_share=0.05), {"num_workers": 2}, Card()),
    "copies": (Cause.COPY, Job(sample=1e-4, sample_bytes=2**22), {"pin_memory": False}, Card()),
    "pinned copies": (Cause.COPY, Job(sample=1e-5, sample_bytes=2**22, pinning=1e12), {}, Card()),
    "the pinning thread": (Cause.PINNING, Job(sample=1e-5, sample_bytes=2**20, pinning=1e9), {}, Card()),
    "receiving": (Cause.RECEIVE, Job(sample=1e-4, receive=0.05), {}, Card()),
    "heat": (Cause.HEAT, Job(sample=1e-3), {}, Card(speed=lambda seconds: 0.7)),
}


@pytest.mark.parametrize("case", LIMITS)
def test_the_right_limit_is_named_first(case: str) -> None:
    cause, job, settings, card = LIMITS[case]
    config = replace(FED, **({"prefetch_factor": None} if settings.get("num_workers") == 0 else {}), **settings)
    with runner_on(card, job) as runner, patch.object(diagnosis, "ProcessRunner", lambda *given, **options: runner):
        found = diagnosis.diagnose("tests:job", config)
    assert found.bottleneck is cause, [finding.what for finding in found.findings]


def test_a_precision_in_which_the_loss_is_lost_is_left_out_however_fast_it_is() -> None:
    with runner_on(Card(), replace(QUICK, diverges=True)) as runner:
        result, _ = tuned(runner, budget=90.0, **FEW)
    assert result.config.amp == "off"
    assert any(note.startswith("in bf16 the loss becomes nan at step 1") for note in result.notes)
    assert not [config for config, request, _ in runner.asked if config.amp != "off" and request.part != "numerics"]


@pytest.mark.filterwarnings("ignore:.*was made with 16 CPUs:UserWarning")
def test_the_answer_is_written_checked_and_shown(tmp_path: Path) -> None:
    card = Card(total=24 * GIB, spread=0.005)
    with runner_on(card, QUICK) as runner:
        result, _ = tuned(
            runner, budget=60.0, num_workers="0,4", prefetch_factor=2, storage=str(tmp_path / "study.log")
        )
        result.config.save(tmp_path / "best.yaml")
        promise = read_promise(tmp_path / "best.yaml")
        sides = Side("baseline", promise[1], runner), Side("answer", promise[0], runner)
        found = checked(sides, Budget(40.0, card.clock), Messages())
    assert result.verdict is Verdict.FASTER
    assert found.verdict == "holds"
    page = html_report(read_study(tmp_path / "study.log"))
    assert "Fake Accelerator" in page
    assert "GiB device" in page
