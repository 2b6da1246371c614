"""A script as it was at a commit: its files are seen, whatever lies beside stays, and the repository is as before."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest

from autotune.errors import UsageError
from autotune.runner.revision import extract, resolve
from autotune.workload import Script
from tests.processes import ROOT, are_gone
from tests.scripts.folders import environment, scratch_left
from tests.scripts.holding import landlock_version
from tests.scripts.users import PLAIN_USER, as_plain_user, can_mount

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="there is no git")

BATCH, STEPS = 4, 60
"""Samples of a batch, and steps after which the script ends: it is started again while it is measured."""
SCRIPT = f"""
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
import pace, mypackage.model
from importlib.util import find_spec
here = Path(__file__).parent
tracked = pace.PAUSE, mypackage.model.PAUSE, (here / "pace.py").read_text(), Path("seen.txt").read_text()
assert tracked == (SLEEP, SLEEP, "PAUSE = SLEEP", "SLEEP"), tracked
assert [each.exists() for each in (Path("removed.txt"), Path("added.txt"), here / "folder")] == EXISTS
assert [bool(find_spec(name)) for name in ("added", "mypackage.added", "untracked")] == FOUND
assert (here / "data/ignored.txt").read_text() == "ignored", "git ignores it"
assert Path("untracked.txt").read_text() == "untracked", "git does not know it"
log = Path("log.txt").read_text() if Path("log.txt").exists() else ""
assert log in LOGS, log
loader = DataLoader(TensorDataset(torch.ones(40000, 4)), batch_size={BATCH})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step, (x,) in enumerate(loader):
    if step == {STEPS}:
        break
    time.sleep(0.005 + pace.PAUSE)
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    for path in (Path("log.txt"), here / "data/written.txt"):
        path.write_text("beneath")
"""
EDITABLE = "import os, sys; sys.path.insert(0, os.environ['SOURCE'])\n"
"""What an editable install does, which code starts that no archive has."""
HOOKS = ("post-checkout", "post-index-change", "post-merge", "pre-commit", "reference-transaction", "fsmonitor")
PRESENT_LIMIT = BATCH / 0.205
"""Samples per second that the present script cannot reach, for it sleeps."""


def files(sleep: str, exists: list[bool], found: list[bool]) -> dict[str, str]:
    script = SCRIPT.replace("SLEEP", sleep).replace("EXISTS", str(exists)).replace("FOUND", str(found))
    beneath, script = script.replace("LOGS", '("", "beneath")'), script.replace("LOGS", '("",)')
    given = {"train.py": script, "editable.py": EDITABLE + script, "pace.py": f"PAUSE = {sleep}"}
    given["beneath.py"] = beneath
    return given | {"src/mypackage/model.py": f"PAUSE = {sleep}", "jobs/seen.txt": sleep}


BASE = files("0.0", [True, False, True], [False, False, True]) | {
    ".gitignore": "/data\n*.pyc\n",
    ".gitattributes": "pace.py export-ignore\n",
    "jobs/removed.txt": "removed",
    "folder/below.txt": "a folder that is a file now",
    "place": "a file that is a folder now",
}
LATER = files("0.2", [False, True, True], [True, True, True]) | {
    "added.py": "",
    "src/mypackage/added.py": "",
    "jobs/added.txt": "",
    "folder": "a file",
    "place/below.txt": "in a folder",
    "new/deep.py": "",
}
BESIDE = {"data/ignored.txt": "ignored", "jobs/untracked.txt": "untracked", "untracked.py": ""}


class Repository:
    """A repository of two commits, of which the second made the step slower, with hooks, a stash and changes."""

    def __init__(self, top: Path, tracked: Mapping[str, str] = MappingProxyType({})) -> None:
        """Make it, with more ``tracked`` files that the first commit has without their content."""
        self.top, self.marks = top, top.parent / "marks"
        self.git("init", "-q", "-b", "main")
        self.commit(BASE | dict.fromkeys(tracked, ""))
        self.git("rm", "-q", "jobs/removed.txt", "folder/below.txt", "place")
        self.commit(LATER | dict(tracked))
        (top / "pace.py").write_text("stashed")
        self.git("stash", "-q")
        self.lay(BESIDE)
        (top / "train.py").write_text(LATER["train.py"] + "# changed, and not committed\n")
        for name in HOOKS:
            hook = top / ".git" / "hooks" / name
            hook.write_text(f"#!/bin/sh\necho {name} >> {self.marks}\n")
            hook.chmod(0o755)
        self.git("config", "core.fsmonitor", str(top / ".git" / "hooks" / "fsmonitor"))
        self.before = self.state()

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*")
        done = subprocess.run(["git", *who, *words], cwd=self.top, capture_output=True, text=True, check=True)
        return done.stdout

    def lay(self, given: dict[str, str]) -> None:
        for name, text in given.items():
            (self.top / name).parent.mkdir(parents=True, exist_ok=True)
            (self.top / name).write_text(text)

    def commit(self, given: dict[str, str]) -> None:
        self.lay(given)
        self.git("add", "--all")
        self.git("commit", "-q", "-m", "a commit")

    def state(self) -> dict[str, object]:
        """Return all that must stay: the files, those of git too, and the marks of hooks; git itself is not asked."""
        found: dict[str, object] = {"marks": self.marks.exists()}
        for path in sorted(self.top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found[str(path.relative_to(self.top))] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may reach, with a repository in its home."""
    with tempfile.TemporaryDirectory(prefix="base-") as name:
        os.chmod(name, 0o755)
        for each in ("home/repository", "tmp"):
            Path(name, each).mkdir(parents=True)
        yield Path(name)


