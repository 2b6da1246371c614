"""Measures a script of a git repository as it is, and as it was at a commit in several ways, in the working folder.

``python -m tests.scripts.basing REVISION SECONDS WAY:SCRIPT ...`` prints a line of JSON for each. The way is "present",
a kind of ``tests.scripts.holding`` for the commit's side, or "beneath": a layer over the files of a first session. What
a kind gives up stays so.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from autotune.config import Config
from autotune.errors import AutotuneError
from autotune.records import Request
from autotune.runner import local
from autotune.runner.revision import resolve
from autotune.workload import Script
from tests.scripts.holding import DOMAINS, InTurn, restrict


def main(revision: str, seconds: str, *sides: str) -> None:
    base, runner, given_up = resolve(revision), InTurn(), ""
    try:
        for side in sides:
            way, path = side.split(":")
            script = Script.of((path,))
            if DOMAINS.get(way) and way != given_up:
                runner.close()  # the next process inherits it
                restrict(DOMAINS[given_up := way])
            runner.turn_to(script if way == "present" else replace(script, base=base))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(local, "KEPT_SECONDS", 0.0 if way == "beneath" else 60.0)
                found = measured(runner, Request(seconds=float(seconds), time_limit=60, fresh=True))
            sys.stdout.write(json.dumps({"side": side, **found}) + "\n")
            sys.stdout.flush()
    finally:
        runner.close()


def measured(runner: InTurn, request: Request) -> dict[str, object]:
    try:
        runner.inspect(Config())
        assert runner.script is not None
        facts = runner.script
        attempt = runner.measure(facts.present, request)
    except AutotuneError as error:
        return {"kind": type(error).__name__, "message": str(error)}
    finally:
        runner.end_session()
    rate = attempt.measurement and attempt.measurement.samples_per_second
    return {"holds": facts.holds, "rate": rate, "message": attempt.message, "places": facts.sites}


if __name__ == "__main__":
    main(*sys.argv[1:])
