"""A tuner on a Ray cluster, a process of its own.

    python -m tests.clustertuner '{"workload": "tests.workloads:sleeping", "trials": 20}'

Each line of its output is an event, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from autotune import tuning
from autotune.errors import AutotuneError
from autotune.interrupts import interruptible
from autotune.records import Progress
from autotune.search import outlook


def say(event: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def tell(progress: Progress) -> None:
    if progress.message:
        say("message", text=progress.message)
    if progress.running:
        say("running", phase=progress.phase, config=progress.running.to_document())
    if trial := progress.finished:
        say(
            "finished",
            kind=trial.kind,
            outcome=trial.outcome,
            host=trial.host,
            number=trial.number,
            config=trial.config.to_document(),
        )


def main(
    workload: str, *, hope: float = outlook.HOPE, confirming: float = tuning.INTERRUPTED_SECONDS, **options: Any
) -> int:
    outlook.HOPE = hope  # how much is hoped for decides how many trials are made
    tuning.INTERRUPTED_SECONDS = confirming  # a busy machine may need more
    try:
        with interruptible():
            result = tuning.tune(workload, engine="ray", device="cpu", on_progress=tell, **options)
    except AutotuneError as error:
        say("error", kind=type(error).__name__, text=str(error))
        return error.exit_code
    say(
        "result",
        reason=result.stop_reason,
        notes=list(result.notes),
        verdict=result.verdict,
        rounds=result.rounds,
        speedup=result.speedup,
    )
    return 0


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    sys.exit(main(options.pop("workload"), **options))
