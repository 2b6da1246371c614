"""The same random changes, to a folder that is free and to one whose writes go to copies: ``copying FOLDER SEEDS``."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.measure.copies import Copies

ALIKE = (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EISDIR, errno.EINVAL)
"""Numbers of errors between which the system chooses by the order of its checks."""
NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "n", "n/a")


def write(mode: str) -> Callable[[str, str], Any]:
    def change(path: str, _: str) -> Any:
        with open(path, mode) as file:
            return file.write("new")

    return change


def by_descriptor(flags: int) -> Callable[[str, str], Any]:
    def change(path: str, _: str) -> Any:
        file = os.open(path, flags, 0o640)
        try:
            return os.write(file, b"12")
        finally:
            os.close(file)

    return change


CHANGES: dict[str, Callable[[str, str], Any]] = {
    **{f"open {mode}": write(mode) for mode in ("w", "a", "x", "r+")},
    "descriptor": by_descriptor(os.O_WRONLY | os.O_CREAT),
    "exclusive": by_descriptor(os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "mkdir": lambda path, _: os.mkdir(path),
    "makedirs": lambda path, _: os.makedirs(path, exist_ok=True),
    "remove": lambda path, _: os.remove(path),
    "rmdir": lambda path, _: os.rmdir(path),
    "rmtree": lambda path, _: shutil.rmtree(path),
    "rename": lambda path, other: os.rename(path, other),
    "replace": lambda path, other: os.replace(path, other),
    "move": lambda path, other: None if Path(other).is_dir() else bool(shutil.move(path, other)),
    "copy": lambda path, other: bool(shutil.copyfile(path, other)),
    "chmod": lambda path, _: os.chmod(path, 0o700),
    "utime": lambda path, _: os.utime(path, (1, 1)),
    "truncate": lambda path, _: os.truncate(path, 1),
    "touch": lambda path, _: Path(path).touch(),
    "link": lambda path, other: os.link(path, other),
    "symlink": lambda path, other: os.symlink("a", other),
}


def seen(folder: str) -> list[Any]:
    """Everything below a folder as Python's functions show it: paths, kinds, permissions and contents."""
    found = list[Any]()
    for here, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            path = os.path.join(here, name)
            told: Any = os.readlink(path) if os.path.islink(path) else None
            if told is None and os.path.isfile(path):
                told = (Path(path).read_text(), oct(os.stat(path).st_mode), os.path.getsize(path))
            found.append((os.path.relpath(path, folder), os.path.isdir(path), os.access(path, os.R_OK), told))
        found.append((os.path.relpath(here, folder), sorted(os.listdir(here)), len(list(os.scandir(here)))))
    return sorted(found, key=str)


def outcome(change: Callable[[str, str], Any], folder: str, names: list[str]) -> Any:
    try:
        return change(*(os.path.join(folder, name) for name in names))
    except OSError as error:
        return ALIKE if error.errno in ALIKE else error.errno


def main() -> None:
    base = Path(sys.argv[1])
    for seed in range(int(sys.argv[2])):
        for side in ("free", "held"):
            for name in ("d/e/a", "d/a", "a"):
                file = base / side / str(seed) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(name)
    (base / "copies").mkdir()
    Copies(str(base / "copies"), [str(base / "free")]).install()
    for seed in range(int(sys.argv[2])):
        chosen, told = random.Random(seed), list[str]()
        for _ in range(12):
            name, names = chosen.choice(list(CHANGES)), chosen.choices(NAMES, k=2)
            told.append(f"{name} {names}")
            free, held = (str(base / side / str(seed)) for side in ("free", "held"))
            outcomes = [outcome(CHANGES[name], folder, names) for folder in (free, held)]
            assert outcomes[0] == outcomes[1], (seed, told, outcomes)
            if seen(free) != seen(held):
                different = [each for each in zip(seen(free), seen(held), strict=False) if each[0] != each[1]]
                raise AssertionError((seed, told, different))


if __name__ == "__main__":
    main()
