"""A journal file and SQLite under the same faults: what is left of the trials that were kept?

    python -m studies.faults.storages studies/faults/recorded/storages.json

What the file holds already is not done again.

``optuna`` is Optuna's own journal file, ``file`` the same with autotune's lock, repair and whole lines, ``sqlite`` a
database of one file.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import optuna
from optuna.distributions import IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, create_trial

from autotune.storage.journal import StudyFile

KINDS = {"file": 20, "sqlite": 20, "optuna": 5}
"""Storages, and how often each is killed: Optuna's lock costs half a minute after most of them."""
NAME = "study"


def frozen(number: int) -> FrozenTrial:
    """A trial with a record of the usual size, some 4 kB."""
    record = {"number": number, "text": "x" * 4000}
    return create_trial(
        value=float(number), params={"a": 0}, distributions={"a": IntDistribution(0, 3)}, user_attrs={"record": record}
    )


class Storage:
    """One storage in a folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path = folder / ("a.db" if kind == "sqlite" else "a.study")
        self.file = StudyFile(self.path) if kind == "file" else None
        if kind == "sqlite":
            storage: Any = f"sqlite:///{self.path}"
        else:
            storage = JournalStorage(self.file or JournalFileBackend(str(self.path)))
        names = optuna.get_all_study_names(storage)
        self.study: Study = (
            optuna.load_study(study_name=NAME, storage=storage)
            if NAME in names
            else optuna.create_study(study_name=NAME, storage=storage)
        )

    def numbers(self) -> list[int]:
        return [trial.user_attrs["record"]["number"] for trial in self.study.get_trials(deepcopy=False)]

    def close(self) -> None:
        if self.file:
            self.file.close()


def goes_on(kind: str, folder: Path, wanted: int) -> str:
    """Open the storage, add a trial and open it again; say what fails, or how much is there."""
    begin = time.monotonic()
    try:
        storage = Storage(kind, folder)
        storage.study.add_trial(frozen(10**6))
        storage.close()
        storage = Storage(kind, folder)
        kept = len(storage.numbers()) - 1
        storage.close()
    except Exception as error:
        return f"unusable: {type(error).__name__}"
    waited = ", after a wait" if time.monotonic() - begin > 5 else ""
    return ("nothing lost" if kept >= wanted else f"{wanted - kept} lost") + waited


def truncated(kind: str) -> dict[str, int]:
    """Cut the file at every 101st byte of the last trial's record."""
    found: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        storage = Storage(kind, folder)
        for number in range(3):
            storage.study.add_trial(frozen(number))
        whole = storage.path.stat().st_size
        storage.study.add_trial(frozen(3))
        storage.close()
        content = storage.path.read_bytes()
        first = whole if len(content) > whole else len(content) - 4000  # a database grows by pages
        for cut in range(first + 1, len(content), 101):
            for each in folder.iterdir():
                each.unlink()
            storage.path.write_bytes(content[:cut])
            count(found, goes_on(kind, folder, 3))
    return found


def full(kind: str) -> dict[str, int]:
    """Let the disk be full in the middle of a trial, and go on writing; then make room."""
    found: dict[str, int] = {}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in range(100, 4000, 400):
        with tempfile.TemporaryDirectory() as name:
            storage = Storage(kind, Path(name))
            for number in range(3):
                storage.study.add_trial(frozen(number))
            resource.setrlimit(resource.RLIMIT_FSIZE, (storage.path.stat().st_size + room, before[1]))
            for number in (3, 4):
                with suppress(Exception):
                    storage.study.add_trial(frozen(number))
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            storage.close()
            count(found, goes_on(kind, Path(name), 3))
    return found


def killed(kind: str) -> dict[str, int]:
    """Kill a process that writes trial after trial, and compare with what it said to have written."""
    found: dict[str, int] = {}
    for seed in range(KINDS[kind]):
        with tempfile.TemporaryDirectory() as name:
            command = [sys.executable, "-m", "studies.faults.storages", "write", kind, name]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(random.Random(seed).uniform(0.05, 0.5))
                process.send_signal(signal.SIGKILL)
                said = len(process.stdout.read().splitlines()) + 1
            count(found, goes_on(kind, Path(name), said))
    return found


def write(kind: str, folder: Path) -> None:
    storage = Storage(kind, folder)
    for number in range(100_000):
        storage.study.add_trial(frozen(number))
        print(number, flush=True)


def cost(kind: str) -> float:
    """Milliseconds for a trial, the median of 40."""
    with tempfile.TemporaryDirectory() as name:
        storage, taken = Storage(kind, Path(name)), list[float]()
        for number in range(40):
            begin = time.perf_counter()
            storage.study.add_trial(frozen(number))
            taken.append(1000 * (time.perf_counter() - begin))
        storage.close()
    return round(median(taken), 2)


def count(found: dict[str, int], what: str) -> None:
    found[what] = found.get(what, 0) + 1


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if sys.argv[1] == "write":
        return write(sys.argv[2], Path(sys.argv[3]))
    faults: dict[str, Callable[[str], Any]] = {
        "milliseconds_a_trial": cost,
        "cut_in_the_last_trial": truncated,
        "disk_full": full,
        "killed_while_writing": killed,
    }
    path = Path(sys.argv[1])
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    for kind in KINDS:
        for name, measure in faults.items():
            if name not in rows.setdefault(kind, {}):
                rows[kind][name] = measure(kind)
                path.write_text(json.dumps(rows, indent=2) + "\n")
                print(kind, name, rows[kind][name], flush=True)
    return None


if __name__ == "__main__":
    main()
