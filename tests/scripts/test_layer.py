"""Layers in the places where people work: folders of others, in memory, below mounts; as root and as a plain user."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import ROOT, are_gone
from tests.scripts.folders import described, environment
from tests.scripts.holding import landlock_version
from tests.scripts.users import PLAIN_USER, as_plain_user, can_mount

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(sys.platform != "linux", reason="layers are Linux's"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other owners"),
]

TEAM = 2000
"""A group that the user belongs to beside its own."""
SOCKETS = 600
"""More than stay reachable."""
WRITES = """
import os, tempfile
with open("log.txt", "a") as log: log.write("more")
os.rename("log.txt", "renamed.txt")
os.mkdir("new")
open("new/model.pt", "w").write("weights")
with tempfile.NamedTemporaryFile() as file: file.write(b"x")
open(os.path.expanduser("~/.cached"), "w").write("x")
"""
LIVES = """
import os, socket, tempfile
def read(path):
    with open(path) as file: return file.read()
here, home = os.getcwd(), os.path.expanduser("~")
for life in range(3):
    assert sorted(os.listdir()) == NAMES, os.listdir()
    assert read("log.txt") == "before"
    others = os.listdir(home) + os.listdir(tempfile.gettempdir())
    assert [name for name in others if not name.startswith("autotune-")] == [], others
    socket.socket(socket.AF_UNIX).connect("there")
    log = open("log.txt", "a+")
    log.write("more")
    open(os.path.join(home, "cached"), "w").close()
    tempfile.mkstemp()
    os.remove("train.py")
    os.mkdir("new")
    os.chdir("new")
    hold.begin_anew()
    os.chdir(here)
    log.write("more")
    log.seek(0)
    assert log.read() == "beforemoremore"
    try: raise AssertionError(os.wait())
    except ChildProcessError: pass
