"""Folders under a layer: an overlay on each, in a mount namespace of this process and its children.

What is written, renamed or deleted there is seen below this process alone, and lies in folders that are removed. All
other folders are read-only, and a process beside this one keeps the right to empty the layers.
Linux's man pages mount_namespaces(7) and user_namespaces(7), and its Documentation/filesystems/overlayfs.rst, say how.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import functools
import gc
import hashlib
import os
import re
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from autotune.machine.descendants import SHARED_MEMORY, remove_folder
from autotune.measure.landlock import NO_NEW_PRIVILEGES
from autotune.measure.subreaper import fork, tell_of_parents_death
from autotune.source_location import PACKAGE

NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000
"""Flags of ``unshare``."""
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE, DETACH = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18, 2
"""Flags of ``mount``, and one of ``umount2``."""
SET_ATTRIBUTES, RECURSIVELY, NO_AUTOMOUNT, HERE, ONLY_READ = 442, 0x8000, 0x800, -100, 1
"""The number of ``mount_setattr``, which is the same on every architecture, its flags, and an attribute."""
SYSTEM = ("/proc", "/sys", "/dev", "/run")
"""Folders that are never layered, but for folders in ``MEMORY``: what lies there is no file of a disk."""
WRITABLE = ("/dev", "/proc")
"""Folders that stay as they are beside the layers."""
MEMORY = str(SHARED_MEMORY)
SEGMENTS = ("torch_", "psm_", "sem.", "mp-", "nccl-", "cuda.")
"""How names of segments and semaphores begin, which processes share; other files there are the user's."""
MOST_FOLDERS = 64
"""Layered folders; each costs some milliseconds for every session."""
MOST_ENDPOINTS = 500
"""Sockets and pipes that stay reachable through layers; each takes a descriptor, of mostly 1,024."""
TRIED_BYTES = 2**20
"""Size of a file up to which appending is tried with it: the layer copies it."""
DONE = b"!"
"""The answer where the layers are empty."""
DROP_BOUND, CAPABILITY_VERSION, ADMINISTRATOR = 24, 0x20080522, 21
"""An option of ``prctl``, the version of ``capset``'s header, and the capability that mounts need (capabilities(7))."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers over folders."""

    folders: tuple[str, ...] = ()
    keeper: socket.socket | None = None
    """Leads to the process that empties them; ``None`` where the system cannot make all other folders read-only."""

    @property
    def are_alone(self) -> bool:
        """Whether nothing but the layers can be written to."""
        return self.keeper is not None

    def begin_anew(self) -> None:
        """Empty them; this process has to enter its working folder again. Raises ``OSError`` where that fails."""
        if self.keeper is None:
            raise OSError(errno.ENOTSUP, "this kernel cannot empty its layers")
        self.keeper.send(b"?", socket.MSG_NOSIGNAL)
        if self.keeper.recv(1) != DONE:
            raise OSError(errno.EIO, "the layers that hold its writes cannot be emptied")


