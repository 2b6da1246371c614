from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.errors import UsageError
from autotune.runner.device_lock import DeviceLock

NAME = f"GPU-{uuid.uuid4()}"
HOLD = (
    "import sys, time, pathlib; from autotune.runner.device_lock import DeviceLock\n"
    f"lock = DeviceLock({NAME!r}, pathlib.Path(sys.argv[1])); lock.take(60, print)\n"
    "print('taken', flush=True); time.sleep(600)"
)


def holder(folder: Path) -> psutil.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    child = psutil.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout.readline() == "taken\n"
    return child


def end(child: psutil.Popen) -> None:
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()


def test_the_second_is_told_who_holds_it_and_gives_up(tmp_path: Path) -> None:
    child = holder(tmp_path)
    told: list[str] = []
    begin = time.monotonic()
    with pytest.raises(UsageError) as caught:
        DeviceLock(NAME, tmp_path).take(1.0, told.append)
    assert time.monotonic() - begin >= 1.0
    assert told[0].startswith(f"process {child.pid} of ")
    assert told[0].endswith("(-c)")
    assert len(told) == 1
    assert str(caught.value).startswith(f"{NAME} is in use by another autotune: process {child.pid} of ")
    end(child)


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[DeviceLock]:
    lock = DeviceLock(NAME, tmp_path)
    yield lock
    lock.free()


def test_a_killed_holder_frees_it_for_the_one_that_waits(tmp_path: Path, lock: DeviceLock) -> None:
    child = holder(tmp_path)
    lock.take(60, lambda who: end(child))
    assert json.loads(next(tmp_path.iterdir()).read_text())["pid"] == os.getpid()


def test_it_is_free_again_after_the_first_and_other_devices_always_are(tmp_path: Path) -> None:
    first, second, other = DeviceLock(NAME, tmp_path), DeviceLock(NAME, tmp_path), DeviceLock("mps:0", tmp_path)
    first.take(0, print)
    other.take(0, print)
    with pytest.raises(UsageError):
        second.take(0, print)
    first.free()
    first.free()
    second.take(0, print)
    second.free()
    other.free()


def test_every_user_may_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.runner.device_lock.SHARED_FOLDER", folder := tmp_path / "locks")
    before = os.umask(0o077)
    try:
        lock = DeviceLock(NAME)
        lock.take(0, print)
    finally:
        os.umask(before)
    lock.free()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())] == [0o777, 0o666]


def test_what_started_it_is_said_without_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("run", "--storage", "mysql://me:secret@host/db", "train.py", "--api-key", "secret", "other.py")
    monkeypatch.setattr(sys, "argv", ["/somewhere/autotune", *words])
    lock = DeviceLock(NAME, tmp_path)
    lock.take(0, print)
    about = json.loads(next(tmp_path.iterdir()).read_text())
    assert about["command"] == "autotune train.py"
    assert set(about) == {"pid", "user", "since", "command"}
    lock.free()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 3}', "\xff"])
def test_a_damaged_file_does_not_hide_that_it_is_held(tmp_path: Path, lock: DeviceLock, content: str) -> None:
    lock.take(0, print)
    next(tmp_path.iterdir()).write_text(content, encoding="latin-1")
    with pytest.raises(UsageError, match="an unknown process"):
        DeviceLock(NAME, tmp_path).take(0, print)


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_link_in_its_place_changes_no_file(
    tmp_path: Path, lock: DeviceLock, link: Callable[[Path, Path], None]
) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    link(tmp_path / f"autotune-{NAME}.lock", target)
    lock.take(0, print)
    assert target.read_text() == "precious"


def test_a_device_that_was_freed_is_free_although_a_forked_process_lives_on(tmp_path: Path, lock: DeviceLock) -> None:
    lock.take(1.0, print)
    child = os.fork()
    if not child:
        signal.pause()
    try:
        lock.free()
        DeviceLock(NAME, tmp_path).take(0.0, print)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_folder_that_knows_no_locks_keeps_nobody_waiting(lock: DeviceLock, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    told: list[str] = []
    lock.take(60.0, told.append)
    lock.free()
    assert told == []
