"""One measuring process tree: start it, talk to it, limit it, say how it ended, kill it.

Starting Python and importing torch takes seconds, as long as a measurement. So the process only imports, and forks
itself for each session: a session is a new process right after the imports, without traces of an earlier session.
"""

from __future__ import annotations

import ctypes
import os
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import psutil

from autotune.errors import UsageError
from autotune.machine.descendants import MARK, end_descendants, is_cleaner, remove_scratch
from autotune.machine.host import oom_kills
from autotune.machine.postmortem import describe_end, describe_silence, describe_worker, last_words
from autotune.machine.signals import END_AT_ONCE
from autotune.outcome import Outcome
from autotune.protocol import Channel, UnreadableError
from autotune.records import Attempt
from autotune.runner.terminal import open_terminal
from autotune.runner.watchdog import LostBatch, Watchdog, is_shared_memory_full
from autotune.torch_import import Variables

START_LIMIT = 120.0
"""Seconds in which Python must have started and imported torch."""
EXIT_LIMIT = 3.0
"""Seconds in which a session must have ended before it is killed."""
OUTPUT_BYTES = 64_000
"""Bytes of a dead process's output that are read: every worker may say where it was."""
DUMP_SECONDS, ALL_DUMPS_SECONDS = 0.5, 5.0
"""Seconds in which a process that is aborted has written its frames, and all of them have."""
UNREADABLE_SECONDS = 0.5
"""Seconds to wait for the end of the process after an unreadable reply: the end tells more than the reply."""