@pytest.fixture
def repository(folder: Path) -> Repository:
    return Repository(folder / "home" / "repository")


def test_a_revision_is_found_from_any_folder_of_the_repository(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.top / "jobs")
    assert resolve("main~1") == (os.path.realpath(repository.top), repository.git("rev-parse", "main~1").strip())
    assert repository.state() == repository.before


@pytest.mark.parametrize("revision", ["gone", "--all", "main:train.py", ""])
def test_a_revision_that_is_none_is_refused_with_the_way_out(
    revision: str, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.top)
    with pytest.raises(UsageError, match=rf"^--base {revision}: fatal: .+fetch-depth: 0"):
        resolve(revision)


def test_without_a_repository_and_without_git_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not a git repository"):
        resolve("main")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="No such file"):
        resolve("main")


def test_an_archive_has_the_files_of_its_commit_and_marks_what_git_tracks_since(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.top)
    archive = tmp_path / "archive"
    extract(resolve("main~1"), archive)
    found = {str(path.relative_to(archive)): path for path in archive.rglob("*") if not path.is_dir()}
    marks = {name for name, path in found.items() if not path.is_file()}
    assert marks == {"added.py", "src/mypackage/added.py", "jobs/added.txt", "new/deep.py"}
    assert all(stat.S_ISCHR(found[name].stat().st_mode) and found[name].stat().st_rdev == 0 for name in marks)
    assert {name: path.read_text() for name, path in found.items() if name not in marks} == BASE
    assert repository.state() == repository.before


def test_a_mark_never_lies_behind_a_link_of_the_commit(folder: Path, tmp_path: Path) -> None:
    top, elsewhere = folder / "home" / "repository", folder / "elsewhere"
    elsewhere.mkdir()
    repository = Repository(top)
    repository.git("stash", "drop", "-q")
    (top / "link").symlink_to(elsewhere)
    repository.commit({})
    (top / "link").unlink()
    repository.commit({"link/below/added.txt": ""})
    extract((str(top), repository.git("rev-parse", "main~1").strip()), tmp_path / "archive")
    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / "archive" / "link").readlink() == elsewhere


def test_a_base_has_no_writes_that_are_let_through() -> None:
    with pytest.raises(UsageError, match="--allow-writes"):
        Script(path="train.py", base=("/repository", "0" * 40), allow_writes=True)