def put_layers(
    wanted: Sequence[str], others: Iterable[str], upper: Path, beneath: Path | None = None, over: Sequence[str] = ()
) -> Layers:
    """Put layers over the wanted folders, and over others where that works.

    Writes go below ``upper``, a folder of the scratch folder, which stays visible and the same. An earlier session's
    ``beneath`` lies under the new layers. Of a folder with mounts below, the folders without are layered instead.
    A wanted folder and an archive whose files lie ``over`` its own may be given.
    No other thread may run yet. Raises ``OSError`` where the kernel refuses, and where a wanted folder has no layer.
    """
    here, scratch, is_foreign = os.getcwd(), str(upper.parent), _enter_namespace()
    try:
        named = [*wanted, *others]
        taken = list(_without_mounts(named))[:MOST_FOLDERS]
        nested = sorted({each for folder in named for each in _without_mounts([folder])} - set(taken), key=len)
        nested = [each for each in nested if not is_below(os.path.dirname(each), over[:1])]  # they hide the archive
        options = "userxattr" if is_foreign else "redirect_dir=on"
        with ExitStack() as files:
            places = [scratch, *([str(beneath)] if beneath and not is_below(str(beneath), [scratch]) else [])]
            for place in places:
                _mount(place, place, None, BIND | RECURSIVE)
            own = [_fixed(files, place) for place in places]  # names that layers do not hide
            mount = functools.partial(_mount_layers, upper=upper, beneath=beneath, over=over, options=options)
            layered = mount(taken, nested)
            failing = next((each for each in wanted if not (is_below(each, layered) and _allows_writing(each))), None)
            failing = next((each for each in over[:1] if each not in layered), failing)
            for folder in list(layered):
                if failing is not None or not _allows_writing(folder):
                    _detach(folder, layered.pop(folder))
            if failing is not None:
                raise OSError(errno.ENOTSUP, "no layer", failing)
            is_closed = _close_others([*layered, scratch, *own])
        _protect_memory()
        begin_anew = functools.partial(_mount_anew, layered, nested, upper, mount)
        return Layers(tuple(layered), _keep_right(begin_anew) if is_closed else None)
    finally:
        os.chdir(here)  # a mount does not move the working folder
        _drop_capabilities(everything=is_foreign)


def _mount_anew(
    layered: Mapping[str, int], nested: Sequence[str], upper: Path, mount: Callable[..., Mapping[str, int]]
) -> None:
    """Put empty layers in the place of those that are there, with the number of their mounts. Raises ``OSError``."""
    for folder in reversed(list(layered)):  # the inner ones first
        _detach(folder, layered[folder])
    for folder in layered:
        remove_folder(_place(folder, upper))
    outer = [folder for folder in layered if folder not in nested]
    inner = [folder for folder in layered if folder in nested]
    if mount(outer, inner) != layered:
        raise OSError(errno.EIO, "no layer")


def _keep_right(begin_anew: Callable[[], None]) -> socket.socket:
    """Start a process that empties the layers when it is asked; return the socket to ask it by.

    It is no child of this one, whose code may wait for its children.
    """
    ours, theirs = socket.socketpair()
    child = fork()
    if child == 0:
        between = os.getpid()
        if fork():
            os._exit(0)
        _empty_when_asked(theirs, between, begin_anew)
    theirs.close()
    os.waitpid(child, 0)
    return ours


def _empty_when_asked(theirs: socket.socket, between: int, begin_anew: Callable[[], None]) -> NoReturn:
    try:
        gc.disable()
        faulthandler.disable()  # it is not asked where it was
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.closerange(0, theirs.fileno())
        os.closerange(theirs.fileno() + 1, 2**31 - 1)
        os.chdir("/")
        while os.getppid() == between:
            time.sleep(0.001)
        tell_of_parents_death(signal.SIGKILL)
        while theirs.recv(1):
            begin_anew()
            theirs.send(DONE, socket.MSG_NOSIGNAL)
    finally:
        os._exit(0)


def _fixed(files: ExitStack, path: str | Path, flags: int = 0) -> str:
    """Return a name of a path that leads there while the ``files`` are open, whatever is mounted meanwhile."""
    file = os.open(path, os.O_PATH | flags)
    files.callback(os.close, file)
    return f"/proc/self/fd/{file}"


def _close_others(folders: Iterable[str]) -> bool:
    """Make all folders read-only but some; return whether the system can. Raises ``OSError`` where it fails halfway."""
    mounts = _mounts()
    for folder in WRITABLE:
        if folder not in mounts:
            _mount(folder, folder, None, BIND | RECURSIVE)
    if not _set_read_only("/", True, RECURSIVELY):
        return False
    for path, choices in (dict.fromkeys(WRITABLE, "rw") | mounts).items():
        if is_below(path, WRITABLE) and choices.startswith("rw"):
            _set_read_only(path, False)
    for folder in folders:
        if not _set_read_only(folder, False):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    return True