class ProcessLostError(Exception):
    """A session gave no answer: its ``outcome``, and the end of its output in ``tail``."""

    def __init__(self, outcome: Outcome, message: str, tail: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.tail = tail


class MeasuringProcess:
    """A process that forks a session when asked, in a process group of its own."""

    def __init__(
        self,
        variables: Variables,
        workload: int | None = None,
        folder: str | None = None,
        python: str | None = None,
    ) -> None:
        """Start the process with environment variables; it inherits a pickled workload's descriptor, if there is one.

        Its scratch folder lies in ``folder``, or among the temporary files. Raises ``ProcessLostError`` where the
        system does not let it.
        """
        self._is_busy = False
        self._watchdog: Watchdog | None = None
        self._output_begin = 0
        try:
            self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
            self.scratch = tempfile.mkdtemp(prefix="autotune-", dir=folder)
            """Path of the scratch folder, and the mark of all processes below."""
            self._process = self._start(variables, workload, python or sys.executable)
        except OSError as error:
            raise ProcessLostError(Outcome.CRASHED, f"no process can be started: {error}", "") from None
        END_AT_ONCE.add(self._process.terminate)  # it ends all below it, and itself
        self._number = self._session = 0
        """Of the last request, and of the one that has opened the session."""

    def _start(self, variables: Variables, workload: int | None, python: str) -> subprocess.Popen[bytes]:
        self._terminal, stdin = open_terminal()
        self._channel, theirs = Channel.pair()
        inherited = (theirs.fileno(), *(() if workload is None else (workload,)))
        try:
            return subprocess.Popen(
                [python, "-m", "autotune.measure.worker", *map(str, inherited)],
                stdin=stdin,
                stdout=self._output,
                stderr=self._output,
                pass_fds=inherited,
                env={**_environment(variables), MARK: self.scratch},
                process_group=0,  # no session of its own: Linux shares CPUs among sessions, and training has the user's
            )
        except BaseException:
            self._channel.close()
            self._terminal.close()
            self._output.close()
            remove_scratch(self.scratch)
            raise
        finally:
            theirs.close()
            os.close(stdin)

    def open(self, ranks: int = 1) -> dict[str, Any]:
        """Begin a session of so many ranks; return its first reply. Raises ``ProcessLostError``."""
        self._output_begin = os.fstat(self._output.fileno()).st_size
        self._watchdog = Watchdog(self._members)
        self._session = self._number + 1
        return self.ask({"op": "open", "ranks": ranks}, START_LIMIT)

    def ask(self, message: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Send the session a request and wait for its reply, ``limit`` seconds at most.

        Raises ``ProcessLostError`` when no reply comes, or a reply to another request.
        """
        kills, rank = oom_kills(), None
        try:
            reply = self._exchange(message, limit)
        except _EndedError as ended:  # what a dead session has started may still run: it stays busy, to be killed
            code = ended.code
        else:
            if "closed" not in reply:
                return reply
            code, rank = reply["closed"], reply["rank"]
        after = oom_kills()
        killed = None if kills is None or after is None else after - kills
        outcome, reason = describe_end(code, self._written(), killed)
        raise self._lost(outcome, reason if rank is None else f"rank {rank}: {reason}")

    def explain(self, attempt: Attempt) -> Attempt:
        """Return an attempt in which a loader worker died, with the worker's last output."""
        outcome, message = describe_worker(attempt.message, self._written())
        return replace(attempt, outcome=outcome, message=message, details=last_words(self._written()))

    def close(self) -> bool:
        """End the session; return whether the next one may be opened here."""
        if self._is_busy:
            return False
        self._watchdog = None
        try:
            self._exchange({"op": "close"}, EXIT_LIMIT)
        except _EndedError as ended:
            self._is_busy = False
            return ended.code == 0 and self._process.poll() is None
        except ProcessLostError:
            pass
        return False  # a session has no reply to its end

    def _exchange(self, message: Mapping[str, Any], limit: float) -> dict[str, Any]:
        self._is_busy = True
        self._number += 1
        try:
            self._channel.send(self._number, message)
        except ConnectionError:
            raise _EndedError(self._process.wait()) from None
        reply = self._await_reply(limit)
        self._is_busy = False
        return reply

    def _await_reply(self, limit: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit
        lost_batch, is_lost = LostBatch(self._written), False
        while time.monotonic() < deadline:
            if self._channel.waits(0.1):
                return self._read_reply()
            if self._process.poll() is not None and not self._channel.waits(0):
                raise _EndedError(self._process.returncode)
            if self._watchdog and (reason := self._watchdog.reason_to_end()):
                raise self._lost(*reason)
            if is_lost := lost_batch.is_final():
                break
        passed = limit - max(0.0, deadline - time.monotonic())
        if not is_lost:  # else it is known why nothing comes
            self._make_members_say_where_they_are()
        raise self._lost(*describe_silence(passed, self._written(), shared_memory_full=is_shared_memory_full()))

    def _read_reply(self) -> dict[str, Any]:
        """Return the reply to the last request, or a session's report of a failed rank.

        Raises ``_EndedError`` where the session has ended instead, and ``ProcessLostError`` for anything else: after
        that nothing is known of what the session does.
        """
        try:
            number, document = self._channel.receive()
        except EOFError:
            raise _EndedError(self._process.wait()) from None
        except UnreadableError as error:
            with suppress(subprocess.TimeoutExpired):
                raise _EndedError(self._process.wait(UNREADABLE_SECONDS)) from None
            problem = f"could not be read ({error})"
        else:
            if number == self._session and "closed" in document:
                raise _EndedError(document["closed"])
            if number == self._session and "failed" in document:
                failed: dict[str, Any] = document["failed"]
                return failed
            if number == self._number:
                return document
            problem = f"was to request {number}, not to {self._number}"
        advice = "does the workload write to descriptors that it has not opened?"
        raise self._lost(Outcome.CRASHED, f"the reply {problem}: {advice}")

    def stop(self) -> None:
        """Close the conversation, and kill everything that still runs below."""
        self._channel.close()
        try:
            self._process.wait(0.0 if self._is_busy else EXIT_LIMIT)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_descendants(self._process.pid, self.scratch)
            remove_scratch(self.scratch)  # while the process lives, which does it where the tuner ends right here
            END_AT_ONCE.discard(self._process.terminate)
            self._process.kill()
            self._process.wait()
            self._terminal.close()
            self._output.close()

    def _make_members_say_where_they_are(self) -> None:
        """Abort hanging processes before the kill, so that Python writes where they were. Cleaners go on.

        All stand still meanwhile, so that none answers to the end of another, and one writes at a time, children first:
        with their parent they would end unheard.
        """
        members = [member for member in self._members() if not is_cleaner(member)]
        for member in members:
            with suppress(psutil.Error):
                member.suspend()
        end = time.monotonic() + ALL_DUMPS_SECONDS
        for member in reversed(members):
            with suppress(psutil.Error, AttributeError):
                _abort(member)
                limit = min(end, time.monotonic() + DUMP_SECONDS)
                while member.status() != psutil.STATUS_ZOMBIE and time.monotonic() < limit:  # its parent may not notice
                    time.sleep(0.005)

    def _members(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def _lost(self, outcome: Outcome, message: str) -> ProcessLostError:
        return ProcessLostError(outcome, message, last_words(self._written()))

    def _written(self) -> str:
        descriptor = self._output.fileno()  # the child shares the file's position, so it must not be moved
        start = max(self._output_begin, os.fstat(descriptor).st_size - OUTPUT_BYTES)
        return os.pread(descriptor, OUTPUT_BYTES, start).decode(errors="replace")


def version_of(python: str) -> str:
    """Return the version of autotune that an interpreter has. Raises ``UsageError`` where it cannot import it."""
    code = "from autotune.flags import installed_version; print(installed_version())"
    try:
        asked = subprocess.run([python, "-c", code], env=_environment({}), capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"--python {python}: {error.strerror}") from None
    if asked.returncode:
        said = (asked.stderr.splitlines() or ["it ended without a word"])[-1]
        raise UsageError(f"--python {python}: {said}; {python} -m pip install torch-autotune")
    return asked.stdout.strip()


class _EndedError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _abort(process: psutil.Process) -> None:
    """Abort a suspended process, where possible in its main thread, which runs the user's code."""
    try:
        ctypes.CDLL(None).tgkill(process.pid, process.pid, signal.SIGABRT)  # glibc 2.30
    except (AttributeError, TypeError):  # an older one, or another system
        process.send_signal(signal.SIGABRT)
    process.resume()


def _environment(variables: Variables) -> dict[str, str]:
    """Return the child's environment: its own variables, and a path to this package where it is not installed."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    root = str(Path(__file__).resolve().parents[2])
    if root not in (*site.getsitepackages(), site.getusersitepackages()):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return environment
