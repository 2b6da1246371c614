"""The parent's end of the process boundary: start a measuring process, ask it, limit it, kill it, classify its end."""

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
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from autotune.config import Config
from autotune.errors import UsageError, UserCodeError
from autotune.records import Attempt, Outcome, Request, WorkloadFacts, facts_from_json, measurement_from_json
from autotune.workload import ImportedWorkload, WorkloadSource

__all__ = ["ProcessRunner"]

LOAD_LIMIT = 300.0
"""Seconds in which a workload must have been built."""
EXIT_LIMIT = 3.0
"""Seconds in which a measuring process must have left before it is killed."""
TAIL_BYTES = 4000
"""How much of a dead process's output is kept."""


class ProcessRunner:
    """Measures on this machine, in a process of its own for each set of threads.

    On a CPU configurations that differ in the loader, batch size or precision share a process; on an
    accelerator only those that differ in the loader do, because memory fragments and kernels are chosen per
    process. ``request.fresh`` always starts a new one.
    """

    def __init__(self, source: WorkloadSource, device: str = "auto") -> None:
        self._source = source
        self._device = device
        self._child: _Child | None = None
        self._key: tuple[Any, ...] | None = None
        self._on_cpu = False

    def inspect(self, baseline: Config) -> WorkloadFacts:
        """Load the workload in a process that the baseline can be measured in, and describe it.

        Raises ``UsageError`` and ``UserCodeError``.
        """
        try:
            reply = self._start(baseline).ask({"op": "inspect"}, LOAD_LIMIT)
        except _ChildLost as lost:
            raise UserCodeError(f"loading the workload: {lost}", lost.tail) from None
        facts = facts_from_json(_unwrap(reply)["facts"])
        self._on_cpu = facts.device == "cpu"
        self._key = self._process_key(baseline)
        return facts

    def measure(self, config: Config, request: Request) -> Attempt:
        """Measure one configuration; failures are outcomes, never exceptions."""
        begin = time.monotonic()
        try:
            attempt = self._ask_to_measure(config, request)
        except _ChildLost as lost:
            self._stop()
            attempt = Attempt(outcome=lost.outcome, message=str(lost), details=lost.tail)
        except (UsageError, UserCodeError) as error:
            self._stop()
            details = getattr(error, "user_traceback", "")
            attempt = Attempt(outcome=Outcome.USER_ERROR, message=str(error), details=details)
        if request.fresh or attempt.measurement is None:
            self._stop()  # a failure may have left weights, memory or the device in a state of its own
        return replace(attempt, seconds=time.monotonic() - begin)

    def close(self) -> None:
        """End the measuring process and everything it has started."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask_to_measure(self, config: Config, request: Request) -> Attempt:
        key = self._process_key(config)
        if self._child is None or request.fresh or key != self._key:
            self._stop()
            self._start(config)
            self._key = key
        assert self._child is not None
        message = {"op": "measure", "config": config.to_document(), "request": asdict(request)}
        reply = _unwrap(self._child.ask(message, request.time_limit))
        measurement = reply["measurement"]
        return Attempt(
            outcome=Outcome(reply["outcome"]),
            measurement=measurement_from_json(measurement) if measurement else None,
            message=reply["message"],
            details=reply["details"],
        )

    def _process_key(self, config: Config) -> tuple[Any, ...]:
        threads = (config.intra_op_threads, config.inter_op_threads)
        if self._on_cpu:
            return threads
        return (*threads, config.batch_size, config.amp, config.accumulation_steps)

    def _start(self, config: Config) -> _Child:
        child = self._child = _Child(config.thread_environment())
        message, blob = _load_message(self._source, self._device, config)
        _unwrap(child.ask(message, LOAD_LIMIT, blob))
        return child

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
        self._child = self._key = None


class _ChildLost(Exception):
    """The measuring process gave no answer."""

    def __init__(self, outcome: Outcome, message: str, tail: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.tail = tail


class _Child:
    """One measuring process, in a process group of its own."""

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
        self._replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, message: Mapping[str, Any], limit: float, blob: bytes = b"") -> dict[str, Any]:
        """Send a request and wait for its reply, ``limit`` seconds at most.

        Raises ``_ChildLost`` when none comes.
        """
        assert self._process.stdin is not None
        self._is_busy = True
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n" + blob)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._describe_end() from None
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            try:
                reply: dict[str, Any] = json.loads(self._replies.get(timeout=0.1))
            except queue.Empty:
                if self._process.poll() is not None and self._replies.empty():
                    raise self._describe_end() from None
            else:
                self._is_busy = False
                return reply
        raise _ChildLost(Outcome.TIMEOUT, f"no answer within {limit:.0f} s", self._tail())

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
            _kill_group(self._process)
            self._process.wait()
            self._output.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._replies.put(line)

    def _describe_end(self) -> _ChildLost:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            message = "the process was killed (signal 9), as the kernel does when memory runs out"
            return _ChildLost(Outcome.HOST_OOM, message, self._tail())
        if code == -signal.SIGBUS:
            return _ChildLost(Outcome.SHM, "bus error: shared memory (/dev/shm) was too small", self._tail())
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return _ChildLost(Outcome.CRASHED, f"the process ended without an answer ({how})", self._tail())

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


def _load_message(source: WorkloadSource, device: str, config: Config) -> tuple[dict[str, Any], bytes]:
    blob = b"" if isinstance(source, ImportedWorkload) else source.blob
    message = {
        "op": "load",
        "model": source.model if isinstance(source, ImportedWorkload) else None,
        "dataset": source.dataset if isinstance(source, ImportedWorkload) else None,
        "path": source.path,
        "blob_bytes": len(blob),
        "device": device,
        "config": config.to_document(),
    }
    return message, blob


def _unwrap(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply, or raise the error that it carries."""
    if reply.get("error") == "usage":
        raise UsageError(reply["message"])
    if reply.get("error") == "user":
        raise UserCodeError(reply["message"], reply.get("details", ""))
    return reply
