"""Files of a commit of a git repository, which a script sees in the place of the present ones."""

from __future__ import annotations

import os
import stat
import subprocess
from contextlib import suppress
from pathlib import Path, PurePosixPath

from autotune.errors import UsageError

GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""Git that starts no hook and no watcher of files."""


def resolve(rev: str) -> tuple[str, str]:
    """Return the top folder of the working folder's repository, and the commit of a revision. Raises ``UsageError``."""
    top = _git("--base", ".", "rev-parse", "--show-toplevel").removesuffix("\n")
    words, way = ("rev-parse", "--verify", "--end-of-options"), "; on CI fetch the whole history (fetch-depth: 0)"
    return os.path.realpath(top), _git(f"--base {rev}", ".", *words, rev + "^{commit}", way=way).strip()


def extract(base: tuple[str, str], folder: Path) -> str:
    """Write the files of a commit into a folder, unless it is there; return its path. Raises ``UsageError``.

    A mark hides each file that git tracks only since then: a whiteout of an overlay, else a pipe. ``git archive`` would
    leave out files by their attributes, and keep times that compiled modules of the present tree may have.
    """
    (top, commit), new, own = base, Path(f"{folder}.new"), {"GIT_INDEX_FILE": f"{folder}.index"}
    if folder.exists():
        return str(folder)
    _git("--base", top, "read-tree", commit, **own)
    new.mkdir(exist_ok=True)
    _git("--base", top, "checkout-index", "--all", "--force", f"--prefix={new}/", **own)
    then, now = (set(_git("--base", top, "ls-files", "-z", **each).split("\0")[:-1]) for each in (own, {}))
    for path in (new / each for each in now - then if then.isdisjoint(map(str, PurePosixPath(each).parents))):
        with suppress(FileExistsError):  # a folder of the commit's hides the file, as a file hides a folder
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.mknod(path, stat.S_IFCHR | 0o600, 0)
            except PermissionError:
                os.mkfifo(path)
    return str(new.rename(folder))


def _git(asked: str, folder: str, *words: str, way: str = "", **variables: str) -> str:
    command, given = [*GIT, "-C", folder, *words], os.environ | {"GIT_OPTIONAL_LOCKS": "0", **variables}
    try:
        return os.fsdecode(subprocess.check_output(command, env=given, stderr=subprocess.PIPE))
    except (OSError, subprocess.CalledProcessError) as error:
        reason = os.fsdecode(getattr(error, "stderr", b"")) or str(error)
        raise UsageError(f"{asked}: {' '.join(reason.split())}{way}") from None
