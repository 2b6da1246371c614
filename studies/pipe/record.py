"""Spoil replies of real measuring processes: is each an outcome, and is the next reply right?

    python -m studies.pipe.record 200

Writes ``recorded/replies.json`` beside this script.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from autotune.config import Config
from autotune.host import inspect_host
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.corrupting import SPOILT

RECORDED = Path(__file__).resolve().parent / "recorded" / "replies.json"
SOUND = 8
"""The batch size of the request after each."""
REQUEST = Request(seconds=0.1, time_limit=60)


def main(count: int) -> None:
    chance = random.Random(0)
    replies = []
    with ProcessRunner(describe("tests.corrupting:corrupting"), "cpu") as runner:
        runner.inspect(Config(batch_size=SOUND))
        for _ in range(count):
            replies.append(spoil(runner, chance.choice(list(SPOILT))))
            print(json.dumps(replies[-1]), file=sys.stderr)
    host = inspect_host()
    record = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": {"cpu_model": host.cpu_model, "cpus": host.cpus, "versions": dict(host.versions)},
        "outcomes": Counter(f"{reply['how']}: {reply['outcome']}" for reply in replies),
        "wrong": sum(reply["next_loss"] != SOUND for reply in replies),
        "replies": replies,
    }
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def spoil(runner: ProcessRunner, how: str) -> dict[str, object]:
    """Have one reply spoilt, and say what became of it and of the next; each loss is the batch size asked for.

    Where a reply was sent twice, the second one is there when the next request is made: that one is lost, too.
    """
    spoilt = runner.measure(Config(batch_size=SPOILT[how]), REQUEST)
    lost = runner.measure(Config(batch_size=SOUND), REQUEST) if how == "twice" else None
    following = runner.measure(Config(batch_size=SOUND), REQUEST)
    return {
        "how": how,
        "outcome": spoilt.outcome,
        "message": spoilt.message,
        "loss": spoilt.measurement and spoilt.measurement.loss,
        "lost": lost and lost.message,
        "next": following.outcome,
        "next_loss": following.measurement and following.measurement.loss,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
