"""The whole program on a fake accelerator: the real runner, whose measuring process is a session in this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from autotune.config import Config
from autotune.encoding import to_json
from autotune.limits import DEFAULT_MEMORY_LIMIT, Budget
from autotune.machine.host import Gpu
from autotune.measure.session import Session
from autotune.messages import Messages
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from autotune.report.result import Result
from autotune.runner import local
from autotune.runner.local import ProcessRunner
from autotune.runner.process import ProcessLostError
from autotune.search.known import Known
from autotune.search.sampler import PredictiveSampler
from autotune.search.setup import Setup
from autotune.search.space import build_space
from autotune.search.study import TuningStudy
from autotune.search.tuner import Tuner
from autotune.settings import parse_knobs
from autotune.storage.open import StudyStorage
from autotune.workload import ImportedWorkload
from tests import examples
from tests.accelerator import Card, FakeAccelerator, Job, on_card, workload_of


class CardProcess:
    """A measuring process to the runner: a real ``Session``, whose opening costs time on the card's clock."""

    def __init__(self, card: Card, job: Job, opening: float) -> None:
        self._card, self._job, self.opening = card, job, opening
        self._session: Session | None = None
        self.opened = 0

    def open(self, ranks: int) -> dict[str, Any]:
        self._card.end_process()
        self._card.now += self.opening
        self._session = Session(workload_of(self._card, self._job), FakeAccelerator(self._card))
        self.opened += 1
        return {"opened": True}

    def ask(self, message: dict[str, Any], limit: float, *rest: Any) -> dict[str, Any]:
        assert self._session is not None
        if message["op"] == "load":
            return {"loaded": True}
        if message["op"] == "inspect":
            return {"facts": self._session.facts(), "script": None}
        begin, request = self._card.now, Request(**message["request"])
        attempt = self._session.measure(Config.from_document(message["config"]), request, message["room"])
        if self._card.now - begin > limit:
            self._card.now = begin + limit
            raise ProcessLostError(Outcome.TIMEOUT, "took too long", "")
        found: dict[str, Any] = to_json(attempt)
        return found

    def close(self) -> bool:
        self._session = None
        return True

    def stop(self) -> None:
        self.close()


class CardRunner(ProcessRunner):
    """The real runner of a job on a card; attempts take the seconds of the card's clock."""

    def __init__(self, card: Card, job: Job, opening: float = 2.0) -> None:
        super().__init__(ImportedWorkload(model="tests:job", dataset=None, path=()), patience=0.0)
        self.card, self.job = card, job
        self.process = CardProcess(card, job, opening)
        self.asked: list[tuple[Config, Request, Attempt]] = []

    def measure(self, config: Config, request: Request) -> Attempt:
        begin, opened = self.card.now, self.process.opened
        attempt = super().measure(config, request)
        opening = (self.process.opened - opened) * self.process.opening
        attempt = replace(attempt, seconds=self.card.now - begin, opening=opening)
        self.asked.append((config, request, attempt))
        return attempt


@contextmanager
def runner_on(card: Card, job: Job, opening: float = 2.0) -> Iterator[CardRunner]:
    runner = CardRunner(card, job, opening)
    with (
        on_card(card, job),
        patch.object(local, "MeasuringProcess", lambda *given: runner.process),
        patch.object(local, "DeviceLock"),
        patch.object(local, "cpu_usage", dict),
        patch.object(local, "suspended_seconds", float),
    ):
        yield runner


def tuned(
    runner: CardRunner,
    baseline: Config | None = None,
    budget: float = 180.0,
    seed: int = 0,
    storage: str | None = None,
    **given: Any,
) -> tuple[Result, Known]:
    card, time = runner.card, Budget(budget, runner.card.clock)
    base = baseline or Config(batch_size=32)
    facts = runner.inspect(base)
    opening, cpus = time.spent, int(runner.job.cpus)
    gpu = Gpu(uuid="GPU-fake", name="Fake Accelerator", memory_bytes=card.total, driver="580.0")
    host = examples.host(cpus=cpus, affinity_cpus=cpus, gpus=(gpu,), shm_bytes=None)
    space = build_space(facts, cpus, base, parse_knobs(given))
    setup = Setup(space=space, facts=facts, host=host, memory_limit=DEFAULT_MEMORY_LIMIT)
    run = Tuner(runner, setup, time, Messages(time), opening=opening, seed=seed, sleep=card.sleep)
    kept = StudyStorage(storage)
    try:
        return run.result(kept), TuningStudy(kept, setup, PredictiveSampler()).known
    finally:
        kept.close()