@contextmanager
def started(
    folder: Path, seconds: float, *sides: str, user: Sequence[str] = (), **given: str
) -> Iterator[subprocess.Popen[str]]:
    """Start to measure sides from a subfolder of the repository."""
    top = folder / "home" / "repository"
    given |= environment(folder) | {"SOURCE": str(top / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*user, sys.executable, "-m", "tests.scripts.basing", "main~1", str(seconds), *sides]
    with subprocess.Popen(
        command, cwd=top / "jobs", env=os.environ | given, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        yield process


def found_of(folder: Path, *sides: str, user: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Measure sides one after another; return what is said of each."""
    top = folder / "home" / "repository"
    paths = os.pathsep.join(map(str, (top, ROOT, top / "src")))
    with started(folder, 0.5, *sides, user=user, PYTHONPATH=paths) as process:
        told, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return {line.pop("side"): line for line in map(json.loads, told.splitlines())}


@pytest.mark.machine
def test_a_side_is_measured_as_it_was_at_the_commit(folder: Path, repository: Repository) -> None:
    layered = ["layer:../train.py", "layer:../editable.py", "beneath:../beneath.py"] if can_mount([], folder) else []
    others = ["python:../train.py", f"python:{repository.top}/editable.py"] if landlock_version() else []
    sides = ["present:../train.py", "none:../added.py", *layered, *others]
    found = found_of(folder, *sides)
    assert list(found) == sides
    added = found.pop("none:../added.py")
    assert (added.get("kind"), "has no added.py there" in added["message"]) == ("UsageError", True), added
    present, editable = found.pop("present:../train.py"), found.pop(f"python:{repository.top}/editable.py", None)
    assert present["rate"] <= PRESENT_LIMIT, present
    require_measured(found)
    assert all(base["places"] == present["places"] for side, base in found.items() if "train.py" in side)
    if editable is not None:
        assert editable.get("kind") == "UserCodeError", editable
        assert "src/mypackage/model.py is imported from the present tree, not from" in editable["message"]
    assert repository.state() == repository.before
    assert scratch_left(folder) == []


@pytest.mark.machine
def test_a_plain_user_measures_a_side_too_by_the_present_code_of_this_package(folder: Path) -> None:
    user, package = as_plain_user(folder), ROOT / "autotune"
    code = (path for path in package.rglob("*") if path.suffix in (".py", ".json"))
    tracked = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in code}
    repository = Repository(folder / "home" / "repository", tracked)
    subprocess.run(["chown", "-R", f"{PLAIN_USER}:{PLAIN_USER}", folder], check=True)
    ways = ["layer"] * can_mount(user, folder) + ["kernel"] * (landlock_version() > 0)
    found = found_of(folder, *(f"{way}:../train.py" for way in ways), user=user)
    assert len(found) == len(ways)
    require_measured(found)
    assert repository.state() == repository.before
    assert scratch_left(folder) == []


def require_measured(found: dict[str, dict[str, Any]]) -> None:
    """Require that sides of the commit were held as they were to be, and that none had the later sleep."""
    for side, base in found.items():
        assert base.get("holds") == side.partition(":")[0].replace("beneath", "layer"), base
        assert base["rate"] > PRESENT_LIMIT, base


@pytest.mark.machine
@pytest.mark.parametrize(("number", "way"), [(signal.SIGINT, "layer"), (signal.SIGKILL, "python")])
def test_a_tuner_that_is_ended_leaves_no_files_of_the_commit(
    number: int, way: str, folder: Path, repository: Repository, processes: Callable[[], list[psutil.Process]]
) -> None:
    if not landlock_version():
        pytest.skip("the system has no Landlock")
    paths = os.pathsep.join(map(str, (ROOT, repository.top / "src")))
    with started(folder, 30, f"{way}:../train.py", PYTHONPATH=paths) as tuner:
        end = time.monotonic() + 60
        while tuner.poll() is None and time.monotonic() < end and not measuring(folder):
            time.sleep(0.05)
        scratch = measuring(folder)
        tuner.send_signal(number)
        tuner.communicate(timeout=60)
    assert scratch
    assert tuner.returncode == -number
    assert are_gone(processes)
    assert scratch_left(folder) == []
    assert repository.state() == repository.before


def measuring(folder: Path) -> list[Path]:
    """Return the folder of writes of a later session: its process measures, and has the archive beside."""
    return [path for path in (folder / "tmp").glob("autotune-*/later") if any(path.parent.glob("*/train.py"))]
