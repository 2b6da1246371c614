"""Runs a whole study into one trial of which a fault strikes, and says what became of it and what is left."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.api import tune
from autotune.config import load_config
from autotune.messages import Progress
from autotune.records import Outcome
from autotune.result import Result
from tests.faults.zoo import FAULTS, FLAG, NAME

STRUCK = 1
"""Number of the trial that the fault strikes: the first after the baseline."""
BUDGET = 60.0
"""Seconds of a study at most; its search ends after three trials."""
HANG = 90.0
"""Seconds that a hang adds: it costs half a minute at least, and the process is new after it."""
GONE = 10.0
"""Seconds in which nothing may be left of a study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """What became of a study with a fault."""

    result: Result
    """Its answer."""
    outcome: Outcome
    """What the trial that was struck is told as."""
    message: str
    """The same in words."""
    recovery_seconds: float | None
    """From the end of the struck trial to the end of the next one that worked; ``None`` where there was none."""
    processes: tuple[str, ...]
    """What still ran when it was over."""
    segments: tuple[str, ...]
    """Shared memory that it left behind."""
    is_valid: bool
    """Whether its answer was written and can be read."""


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
            "tests.faults.zoo:build", device="cpu", budget=budget, trials=3, batch_size="16,64", amp="off", threads=1,
            num_workers=1 if fault.in_workers else 0, prefetch_factor=2, on_progress=switch,
            baseline={"batch_size": 8, "num_workers": 1 if fault.in_workers else 0, "threads": 1},
        )  # fmt: skip
        path = Path(folder, "autotune.yaml")
        result.config.save(path)
        is_valid = load_config(path) == result.config
        processes = _left(str(switch.flag))
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
    os.environ |= {NAME: name, FLAG: str(flag)}
    try:
        yield
    finally:
        del os.environ[NAME], os.environ[FLAG]


def _segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()


def _left(flag: str) -> tuple[str, ...]:
    """Wait for everything with the flag's path in its environment to end; return what does not."""
    limit = time.monotonic() + GONE
    while (found := list(_living(flag))) and time.monotonic() < limit:
        time.sleep(0.05)
    return tuple(found)


def _living(flag: str) -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            is_own = process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE
            if not is_own and process.environ().get(FLAG) == flag:
                yield " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