"""
"""Three lives, each of which finds the files as they were."""
MEMORY = Path("/dev/shm")
Place = Callable[[str], Path]
Found = dict[str, dict[str, Any]]


@pytest.fixture
def top() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="layer-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture(params=["root", "plain user"])
def is_plain(request: pytest.FixtureRequest) -> bool:
    return str(request.param) != "root"


def project(folder: Path, owner: int) -> Path:
    folder.mkdir(parents=True)
    for name in ("train.py", "log.txt"):
        (folder / name).write_text("before")
        os.chown(folder / name, owner, owner)
    os.chown(folder, owner, owner)
    return folder


def seen(*folders: Path) -> dict[str, tuple[object, ...]]:
    paths = (path for folder in folders for path in (folder, *folder.rglob("*")) if "autotune-" not in str(path))
    return {str(path): described(path) for path in paths}


def held(top: Path, is_plain: bool, cases: dict[str, dict[str, Any]], prepare: str = "true") -> Found:
    """Hold the writes of each case, as a user whose home and temporary folder lie below ``top``."""
    for name in ("home", "tmp"):
        (top / name).mkdir()
        os.chown(top / name, *(2 * (PLAIN_USER * is_plain,)))
    if is_plain:
        begin = as_plain_user(top / "home", TEAM, prepare)
    else:
        begin = ["unshare", "--mount", "sh", "-c", f'{prepare} && exec "$@"', "sh"]
    if not can_mount(begin if is_plain else [], top):
        pytest.skip("the user may not mount an overlay")
    given = os.environ | environment(top) | {"PYTHONPATH": str(ROOT)}
    command = [*begin, sys.executable, "-m", "tests.scripts.layering", json.dumps(cases)]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert are_gone(lambda: [each for each in psutil.process_iter() if command[-1] in words_of(each)])
    found = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == cases.keys(), done.stderr
    if is_plain:
        assert {line["rights"] for line in found.values()} == {0}
        assert {line["user"] for line in found.values()} == {PLAIN_USER}
    return found


def words_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def test_files_and_folders_of_others(top: Path, is_plain: bool) -> None:
    owner = PLAIN_USER * is_plain
    own = project(top / "of root" / "project", owner)
    (own / "of root").mkdir(mode=0o755)
    os.chmod(own / "of root", 0o777)
    (own / "team.txt").write_text("before")
    os.chown(own / "team.txt", 0, TEAM)
    os.chmod(own / "team.txt", 0o664)
    before = seen(top / "of root")
    found = held(top, is_plain, {
        "writes": {"folder": str(own), "code": WRITES},
        "a folder of root's": {"folder": str(own), "code": "open('of root/model.pt', 'w')"},
        "a group's file": {"folder": str(own), "code": "open('team.txt', 'a')"},
    })  # fmt: skip
    assert {line["way"] for line in found.values()} == {"layer"}
    assert found["writes"]["error"] is None
    for name, path in (("a folder of root's", "of root/model.pt"), ("a group's file", "team.txt")):
        error = found[name]["error"]
        assert (path in error and "--allow-writes" in error) if is_plain else error is None, error
    assert seen(top / "of root") == before


def test_a_home_in_memory_and_mounts_below_the_temporary_folder(top: Path, is_plain: bool) -> None:
    """A mount keeps the folder above it without a layer: temporary files lie in the scratch folder then."""
    owner = PLAIN_USER * is_plain
    own = project(top / "work", owner)
    mounts = " && ".join(
        f"mkdir -p {path} && mount -t tmpfs -o mode=755,uid={owner},gid={owner} none {path}"
        for path in (top / "home", top / "tmp" / "mounted")
    )
    before = seen(own)
    check = "\nimport tempfile; assert tempfile.gettempdir() not in ('/tmp', os.environ['HOME'])"
    case = {"folder": str(own), "code": f"import os{WRITES}{check}"}
    found = held(top, is_plain, {"writes": case}, mounts)["writes"]
    assert (found["way"], found["error"]) == ("layer", None)
    assert str(top / "home") in found["folders"]
    assert str(top / "tmp") not in found["folders"]
    assert seen(own) == before


def test_a_file_where_a_socket_was_is_a_file(top: Path, is_plain: bool) -> None:
    owner = PLAIN_USER * is_plain
    own = project(top / "work", owner)
    with ExitStack() as sockets:
        for name in ("gone", "there", *map(str, range(SOCKETS))):
            listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(own / name))
            listener.listen()
            os.chown(own / name, owner, owner)
        (own / "gone").unlink()
        (own / "gone").write_text("before")
        os.chown(own / "gone", owner, owner)
        before = seen(own)
        code = "import os, socket\nopen('gone', 'a').write('more')\nos.remove('gone')"
        few = {"folder": str(own), "code": code, "open_files": SOCKETS - 10}
        found = held(top, is_plain, {"few descriptors": few})["few descriptors"]
        assert (found["way"], found["error"]) == ("layer", None)
        assert seen(own) == before


def test_a_socket_that_is_listened_at_answers(top: Path, is_plain: bool) -> None:
    own = project(top / "work", PLAIN_USER * is_plain)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own / "there"))
        listener.listen()
        os.chmod(own / "there", 0o777)
        code = "import socket\nsocket.socket(socket.AF_UNIX).connect('there')"
        found = held(top, is_plain, {"connects": {"folder": str(own), "code": code}})["connects"]
    assert (found["way"], found["error"]) == ("layer", None)


@pytest.mark.parametrize("kept", [None, "open('kept.txt', 'w').close()"], ids=["alone", "beneath"])
def test_each_life_begins_with_the_files_as_they_were(kept: str | None, top: Path, is_plain: bool) -> None:
    own = project(top / "work", PLAIN_USER * is_plain)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own / "there"))
        listener.listen()
        os.chmod(own / "there", 0o777)
        before = seen(own)
        names = [*(["kept.txt"] if kept else []), "log.txt", "there", "train.py"]
        case = {"folder": str(own), "code": LIVES.replace("NAMES", repr(names))} | ({"kept": kept} if kept else {})
        for line in held(top, is_plain, {"lives": case}).values():
            assert (line["way"], line["error"]) == ("layer", None)
    assert seen(own, top / "home", top / "tmp").items() >= before.items()
    assert not any(each.is_file() for each in [*(top / "home").rglob("*"), *(top / "tmp").rglob("*")])


def test_a_life_after_which_the_layers_cannot_be_emptied_changes_nothing(top: Path, is_plain: bool) -> None:
    own = project(top / "work", PLAIN_USER * is_plain)
    before, lost = seen(own), "hold.layers.keeper.shutdown(2)"
    code = f"{lost}\nopen('log.txt', 'a').write('more')\nhold.begin_anew()"
    found = held(top, is_plain, {"lost": {"folder": str(own), "code": code}})["lost"]
    assert "Broken pipe" in found["error"]
    assert seen(own) == before


def test_beside_the_layers_neither_contents_nor_modes_nor_times_change(top: Path, is_plain: bool) -> None:
    own, owner = project(top / "work", PLAIN_USER * is_plain), PLAIN_USER * is_plain
    with tempfile.TemporaryDirectory(prefix="beside-", dir="/var/tmp") as name:
        beside = project(Path(name, "data"), owner) / "log.txt"
        os.chmod(name, 0o755)
        before = seen(Path(name))
        changes = (
            "open({!r}, 'a')",
            "os.truncate({!r}, 0)",
            "os.chmod({!r}, 0o600)",
            "os.utime({!r})",
            "os.remove({!r})",
        )
        cases = {each: {"folder": str(own), "code": f"import os; {each.format(str(beside))}"} for each in changes}
        found = held(top, is_plain, cases)
        assert seen(Path(name)) == before
    for change, line in found.items():
        assert str(beside) in line["error"] or "utime" in change  # whose error has no path
        assert "--allow-writes" in line["error"]


def test_a_kernel_that_makes_nothing_read_only_refuses_writes_beside_layers_and_another_life(
    top: Path, is_plain: bool
) -> None:
    if not landlock_version():
        pytest.skip("the system has no Landlock")
    own = project(top / "work", PLAIN_USER * is_plain)
    before = seen(own)
    with tempfile.TemporaryDirectory(prefix="beside-", dir="/var/tmp") as name:
        beside = project(Path(name, "data"), PLAIN_USER * is_plain) / "log.txt"
        os.chmod(name, 0o755)
        codes = {"beside": f"open({str(beside)!r}, 'a')", "again": f"{WRITES}\nhold.begin_anew()"}
        cases = {key: {"folder": str(own), "code": code, "is_kernel_old": True} for key, code in codes.items()}
        found = held(top, is_plain, cases)
        assert beside.read_text() == "before"
    assert {line["way"] for line in found.values()} == {"layer"}
    assert f"Permission denied: '{beside}'" in found["beside"]["error"]
    assert "cannot empty its layers" in found["again"]["error"]
    assert seen(own) == before


def test_a_project_in_shared_memory_is_layered_or_refused(top: Path, is_plain: bool) -> None:
    owner, name = PLAIN_USER * is_plain, f"autotune-test-{uuid.uuid4().hex}"
    own, beside = project(MEMORY / name, owner), MEMORY / f"{name}.npy"
    try:
        beside.write_text("before")
        os.chown(beside, owner, owner)
        before = seen(own), described(beside)
        segment = f"open('/dev/shm/torch_{name}', 'w').write('x'); os.remove('/dev/shm/torch_{name}')"
        found = held(top, is_plain, {
            "writes": {"folder": str(own), "code": f"{WRITES}\n{segment}"},
            "beside": {"folder": str(own), "code": f"open({str(beside)!r}, 'a')"},
            "removes": {"folder": str(own), "code": f"import os; os.remove({str(beside)!r})"},
            "no layer": {"folder": str(own), "code": WRITES, "kind": "kernel"},
        })  # fmt: skip
        assert (seen(own), described(beside)) == before
    finally:
        beside.unlink()
        subprocess.run(["rm", "-r", str(own)], check=True)
    assert (found["writes"]["way"], found["writes"]["error"]) == ("layer", None)
    assert str(beside) in found["beside"]["error"]
    assert "--allow-writes" in found["beside"]["error"]
    assert str(beside) in found["removes"]["error"]
    assert "lies in shared memory" in found["no layer"]["error"]
    assert found["no layer"]["way"] is None


def test_where_the_numbers_of_a_user_namespace_are_refused_nothing_of_it_is_kept(top: Path) -> None:
    if not landlock_version():
        pytest.skip("the system has no Landlock")
    own = project(top / "work", PLAIN_USER)
    before = seen(own)
    code = "open('log.txt', 'a').write('more')"
    cases = {"refused": {"folder": str(own), "code": code, "are_numbers_refused": True}}
    found = held(top, True, cases)["refused"]
    assert (found["way"], found["error"], found["keeps_users"]) == ("kernel", None, True)
    assert seen(own) == before
