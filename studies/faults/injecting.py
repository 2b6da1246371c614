"""Runs a whole study into one trial of which a fault strikes, and says what became of it and what is left."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.api import tune
from autotune.config import load_config
from autotune.messages import Progress
from autotune.outcome import Outcome
from autotune.report.result import Result
from studies.faults.zoo import FAULTS, FLAG, NAME
from tests.processes import MARK, are_gone, marked

STRUCK = 1  # number of the trial that the fault strikes: the first after the baseline
BUDGET = 60.0  # seconds of a study at most; its search ends after three trials
HANG = 90.0  # seconds that a hang adds: it costs half a minute at least, and the process is new after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """What became of a study with a fault."""

    result: Result  # its answer
    outcome: Outcome  # what the trial that was struck is told as
    message: str  # the same in words
    recovery_seconds: float | None
    """From the end of the struck trial to the end of the next one that worked; ``None`` where there was none."""
    processes: tuple[str, ...]  # what still ran when it was over
    segments: tuple[str, ...]  # shared memory that it left behind
    is_valid: bool  # whether its answer was written and can be read


@dataclass(slots=True)
class _Switch:
    """Switches the fault on while the trial runs that it is to strike, and watches what is told."""

    flag: Path
    struck_at: float = 0.0
    recovered_at: float = 0.0

    def __call__(self, progress: Progress) -> None:
        trial = progress.finished
        if trial is not None:
            now = time.monotonic()
            if self.flag.exists():
                self.flag.unlink()
                self.struck_at = now
            elif self.struck_at and not self.recovered_at and trial.measurement is not None:
                self.recovered_at = now
        is_first = not self.struck_at and progress.phase == "search"
        if is_first and progress.running is not None:
            self.flag.touch()


def inject(name: str, seconds: float = BUDGET) -> Injected:
    """Run a study of so many seconds, 90 more for a hang, in which this fault strikes one trial."""
    fault, before = FAULTS[name], _segments()
    budget = seconds + (HANG if fault.outcome is Outcome.TIMEOUT else 0.0)
    with tempfile.TemporaryDirectory() as folder, _environment(name, Path(folder, "flag")):
        switch = _Switch(Path(folder, "flag"))
        result = tune(
            "studies.faults.zoo:build", device="cpu", budget=budget, trials=3, batch_size="16,64", amp="off", threads=1,
            num_workers=1 if fault.in_workers else 0, prefetch_factor=2, on_progress=switch,
            baseline={"batch_size": 8, "num_workers": 1 if fault.in_workers else 0, "threads": 1},
        )  # fmt: skip
        path = Path(folder, "autotune.yaml")
        result.config.save(path)
        is_valid = load_config(path) == result.config
        are_gone(lambda: marked(folder))
        processes = tuple(map(str, marked(folder)))
    struck = next(trial for trial in result.history if trial.number == STRUCK)
    return Injected(
        result=result,
        outcome=struck.outcome,
        message=struck.attempt.message,
        recovery_seconds=switch.recovered_at - switch.struck_at if switch.recovered_at else None,
        processes=processes,
        segments=tuple(sorted(_segments() - before)),
        is_valid=is_valid,
    )


@contextmanager
def _environment(name: str, flag: Path) -> Iterator[None]:
    os.environ |= {NAME: name, FLAG: str(flag), MARK: str(flag.parent)}
    try:
        yield
    finally:
        del os.environ[NAME], os.environ[FLAG], os.environ[MARK]


def _segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
