"""Scripts that write in all the ways people write: however they are held, nothing outside differs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import ROOT, are_gone, run_python
from tests.scripts.folders import differences, environment, lay_out, scratch_left, snapshot
from tests.scripts.holding import DOMAINS, landlock_version
from tests.scripts.users import as_plain_user, can_mount

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(sys.platform != "linux", reason="scripts are held on Linux"),
]

Words = tuple[str, ...] | None
MEASURED: Words = ()
IN_A_CHILD: Words = ("child process",)
UNSEEN: Words = ("/work/rows.txt is a copy", "--allow-writes")
NOT_HELD: Words = None
"""The script writes by other means than Python's, so nothing would hold it."""
EXPECTED: dict[str, tuple[Words, Words, Words]] = {
    # the script: held by a layer, by the kernel, by Python alone
    "cache": (MEASURED, MEASURED, MEASURED),
    "renamed_checkpoint": (MEASURED, MEASURED, MEASURED),
    "log": (MEASURED, MEASURED, MEASURED),
    "cleared": (MEASURED, MEASURED, MEASURED),
    "memmap": (MEASURED, MEASURED, MEASURED),
    "database": (MEASURED, MEASURED, MEASURED),
    "tofile": (MEASURED, MEASURED, NOT_HELD),
    "spawned": (IN_A_CHILD, IN_A_CHILD, IN_A_CHILD),
    "chdir": (MEASURED, MEASURED, MEASURED),
    "temporary": (MEASURED, MEASURED, MEASURED),
    "dataset_json": (MEASURED, MEASURED, MEASURED),
    "dataset_map": (MEASURED, MEASURED, MEASURED),
    "saved_to_disk": (MEASURED, MEASURED, MEASURED),
    "written_module": (MEASURED, MEASURED, MEASURED),
    "copied_library": (MEASURED, MEASURED, MEASURED),
    "read_by_child": (MEASURED, UNSEEN, UNSEEN),
    "hdf5": (MEASURED, MEASURED, MEASURED),
    "linked": (MEASURED, MEASURED, MEASURED),
    "new_output": (MEASURED, MEASURED, MEASURED),
    "resumed": (MEASURED, MEASURED, MEASURED),
}
"""What comes of each script: it is measured, or it is refused in words that hold these."""
OF_LIBRARIES = ("dataset_json", "dataset_map", "saved_to_disk", "copied_library", "hdf5")
"""Scripts whose files libraries open."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name that every user may reach."""
    with tempfile.TemporaryDirectory(prefix="held-") as name:
        os.chmod(name, 0o755)
        yield Path(name)
        assert name not in Path("/proc/self/mountinfo").read_text("utf-8")


@pytest.mark.parametrize(
    ("kind", "is_plain"),
    [("layer", False), ("layer", True), ("kernel", False), ("kernel", True), ("python", False)],
    ids=lambda value: {True: "plain user", False: "own user"}.get(value, value),
)
def test_whatever_a_script_writes_nothing_outside_differs(kind: str, is_plain: bool, folder: Path) -> None:
    if kind != "layer" and not landlock_version():
        pytest.skip("the system has no Landlock")
    user = as_plain_user(folder) if is_plain else []
    if kind == "layer" and not can_mount(user, folder):
        pytest.skip("the user may not mount an overlay")
    expected = {name: each[tuple(DOMAINS).index(kind)] for name, each in EXPECTED.items()}
    left_out = () if kind == "layer" or is_plain else OF_LIBRARIES  # they read copies alike, whoever is held and how
    expected = {name: words for name, words in expected.items() if words is not NOT_HELD and name not in left_out}
    found = found_of(user, kind, folder, *expected)
    assert list(found) == list(expected)
    outside = [f"{name}: {each}" for name, line in found.items() for each in line["differences"]]
    assert outside == []
    assert {line["holds"] for line in found.values()} <= {kind, None}, found
    surprises = [line for name, line in found.items() if not is_as_expected(line, expected[name])]
    assert surprises == []
    assert scratch_left(folder) == []


def is_as_expected(line: dict[str, object], words: tuple[str, ...]) -> bool:
    """Whether a script was measured, or refused in the words that are expected."""
    if words == MEASURED:
        return line["measured"] is True and line["holds"] is not None
    return line["measured"] is False and all(word in str(line["message"]) for word in words)


def found_of(user: list[str], kind: str, folder: Path, *names: str) -> dict[str, dict[str, Any]]:
    """Return what ``tests.scripts.holding`` says of each script."""
    done = subprocess.run(
        [*user, sys.executable, "-m", "tests.scripts.holding", kind, str(folder), *names],
        cwd=ROOT, env=os.environ | environment(folder) | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_the_scripts_of_the_tests_run_to_their_ends_and_write(folder: Path) -> None:
    found = found_of([], "nothing", folder)
    assert found.keys() == EXPECTED.keys()
    assert [line for line in found.values() if not line["ended"] or not line["differences"]] == []


@pytest.mark.parametrize("name", ["renamed_checkpoint", "spawned"])
def test_a_dry_run_leaves_everything_as_it_was(name: str, folder: Path) -> None:
    script = lay_out(folder, name)
    before = snapshot(folder)
    command = ("-m", "autotune", "run", "--dry-run", script.name)
    done = run_python(*command, folder=script.parent, **environment(folder))
    is_refused = EXPECTED[name][0] == IN_A_CHILD
    assert (done.returncode, "child process" in done.stderr) == ((3, True) if is_refused else (0, False)), done.stderr
    assert differences(before, snapshot(folder)) == []
    assert scratch_left(folder) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_tuner_that_is_ended_leaves_nothing_of_what_it_held(
    number: int, code: int, folder: Path, processes: Callable[[], list[psutil.Process]]
) -> None:
    lay_out(folder, "log")
    (folder / "answer").mkdir()
    before, errors = snapshot(folder), folder / "errors"
    answer = folder / "answer" / "autotune.yaml"
    command = [sys.executable, "-m", "autotune", "run", "--budget", "10m", "--output", answer, "train.py"]
    given = os.environ | environment(folder) | {"PYTHONPATH": str(ROOT)}
    with errors.open("w") as said:
        tuner = subprocess.Popen(command, cwd=folder / "work", env=given, stdout=subprocess.DEVNULL, stderr=said)
    with tuner:
        is_measuring = has_measured(tuner, errors)
        tuner.send_signal(number)
    assert is_measuring, errors.read_text()
    assert tuner.returncode == code, errors.read_text()
    assert are_gone(processes)
    assert [name for name in os.listdir(folder / "tmp") if not name.startswith("torchinductor_")] == []
    assert differences(before, snapshot(folder)) == []


def has_measured(tuner: subprocess.Popen[bytes], errors: Path) -> bool:
    """Wait until the tuner tells its first trial, after which it measures on; whether it has not ended instead."""
    while tuner.poll() is None:
        if "\n  0 " in "\n" + errors.read_text():
            return True
        time.sleep(0.05)
    return False
