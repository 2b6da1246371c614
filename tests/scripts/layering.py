"""Holds the writes of some lines of code, in a fork for each case, and says how and what came of it.

``python -m tests.scripts.layering CASES`` reads JSON: for each name the working folder and the code, which knows the
``hold``. It prints a line of JSON for each. What the code ``kept`` has written before, with a line of its own, lies
beneath.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune.machine.descendants import remove_folder
from autotune.measure import overlay
from autotune.measure.writes import hold_writes
from tests.scripts.holding import (
    ADD_RULE,
    CREATE_RULESET,
    DOMAINS,
    NO_NEW_PRIVILEGES,
    PATH_BENEATH,
    RESTRICT_SELF,
    call,
    restrict,
)

UNKNOWN = 10_000
"""The number of no system call."""
WRITE_FILE = 1 << 1
"""Landlock's right to write to a file."""


def close_process_files() -> None:
    """Refuse writes to files below /proc by Landlock, as to a user namespace's numbers, and mounts with it."""
    import ctypes

    rules = call(CREATE_RULESET, struct.pack("=Q", WRITE_FILE), 8, 0)
    for folder in Path("/").iterdir():
        if folder.name != "proc" and folder.is_dir() and os.access(folder, os.R_OK):
            opened = os.open(folder, os.O_PATH)
            call(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", WRITE_FILE, opened), 0)
            os.close(opened)
    ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    call(RESTRICT_SELF, rules, 0)
    os.close(rules)


def held(case: dict[str, Any], upper: Path, beneath: Path | None = None) -> dict[str, Any]:
    """Hold the writes of this process, run the code of a case, and describe what the process is then."""
    before = os.readlink("/proc/self/ns/user")
    os.chdir(case["folder"])
    if case.get("kind"):
        restrict(DOMAINS[case["kind"]])
    if case.get("are_numbers_refused"):
        close_process_files()
    if case.get("is_kernel_old"):
        overlay.SET_ATTRIBUTES = UNKNOWN
    if limit := case.get("open_files"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    error, hold = None, None
    try:
        hold = hold_writes(os.path.join(case["folder"], "train.py"), [], upper, beneath)
        exec(case["code"], {"__name__": "__main__", "hold": hold})
    except Exception as raised:
        error = str(hold.explain(raised) if hold else raised)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    return {
        "way": hold and hold.means,
        "folders": hold and list(hold.layers.folders),
        "error": error,
        "rights": int(status["CapEff"], 16),
        "user": os.getuid(),
        "keeps_users": os.readlink("/proc/self/ns/user") == before,
    }


def in_a_fork(name: str, case: dict[str, Any], upper: Path, beneath: Path | None = None) -> None:
    """Print what ``held`` says of a case."""
    if (process := os.fork()) == 0:
        sys.stdout.write(json.dumps({"name": name, **held(case, upper, beneath)}) + "\n")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(process, 0)


def main(cases: str) -> None:
    for name, case in json.loads(cases).items():
        scratch = Path(tempfile.mkdtemp(prefix="autotune-", dir=case.get("scratch")))
        if "kept" in case:
            in_a_fork(name, case | {"code": case["kept"]}, scratch / "first")
        in_a_fork(name, case, scratch / "later", scratch / "first" if "kept" in case else None)
        remove_folder(scratch)


if __name__ == "__main__":
    main(sys.argv[1])
