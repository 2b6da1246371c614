"""Have one of two ranks fail in every way, five times each: is it told, is anything left, does the next trial notice?

    python -m studies.ranks.failures

Writes ``recorded/failures.json`` beside this script.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from autotune.machine.host import inspect_host
from tests.ranks.failing import FAILURES, strike

RECORDED = Path(__file__).resolve().parent / "recorded" / "failures.json"
REPETITIONS = 5


def main() -> None:
    trials = []
    for how in FAILURES:
        for _ in range(REPETITIONS):
            trials.append(struck(how))
            print(json.dumps(trials[-1]), file=sys.stderr)
    host = inspect_host()
    machine = {"cpu_model": host.cpu_model, "cpus": host.cpus, "versions": dict(host.versions)}
    text = json.dumps({"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine, "trials": trials}, indent=2)
    RECORDED.write_text(text + "\n", encoding="utf-8")


def struck(how: str) -> dict[str, object]:
    """Have a rank fail once, and say what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        found = strike([how], Path(folder) / "failed")[how]
    return {
        "how": how,
        "outcome": found.attempt.outcome,
        "message": found.attempt.message,
        "seconds": round(found.seconds, 1),
        "is_trial_gone": found.is_trial_gone,
        "next": found.next.outcome,
        "is_all_gone": found.is_all_gone,
    }


if __name__ == "__main__":
    main()