def _set_read_only(path: str, is_wanted: bool, flags: int = 0) -> bool:
    given = struct.pack("=QQQQ", ONLY_READ * is_wanted, ONLY_READ * (not is_wanted), 0, 0)
    call, words = _library().syscall, [ctypes.c_long(each) for each in (HERE, flags | NO_AUTOMOUNT, len(given))]
    return bool(call(ctypes.c_long(SET_ATTRIBUTES), words[0], os.fsencode(path), words[1], given, words[2]) == 0)


def _enter_namespace() -> bool:
    """Give this process mounts of its own; return whether it needed users of its own for that. Raises ``OSError``."""
    is_foreign = not _unshare(NEW_MOUNTS)
    if is_foreign:
        child = os.fork()  # where the system refuses the second step, the first one leaves a process nobody's
        if child == 0:
            with suppress(OSError):
                _enter_users()
                os._exit(0)
            os._exit(1)
        if os.waitpid(child, 0)[1]:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        _enter_users()
    else:
        _mount(None, "/", None, RECURSIVE | PRIVATE)
    return is_foreign


def _enter_users() -> None:
    """Give this process users of its own, with the numbers that it has, and mounts. Raises ``OSError``."""
    user, group = os.geteuid(), os.getegid()
    if not _unshare(NEW_USER | NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _mount(None, "/", None, RECURSIVE | PRIVATE)


def _mount_layers(
    folders: Sequence[str], nested: Sequence[str], upper: Path, beneath: Path | None, over: Sequence[str], options: str
) -> dict[str, int]:
    """Mount the layers of folders; return those that have them now, with the number of their mounts.

    Folders ``nested`` in them get a layer of their own where that one does not let a file be written: in a user
    namespace it cannot make the folders of other owners that lead there. One with an archive ``over`` it always does.
    """
    layered: dict[str, int] = {}
    with ExitStack() as files:  # paths lead elsewhere once the first layer is there
        scratch = str(upper.parent)
        own = [os.path.dirname(PACKAGE)] if over else []  # this code is the present one, whatever it measures
        bound = {each: _fixed(files, each, os.O_NOFOLLOW) for each in (scratch, *own)}
        for path in sorted(_endpoints(folders))[:MOST_ENDPOINTS]:
            with suppress(OSError):  # it is gone meanwhile
                bound[path] = _fixed(files, path, os.O_NOFOLLOW)
        prepared = {folder: _prepare(folder, upper, beneath, files) for folder in (*folders, *nested)}
        lowest = {folder: _fixed(files, folder) for folder in nested}
        lowest |= {folder: ":".join(_fixed(files, each) for each in reversed(over)) for folder in over[:1]}
        for folder, layers in prepared.items():
            if folder in lowest and folder not in over and _allows_writing(folder):
                continue
            with suppress(OSError):
                for layer in layers:
                    lower = lowest.pop(folder, None) or _fixed(files, folder)
                    _mount("overlay", folder, "overlay", 0, f"lowerdir={lower},{layer},{options}")
                layered[folder] = len(layers)
        for path, source in bound.items():
            if is_below(path, layered):
                with suppress(OSError) if path != scratch else nullcontext():
                    _mount(source, path, None, BIND | RECURSIVE)
    return layered


def _protect_memory() -> None:
    with suppress(OSError), os.scandir(MEMORY) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and not entry.name.startswith(SEGMENTS):
                with suppress(OSError):
                    _mount(entry.path, entry.path, None, BIND)
                    kept = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC  # a user namespace cannot take these from a mount
                    flags = os.statvfs(entry.path).f_flag & kept  # mount() has the same numbers
                    _mount(None, entry.path, None, REMOUNT | BIND | READ_ONLY | flags)


def _prepare(folder: str, upper: Path, beneath: Path | None, files: ExitStack) -> list[str]:
    """Make the folders of one layer; return the options of its mounts, the lowest first.

    An earlier session's files and the new ones are two mounts: one cannot have layers that lie inside one another, and
    scratch folders mostly lie in a layered folder.
    """
    kept, own = [_place(folder, beneath)] if beneath is not None else [], _place(folder, upper)
    for part in ("written", "work"):
        (own / part).mkdir(parents=True)
    written, found = own / "written", os.stat(folder)
    with suppress(OSError):  # an owner who has no number in a user namespace is refused in several ways
        os.chown(written, found.st_uid, found.st_gid)
    written.chmod(stat.S_IMODE(found.st_mode))
    places = [*filter(Path.is_dir, kept), own]
    names = [[_fixed(files, place / part) for part in ("written", "work")] for place in places]
    return [f"upperdir={written},workdir={work}" for written, work in names]


def _place(folder: str, upper: Path) -> Path:
    return upper / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]


