"""Writes of a script: held while it is measured, because it starts many times and never reaches its end.

A layer takes them where the kernel lets it, copies where not; whatever neither takes, the kernel refuses.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from autotune.errors import UserCodeError
from autotune.machine.descendants import remove_folder
from autotune.measure.copies import Copies
from autotune.measure.failures import user_traceback
from autotune.measure.landlock import WHOLE, confine
from autotune.measure.overlay import MEMORY, Layers, is_below, put_layers
from autotune.source_location import is_foreign, is_installed

LARGE = 2**30
"""Bytes of a file from which it is not copied for a script that opens it for writing."""
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""Environment variables of folders that libraries write to."""
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EOVERFLOW, errno.EXDEV)
"""Numbers of errors by which the kernel refuses a write."""
SIGNS = ("permission denied", "readonly", "read-only", "unable to open", "unable to create", "errno = 13")
"""Parts of the messages of C libraries whose write was refused."""
MOST_NAMED = 3
"""Folders that a message names."""
MISSING = ("no such file", "not found", "does not exist", "cannot open", "could not open", "failed to open")
"""Parts of messages about a file that is not there."""
PATHS = re.compile(r"""'([^'\0]+)'|"([^"\0]+)"|([^\s'"\0]*[/.][^\s'"\0]*)""")
"""Parts of a message that may be paths."""
BETWEEN = re.compile(r"""[\s='"`()<>|&;]+""")
"""Characters between the words of a command."""
Means = Literal["layer", "kernel", "older kernel", "python"]
"""How writes are held: by a layer, by copies and a kernel with all rights or some, by copies of Python alone."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The writes of a script, held."""

    means: Means
    layers: Layers = field(default_factory=Layers)
    copies: Copies | None = None
    """The copies, where a layer does not take all."""
    temporary: Path | None = None
    """The folder for temporary files, where it is not the user's."""

    def begin_anew(self) -> None:
        """Make every file as it was when the writes began to be held; the working folder has to be entered again.

        Files that are open stay so. Raises ``OSError`` where that is refused, and with layers that cannot be emptied.
        """
        if self.layers.folders:
            self.layers.begin_anew()
        if self.copies is not None:
            self.copies.begin_anew()
        if self.temporary is not None:
            remove_folder(self.temporary)
            self.temporary.mkdir()

    def explain(self, error: BaseException) -> BaseException:
        """Return a script's error, with the way out where a write was refused or a copy was not seen."""
        path = getattr(error, "filename", None)
        if isinstance(path, (str, bytes)) and os.path.exists(path) and not os.access(path, os.R_OK):
            return error  # it may not even be read
        reason = self._missed(error) or self._refused(error)
        if reason is None:
            return error
        return UserCodeError(f"{type(error).__name__}: {str(error).rstrip('.')}. {reason}", user_traceback(error))

    def _missed(self, error: BaseException | None) -> str | None:
        if error is None or self.copies is None:
            return None
        path = next(filter(None, map(self.copies.unseen, _paths(error))), None)
        if path is None:
            return self._missed(error.__cause__)
        return (
            f"While it is measured, what the script writes to {path} is a copy, which child processes and some "
            "libraries do not find: pass --allow-writes where it may write there"
        )

    def _refused(self, error: BaseException) -> str | None:
        is_refusal = isinstance(error, OSError) and error.errno in REFUSALS
        if self.means == "python" or not (is_refusal or any(sign in str(error).lower() for sign in SIGNS)):
            return None
        if getattr(error, "errno", None) == errno.EOVERFLOW:
            rule = "It belongs to another user or group, or its folder does, and no layer holds writes to it"
        else:
            folders = self.layers.folders
            where = f"below {_some_of(folders)}" if folders else "with Python's own functions"
            rule = f"While it is measured a script writes {where} only"
        return f"{rule}: pass --allow-writes where it may write there"


def _paths(error: BaseException) -> list[str]:
    """Return what may be paths in an error about a file that is not there, or in the command of a child that failed."""
    if isinstance(error, subprocess.CalledProcessError):
        parts = [error.cmd] if isinstance(error.cmd, (str, bytes, os.PathLike)) else error.cmd
        return [word for part in parts for word in (os.fsdecode(part), *BETWEEN.split(os.fsdecode(part))) if word]
    text = str(error)
    if not any(sign in text.lower() for sign in MISSING):
        return []
    return [word.rstrip(".,:;") for groups in PATHS.findall(text) for word in groups if word]


def hold_writes(
    script: str, arguments: Sequence[str], folder: Path, beneath: Path | None = None, over: Sequence[str] = ()
) -> Hold:
    """Hold all writes of this process and its children from now on; they go to a new folder of the scratch folder.

    ``beneath`` is that of an earlier session. Files of an archive are seen ``over`` those of a folder: without a layer
    it is the working folder. No thread has been started yet.
    """
    scratch = str(folder.parent)
    remove_folder(folder)
    folder.mkdir()
    layers, version, copies, temporary = Layers(), 0, None, None
    if sys.platform.startswith("linux") and not _needs_driver_helper():
        _limit_copies(scratch)
        with suppress(OSError):
            wanted = [each for each in _working_folders(script) if os.access(each, os.W_OK)] + [*over[:1]]
            layers = put_layers(wanted, _folders(script, arguments), folder, beneath, over)
        if not layers.are_alone:
            version = confine([*layers.folders, scratch, "/dev", "/proc"])
    if not is_below(tempfile.gettempdir(), layers.folders):
        temporary = folder / "temporary"
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
    if not layers.folders:
        _require_disk(script)
        if over:
            _enter(*over)
    if not (layers.are_alone or (layers.folders and version)):
        (folder / "copies").mkdir()
        copies = Copies(str(folder / "copies"), [*layers.folders, scratch, "/proc"], over[1:])
        copies.install()
    return Hold("layer" if layers.folders else means_of_kernel(version), layers, copies, temporary)


