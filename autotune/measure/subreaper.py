"""The parent of the sessions ends everything that would outlive them, even where the tuner is killed.

On Linux orphans below it become its children, and the kernel tells it when its parent dies. Elsewhere nobody is told:
a session's processes end with the tuner's own ``stop``, and stay where the tuner is killed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import multiprocessing.util
import os
import resource
import signal
import sys
import termios
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

from autotune.machine.descendants import (
    LATER,
    MARK,
    end_descendants,
    remove_folder,
    remove_scratch,
    remove_segments_of_noted,
)

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36
"""Options of Linux's ``prctl``."""
OOM_SCORE = 500
"""Addition to a session's score with the kernel's killer: half of all memory there is."""


def become_subreaper() -> None:
    """Make this process take in the orphans below it and, when its parent dies, end them and itself; Linux only."""
    _leave_terminal()
    if not sys.platform.startswith("linux"):
        return
    signal.signal(signal.SIGTERM, _end_everything)
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)
    tell_of_parents_death(signal.SIGTERM)


def prepare_session() -> None:
    """Make this process one that the user's code may run in: it dies with its guard, and says where it crashed."""
    if sys.platform.startswith("linux"):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        tell_of_parents_death(signal.SIGKILL)
    faulthandler.enable(sys.stderr, all_threads=False)
    size_of = os.get_terminal_size
    os.get_terminal_size = lambda descriptor=1, /: size_of(0 if descriptor in (1, 2) else descriptor)  # they are a file
    with suppress(OSError, ValueError):
        # a crash is an outcome that is expected: it must not fill the user's folder with memory images
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with suppress(OSError):  # so that out of memory the kernel takes what is measured, and not the tuner or notebook
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    if MARK in os.environ:
        process: Any = multiprocessing.current_process()
        process._config["tempdir"] = os.environ[MARK]  # sockets and pipes of loader workers, which may be killed


def end_of(session: int) -> int:
    """Wait for a session, end all that it has left behind, and return its exit code, a signal's number below zero."""
    status = None
    while status is None:
        number, found = os.waitpid(-1, 0)  # orphans, too: nobody else waits for them
        status = found if number == session else None
    end_descendants(os.getpid())
    if MARK in os.environ:
        remove_segments_of_noted(os.environ[MARK])
        remove_folder(Path(os.environ[MARK], LATER))
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return os.waitstatus_to_exitcode(status)


def fork() -> int:
    """Fork this process, without the warning of the threads that imports leave idle."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return os.fork()


def end_at_once(code: int = 0) -> NoReturn:
    """End this process in order, without unloading its imports: in a fork they alone take a second.

    Loader workers are ended and temporary folders removed. The exit handlers of other code, which may wait for
    compilers or uploads, are not called.
    """
    workers, folders = cast(Any, multiprocessing.util), cast(Any, weakref.finalize)
    for leave in (workers._exit_function, folders._exitfunc):
        with suppress(Exception):
            leave()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def _end_everything(*_: object) -> None:
    end_descendants(os.getpid())
    remove_scratch(os.environ.get(MARK))
    os.kill(os.getpid(), signal.SIGKILL)


def tell_of_parents_death(number: signal.Signals) -> None:
    """Have the kernel send this process a signal once its parent dies; Linux only."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before
        os.kill(os.getpid(), number)


def _leave_terminal() -> None:
    """Give up the terminal for this process and its children: a measurement asks nobody, and changes nothing.

    It stays in the user's session, among whose processes Linux shares the CPUs.
    """
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
        os.close(terminal)
