"""Searches on a simulated machine that say each trial as soon as it is kept.

``python -m tests.storage.searching`` begins one in a fork for each line that it reads, which names its file, and kills
it at the next line, which is empty.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from autotune.limits import Budget
from autotune.messages import Messages, Progress
from autotune.records import Attempt, Request
from autotune.search.setup import Setup
from autotune.search.study import open_study
from autotune.storage.open import StudyStorage
from tests.simulated import SimulatedMachine, few_of, gpu_facts, host, search_only
from tests.storage.test_tuners import rough

FACTS = gpu_facts()
SPACE = few_of(FACTS, amp="off", batch_size="16..512", num_workers="0..8")
KILLED = "killed"
"""What is said once a search is no more."""


@dataclass(kw_only=True)
class Slow(SimulatedMachine):
    """A machine whose measurements take a moment here too, so that one can be killed in them."""

    def measure(self, config, request: Request) -> Attempt:  # type: ignore[no-untyped-def]
        time.sleep(0.02)
        return super().measure(config, request)


def search(path: Path) -> None:
    machine, storage = Slow(cost=rough), StudyStorage(path)
    study = open_study(Setup(space=SPACE, facts=FACTS, host=host()), storage=storage)
    budget = Budget(100_000.0, machine.now)

    def tell(progress: Progress) -> None:
        if progress.finished is not None:
            say(progress.finished.config)

    messages = Messages(budget, tell)
    search_only(machine, study, budget, messages)
    storage.close()


def say(what: object) -> None:
    sys.stdout.write(f"{what!r}\n")
    sys.stdout.flush()


def main() -> None:
    process = 0
    for line in sys.stdin:
        if path := line.strip():
            if (process := os.fork()) == 0:
                search(Path(path))
                say("ended by itself")
                os._exit(0)
        else:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            say(KILLED)


if __name__ == "__main__":
    main()