def _enter(top: str, archive: str) -> None:
    """Work and look for modules in the archive of a repository's ``top``, with links to all that git does not track."""
    is_new = not os.path.lexists(os.path.join(archive, ".git"))
    for folder, folders, files in os.walk(archive) if is_new else ():
        present = moved(folder, archive, top)
        is_there = os.path.isdir(present) and os.path.realpath(present) == present
        for name in set(os.listdir(present) if is_there else ()).difference(folders, files):
            os.symlink(os.path.join(present, name), os.path.join(folder, name))
        for path in (os.path.join(folder, name) for name in files):
            if not (os.path.isfile(path) or os.path.islink(path)):
                os.remove(path)  # the mark of a file that git tracks only since
    sys.path[:] = [each if is_installed(os.path.join(each, "")) else moved(each, top, archive) for each in sys.path]
    os.chdir(moved(os.getcwd(), top, archive))


def refuse_present(base: tuple[str, str], archive: str) -> None:
    """Raise ``UserCodeError`` where a module has come from the present tree that git tracks."""
    top, commit = base
    for file in [os.path.realpath(getattr(each, "__file__", None) or "") for each in [*sys.modules.values()]]:
        is_linked = os.path.realpath(moved(file, top, archive)) == file
        if is_below(file, [top]) and not (is_linked or is_foreign(file)):
            raise UserCodeError(
                f"{file[len(top) + 1 :]} is imported from the present tree, not from {commit[:12]} (an editable "
                "install?): uninstall it and name its folder in PYTHONPATH, or run where an overlay can be mounted"
            )


def moved(path: str, top: str, other: str) -> str:
    """Return the place in another folder of a path below ``top``; all other paths stay."""
    return other + path[len(top) :] if is_below(path, [top]) else path


def means_of_kernel(version: int) -> Means:
    """Return how writes are held beside copies by a version of Landlock."""
    return "kernel" if version >= WHOLE else "older kernel" if version else "python"


def _require_disk(script: str) -> None:
    """Refuse a script in shared memory, where no copies hold what C libraries and children write."""
    for folder in _working_folders(script):
        if is_below(folder, [MEMORY]):
            raise UserCodeError(
                f"{folder} lies in shared memory, and this system holds the writes of a script there by no layer: "
                "start it from a folder on a disk, or pass --allow-writes"
            )


def _some_of(folders: Sequence[str]) -> str:
    more = f" and {len(folders) - MOST_NAMED} more folders" if len(folders) > MOST_NAMED else ""
    return ", ".join(folders[:MOST_NAMED]) + more


def _folders(script: str, arguments: Sequence[str]) -> list[str]:
    found = [os.path.expanduser("~"), tempfile.gettempdir(), "/tmp", *filter(None, map(os.environ.get, CACHES))]
    for argument in arguments:
        path = os.path.abspath(argument.rpartition("=")[2])
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        found.append(path)
    for folder in _working_folders(script):
        with os.scandir(folder) as entries:
            found += [os.path.realpath(each.path) for each in entries if each.is_symlink() and each.is_dir()]
    with suppress(OSError), os.scandir(MEMORY) as entries:
        found += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
    return found


def _working_folders(script: str) -> tuple[str, str]:
    return os.getcwd(), os.path.dirname(os.path.realpath(script))


def _needs_driver_helper() -> bool:
    """Return whether CUDA's first call starts a program with root's rights, which a confined process cannot."""
    return os.geteuid() != 0 and os.path.exists("/dev/nvidia0") and not os.path.exists("/dev/nvidia-uvm")


def _limit_copies(scratch: str) -> None:
    """Have the kernel refuse files that would fill the disk; it copies a file when a C library opens it for writing."""
    space = os.statvfs(scratch)
    most = max(LARGE, space.f_bavail * space.f_frsize // 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def refuse_large(refuse: Callable[[str], NoReturn]) -> None:
    """Have ``refuse`` called where Python is about to change a large file that is there now; ``refuse`` raises."""
    begin = time.time()

    def heed(event: str, given: tuple[Any, ...]) -> None:
        is_changed = event == "sqlite3.connect"
        if event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR):
            is_changed = not given[2] & os.O_TRUNC
        if not is_changed or not isinstance(given[0], (str, bytes)):
            return
        path = os.fsdecode(given[0])
        with suppress(OSError):
            found = os.stat(path)
            if found.st_size > LARGE and found.st_ctime < begin and not path.startswith("/dev/"):
                refuse(
                    f"{path} is opened for writing, and has {found.st_size / 2**30:.1f} GiB: its copy would take as "
                    "much room for every start; open it for reading, or pass --allow-writes"
                )

    sys.addaudithook(heed)
