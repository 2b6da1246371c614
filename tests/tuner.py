"""One of several tuners of a study, a process of its own: the whole program on a simulated machine that takes its time.

    python -m tests.tuner URL '{"trials": 60, "hangs_at": 5}'

Each line of its output is an event, as JSON.
"""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

from autotune.config import Config
from autotune.limits import Budget
from autotune.messages import Messages, Progress
from autotune.records import Attempt, Request
from autotune.search import forecast as forecast
from autotune.search.tuner import TunePlan, Tuner
from autotune.storage.server import Heartbeat, Limits
from autotune.storage.shared_keeper import SharedKeeper
from tests.simulated import SimulatedMachine, StepCost, few_of, gpu_facts, host

FACTS = gpu_facts()
SPACE = few_of(FACTS, amp="off", batch_size="16..512", num_workers="0..8")
HEARTBEAT = Heartbeat(interval=1, grace=5)
"""Short, so that a test need not wait for long, and long enough for a machine that has no time for a while."""


def rough(config: Config) -> StepCost:
    """Waiting depends on the configuration in a way that nothing foretells, so there is always more to try."""
    share = zlib.crc32(repr(config).encode()) / 2**32
    return StepCost(wait=1e-4 * config.batch_size * 30**share, compute=2e-6 * config.batch_size)


def say(event: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


@dataclass(kw_only=True)
class PatientMachine(SimulatedMachine):
    """Sleeps while it measures, and tells what it measures."""

    real_seconds: float = 0.03
    hangs_at: int | None = None
    """The measurement of training, counted from 1, that never ends."""

    def measure(self, config: Config, request: Request) -> Attempt:
        is_trial = request.part == "training" and not request.fresh
        if is_trial:
            say("measuring", config=config.to_document())
        hangs = is_trial and len(self.calls) + 1 == self.hangs_at
        sleep(600.0 if hangs else self.real_seconds)
        return super().measure(config, request)


def keeper_of(url: str, folder: Path = Path(), **options: Any) -> SharedKeeper:
    return SharedKeeper(url, local=folder / "autotune.study", **{"heartbeat": HEARTBEAT, **options})


def main(url: str, *, trials: int, budget: float = 300.0, seed: int = 0, answer: float = 20.0, **options: Any) -> None:
    forecast.HOPE = 5.0  # there is always something that may be faster, so all the trials are made
    machine = PatientMachine(cost=rough, noise=0.05, seed=seed, **options)

    def tell(progress: Progress) -> None:
        if progress.message:
            say("message", text=progress.message)
        if progress.finished:
            say("finished", number=progress.finished.number, kind=progress.finished.kind)

    keeper = keeper_of(url, limits=Limits(answer=answer))
    time = Budget(budget)
    plan = TunePlan(space=SPACE, facts=FACTS, host=host(), max_trials=trials)
    try:
        result = Tuner(machine, plan, time, Messages(time, tell)).result(keeper)
    finally:
        keeper.close()
    say("result", reason=result.stop_reason, notes=list(result.notes), rate=result.samples_per_second)


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2]))
