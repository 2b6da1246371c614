"""Measures scripts one after another in one process tree, and says how each was held and what differs outside.

``python -m tests.scripts.holding KIND FOLDER [NAME ...]`` prints a line of JSON for each script. Without names it
measures all. For ``kernel`` and ``python`` the process first gives up by Landlock what the kind must do without; for
``nothing`` the scripts are not measured but run for an epoch, as their users do.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.outcome import Outcome
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe
from tests.scripts.folders import FILES, FOLDERS, differences, environment, lay_out, snapshot

DOMAINS = {"layer": 0, "kernel": 1, "python": 16}
"""Landlock's domains around the process. In one no mount is allowed; in 16 there is no room for another."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_VERSION = 1
PATH_BENEATH = 1
MAKE_CHAR, REFER = 1 << 6, 1 << 13
"""Rights that a domain handles and allows everywhere. What does not handle ``REFER`` denies moves between folders."""
NO_NEW_PRIVILEGES = 38


def call(number: int, *given: Any) -> int:
    system = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in given]
    result: int = system.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def landlock_version() -> int:
    """Return the version of Landlock that the system has, 0 for none."""
    try:
        return call(CREATE_RULESET, None, 0, ASK_VERSION)
    except OSError:
        return 0


def restrict(times: int) -> None:
    """Enter so many domains of Landlock that allow everything but mounts."""
    rights = MAKE_CHAR | (REFER if landlock_version() >= 2 else 0)
    handled = struct.pack("=Q", rights)
    rules = call(CREATE_RULESET, handled, len(handled), 0)
    top = os.open("/", os.O_PATH)
    call(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", rights, top), 0)
    ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    for _ in range(times):
        call(RESTRICT_SELF, rules, 0)
    os.close(top)
    os.close(rules)


class InTurn(ProcessRunner):
    """A runner for one script after another, each in forks of the same process."""

    def __init__(self) -> None:
        super().__init__(Script(path=""))

    def turn_to(self, script: Path | Script) -> None:
        given = script if isinstance(script, Script) else Script(path=str(script))
        self._source, self.script = describe(given), None

    def end_session(self) -> None:
        self._end_session()


@contextmanager
def in_turn(folder: Path) -> Iterator[InTurn]:
    """Make a folder the working folder of scripts, which share a process, and give their runner."""
    with chdir(folder), InTurn() as runner:
        yield runner


def measured(runner: InTurn, script: Path) -> dict[str, Any]:
    """Measure a script in one start and one window; say how it was held and what came of it."""
    runner.turn_to(script)
    holds = None
    try:
        runner.inspect(Config())
        assert runner.script is not None
        holds, present = runner.script.holds, runner.script.present
        attempt = runner.measure(present, Request(seconds=0.2, time_limit=60))
    except UserCodeError as error:
        return {"holds": holds, "outcome": Outcome.USER_ERROR, "message": str(error), "measured": False}
    finally:
        runner.end_session()
    is_measured = attempt.outcome in (Outcome.OK, Outcome.SUSPECT) and attempt.measurement is not None
    return {"holds": holds, "outcome": attempt.outcome, "message": attempt.message, "measured": is_measured}


def has_run(script: Path) -> dict[str, Any]:
    """Run a script in a fork, which has torch; say whether it came to its end."""
    import torch  # noqa: F401

    if (process := os.fork()) == 0:
        os.environ["EPOCHS"] = "1"
        sys.path[0], sys.argv = str(script.parent), [str(script)]
        runpy.run_path(str(script), run_name="__main__")
        os._exit(0)
    return {"ended": os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0}


def main(kind: str, place: str, *names: str) -> None:
    folder = Path(place).resolve()
    for each in FOLDERS:
        (folder / each).mkdir(exist_ok=True)
    os.environ |= environment(folder)
    tempfile.tempdir = None  # asked for anew
    os.chdir(folder / "work")
    if DOMAINS.get(kind):
        restrict(DOMAINS[kind])
    with InTurn() as runner:
        for name in names or FILES:
            script = lay_out(folder, name)
            before = snapshot(folder)
            found = has_run(script) if kind == "nothing" else measured(runner, script)
            changes = differences(before, snapshot(folder))
            sys.stdout.write(json.dumps({"name": name, **found, "differences": changes}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
