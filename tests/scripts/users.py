"""Users as whom tests start processes: the tests' own, and one without rights."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

PLAIN_USER = 1000
OVERLAY = (
    'mount -t tmpfs none "$0" && mkdir "$0/upper" "$0/work" "$0/seen" && '
    'mount -t overlay -o "lowerdir=/usr,upperdir=$0/upper,workdir=$0/work" none "$0/seen"'
)


def as_plain_user(folder: Path, group: int | None = None, prepare: str = "true") -> list[str]:
    """Return the words that begin a command of a user without rights, of one more group; the folder becomes the user's.

    The user has mounts of its own, in which root has run the command ``prepare``, and in which Python lies in no folder
    that is root's alone.
    """
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root becomes another user, by setpriv")
    groups = "--clear-groups" if group is None else f"--groups={group}"
    user = ["setpriv", f"--reuid={PLAIN_USER}", f"--regid={PLAIN_USER}", groups, "env", "USER=user"]
    mounts = opening({Path(sys.base_prefix), Path(sys.prefix), ROOT}) or "true"
    os.chown(folder, PLAIN_USER, PLAIN_USER)
    begin = ["unshare", "--mount", "sh", "-c", f'umask 022 && {mounts} && {prepare} && exec "$@"', "sh", *user]
    if subprocess.run([*begin, sys.executable, "-c", "import autotune.errors"], cwd=ROOT).returncode:
        pytest.skip("a user without rights cannot start this Python")
    return begin


def opening(needed: set[Path]) -> str:
    """Return commands that show the needed folders without what closes them to others; none where nothing does."""
    closed = {path: above for path in sorted(needed) if (above := first_closed(path))}
    covers, kept = sorted(set(closed.values())), Path("/mnt")  # not below /tmp, where a mount is a case of its own
    commands = list[list[object]]([["mount", "-t", "tmpfs", "-o", "mode=755", "none", kept]] if closed else [])
    for number, path in enumerate(closed):
        commands += [["mkdir", "-p", kept / str(number)], ["mount", "--bind", path, kept / str(number)]]
    commands += [["mount", "-t", "tmpfs", "-o", "mode=755", "none", above] for above in covers]
    for number, path in enumerate(closed):
        commands += [["mkdir", "-p", path], ["mount", "--bind", kept / str(number), path]]
    return " && ".join(shlex.join(map(str, command)) for command in commands)


def first_closed(path: Path) -> Path | None:
    return next((above for above in reversed(path.parents) if not above.stat().st_mode & 0o001), None)


def can_mount(user: list[str], folder: Path) -> bool:
    """Whether a process of the user may have an overlay of its own."""
    own = [] if os.geteuid() == 0 and not user else ["--user", "--map-root-user"]
    command = [*user, "unshare", *own, "--mount", "sh", "-c", OVERLAY, str(folder)]
    return not subprocess.run(command, capture_output=True).returncode
