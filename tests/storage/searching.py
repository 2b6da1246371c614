"""A search on a simulated machine that says each trial as soon as it is kept; tests kill it.

python -m tests.storage.searching FILE
"""

from __future__ import annotations

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


@dataclass(kw_only=True)
class Slow(SimulatedMachine):
    """A machine whose measurements take a moment here too, so that one can be killed in them."""

    def measure(self, config, request: Request) -> Attempt:  # type: ignore[no-untyped-def]
        time.sleep(0.02)
        return super().measure(config, request)


def main(path: Path) -> None:
    machine, storage = Slow(cost=rough), StudyStorage(path)
    study = open_study(Setup(space=SPACE, facts=FACTS, host=host()), storage=storage)
    budget = Budget(100_000.0, machine.now)

    def tell(progress: Progress) -> None:
        if progress.finished is not None:
            sys.stdout.write(f"{progress.finished.config!r}\n")
            sys.stdout.flush()

    messages = Messages(budget, tell)
    search_only(machine, study, budget, messages)
    storage.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