def _mounts() -> dict[str, str]:
    """Return the options of each folder that something is mounted on, of the last mount there."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    fields = [line.split() for line in lines]
    return {re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), each[4]): each[5] for each in fields}


def _without_mounts(folders: Iterable[str]) -> Iterator[str]:
    """Yield folders without mounts below, none inside another: those asked for, or the folders in them."""
    mounts, yielded = _mounts(), list[str]()
    waiting = sorted({os.path.realpath(folder) for folder in folders}, key=len)
    while waiting:
        folder = waiting.pop(0)
        is_of_system = folder == "/" or (is_below(folder, SYSTEM) and not folder.startswith(MEMORY + os.sep))
        if is_of_system or is_below(folder, yielded) or not os.access(folder, os.W_OK):
            continue
        if any(mount != folder and is_below(mount, [folder]) for mount in mounts):
            with os.scandir(folder) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        elif os.path.isdir(folder):
            yielded.append(folder)
            yield folder


def _endpoints(folders: Sequence[str]) -> set[str]:
    """Return sockets and pipes in folders that other processes may be listening at: a layer's copy has no listener."""
    with Path("/proc/net/unix").open(encoding="utf-8", errors="replace") as lines:
        next(lines)
        found = {fields[7].rstrip("\n") for line in lines if len(fields := line.split(" ", 7)) == 8}
    sockets = {path.lstrip() for path in found}
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            sockets |= {each.path for each in entries if stat.S_ISFIFO(each.stat(follow_symlinks=False).st_mode)}
    return {path for path in sockets if is_below(path, folders) and _is_endpoint(path)}


def _is_endpoint(path: str) -> bool:
    with suppress(OSError):
        mode = os.lstat(path).st_mode
        return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
    return False


def _allows_writing(folder: str) -> bool:
    """Return whether a file can be made, renamed and removed in a layered folder, and one that is there appended to."""
    first, second = (os.path.join(folder, f".autotune-{os.getpid()}-{number}") for number in range(2))
    try:
        with open(first, "xb"):
            pass
        os.rename(first, second)
        os.remove(second)
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
                if is_own and found.st_size <= TRIED_BYTES and os.access(entry.path, os.W_OK):
                    with open(entry.path, "ab"):
                        return True
        return True
    except OSError:
        return False


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of some folders, or lies below one."""
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def _drop_capabilities(*, everything: bool) -> None:
    """Give up the right to mount, or all rights of a user namespace: a script has those of its user, and no more."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable; then their upper halves
    if _library().capget(header, held):
        return
    kept = 0 if everything else ~(1 << ADMINISTRATOR) & 0xFFFFFFFF
    for place in range(6):
        held[place] &= kept if place < 3 else (0 if everything else 0xFFFFFFFF)
    _library().prctl(DROP_BOUND, ADMINISTRATOR, 0, 0, 0)
    _library().prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _library().capset(header, held)


def _unshare(flags: int) -> bool:
    return bool(_library().unshare(flags) == 0)


def _detach(folder: str, mounts: int) -> None:
    for _ in range(mounts):
        if _library().umount2(os.fsencode(folder), DETACH):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    given = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    if _library().mount(*given[:3], ctypes.c_ulong(flags), given[3]):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
