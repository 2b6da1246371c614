"""One measuring process tree: start it, talk to it, limit it, say how it ended, kill it.

Starting Python and importing torch with what an optimizer needs takes seconds; a measurement takes no longer. So
the process that is started only imports, and forks itself for each session: a session is a new process in the
state that the imports left, and nothing that an earlier one did is in it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from autotune.interrupts import END_AT_ONCE
from autotune.records import Outcome

__all__ = ["MeasuringProcess", "ProcessLostError"]

START_LIMIT = 120.0
"""Seconds in which Python must have started and imported torch."""
EXIT_LIMIT = 3.0
"""Seconds in which a session must have ended before it is killed."""
TAIL_BYTES = 4000
"""How much of a dead process's output is kept."""


class ProcessLostError(Exception):
    """A session gave no answer; ``outcome`` says what became of it, ``tail`` is the end of its output."""

    def __init__(self, outcome: Outcome, message: str, tail: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.tail = tail


class MeasuringProcess:
    """A process that forks a session when asked, in a process group of its own."""

    def __init__(self, thread_environment: Mapping[str, str]) -> None:
        self._is_busy = False
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotune.measure.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env=_environment(thread_environment),
            start_new_session=True,
        )
        END_AT_ONCE.add(self._kill)
        self._replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def open(self) -> None:
        """Begin a session. Raises ``ProcessLostError``."""
        self.ask({"op": "open"}, START_LIMIT)

    def ask(self, message: Mapping[str, Any], limit: float, blob: bytes = b"") -> dict[str, Any]:
        """Send the session a request and wait for its reply, ``limit`` seconds at most.

        Raises ``ProcessLostError`` when none comes.
        """
        reply = self._exchange(message, limit, blob)
        if "closed" in reply:
            self._is_busy = True  # what the dead session has started may still run: the group is to be killed
            raise self._describe(reply["closed"])
        return reply

    def close(self) -> bool:
        """End the session; return whether the next one may be opened here."""
        if self._is_busy:
            return False
        try:
            return self._exchange({"op": "close"}, EXIT_LIMIT)["closed"] == 0 and self._process.poll() is None
        except ProcessLostError:
            return False

    def _exchange(self, message: Mapping[str, Any], limit: float, blob: bytes = b"") -> dict[str, Any]:
        assert self._process.stdin is not None
        self._is_busy = True
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n" + blob)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._describe(self._process.wait()) from None
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            try:
                reply: dict[str, Any] = json.loads(self._replies.get(timeout=0.1))
            except queue.Empty:
                if self._process.poll() is not None and self._replies.empty():
                    raise self._describe(self._process.returncode) from None
            else:
                self._is_busy = False
                return reply
        raise ProcessLostError(Outcome.TIMEOUT, f"no answer within {limit:.0f} s", self._tail())

    def stop(self) -> None:
        """Close the conversation, and kill the whole group if that does not end it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(0.0 if self._is_busy else EXIT_LIMIT)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            self._kill()
            END_AT_ONCE.discard(self._kill)
            self._process.wait()
            self._output.close()

    def _kill(self) -> None:
        _kill_group(self._process)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._replies.put(line)

    def _describe(self, code: int) -> ProcessLostError:
        if code == -signal.SIGKILL:
            message = "the process was killed (signal 9), as the kernel does when memory runs out"
            return ProcessLostError(Outcome.HOST_OOM, message, self._tail())
        if code == -signal.SIGBUS:
            return ProcessLostError(Outcome.SHM, "bus error: shared memory (/dev/shm) was too small", self._tail())
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ProcessLostError(Outcome.CRASHED, f"the process ended without an answer ({how})", self._tail())

    def _tail(self) -> str:
        descriptor = self._output.fileno()  # the child shares the file's position, so it must not be moved
        start = max(0, os.fstat(descriptor).st_size - TAIL_BYTES)
        return os.pread(descriptor, TAIL_BYTES, start).decode(errors="replace")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and every process of its group: loader workers and what they have started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except ProcessLookupError:
        return  # all gone


def _environment(thread_environment: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment: thread counts, and a path to this package where it is not installed."""
    environment = {**os.environ, **thread_environment}
    root = str(Path(__file__).resolve().parent.parent)
    if root not in (*site.getsitepackages(), site.getusersitepackages()):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return environment
