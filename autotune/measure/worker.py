"""The measuring process: ``python -m autotune.measure.worker``.

Reads requests from its standard input, one JSON object a line (``load`` may be followed by pickled bytes), and
answers each with one JSON object on its standard output: ``open`` begins a session, ``load``, ``inspect`` and
``measure`` are for it, ``close`` ends it. The user's own output goes to standard error, and the user's code reads an
empty standard input, so neither can disturb the conversation. It can be run by hand.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from autotune.cgroup import oom_kills
from autotune.config import Config
from autotune.errors import UsageError, UserCodeError
from autotune.host import inspect_host
from autotune.measure.failure import classify, user_traceback
from autotune.measure.guard import become_guard, end_at_once, end_of, leave, prepare_session
from autotune.records import Attempt, Measurement, Outcome, Request
from autotune.workload import ImportedWorkload, PickledWorkload, Workload, WorkloadSource

__all__ = ["main"]

ROOT = Path("/")


class Session:
    """One loaded workload, and the warm cell of the configurations measured last."""

    def __init__(self, workload: Workload, device: str) -> None:
        from autotune.measure.device import open_device

        self._workload = workload
        self._device = open_device(device)
        self._options: tuple[str, ...] = ()
        """What was applied to the model; it stays."""
        self._key: tuple[Any, ...] | None = None
        self._cell: Any = None

    def facts(self) -> dict[str, Any]:
        """Describe the workload and the device."""
        from autotune.measure.inspect import inspect

        return asdict(inspect(self._workload, self._device))

    def measure(self, config: Config, request: Request) -> Attempt:
        """Measure one configuration, or one part of it; what goes wrong becomes an outcome."""
        config.apply_threads()
        kills = oom_kills(ROOT) or 0
        try:
            if request.part == "loader":
                return self._look_at_loader(config, request)
            if request.part == "compute":
                return self._look_at_step(config)
            if request.part == "numerics":
                return self._look_at_losses(config, request)
            if request.part == "anatomy":
                return self._look_inside(config, request)
            if request.part == "trace":
                return self._trace(config, request)
            return self._train(config, request)
        except Exception as error:
            outcome, message, details = classify(error, (oom_kills(ROOT) or 0) - kills)
            return Attempt(outcome=outcome, message=message, details=details)

    def _look_at_loader(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.looks import look_at_loader

        trace = look_at_loader(self._workload, config.batch_size, self._device, request.seconds)
        return Attempt(outcome=Outcome.OK, loader=trace)

    def _look_at_step(self, config: Config) -> Attempt:
        cell = self._open_cell(config)
        if cell.disturbances:
            self._key = None
        outcome = Outcome.SUSPECT if cell.disturbances else Outcome.OK
        return Attempt(outcome=outcome, compute=cell.compute, message="; ".join(cell.disturbances))

    def _look_at_losses(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.numerics import check_numerics

        if config.options:
            self._require_options(())  # plain fp32 comes first
        self._drop_cell()  # its optimizer needs memory that is wanted here
        self._options = config.options
        check = check_numerics(self._workload, config, self._device, request.seconds)
        return Attempt(outcome=Outcome.OK, numerics=check)

    def _look_inside(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.anatomy import look_inside

        self._take_options(config)
        self._drop_cell()  # for its memory, and because the look trains with another optimizer
        anatomy = look_inside(self._workload, config, self._device, request.seconds)
        return Attempt(outcome=Outcome.OK, anatomy=anatomy)

    def _trace(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.trace import trace_steps

        trace = trace_steps(self._workload, config, self._open_cell(config), self._device, request)
        self._drop_cell()  # the memory that the profiler took would count as that of the next configuration
        return Attempt(outcome=Outcome.OK, trace=trace)

    def _drop_cell(self) -> None:
        self._key = self._cell = None
        gc.collect()  # a step holds itself through its optimizer

    def _train(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.benchmark import measure

        cell = self._open_cell(config)
        measurement = measure(self._workload, config, cell, self._device, request)
        reason = _reason_against(measurement)
        if reason is not None:
            return Attempt(outcome=reason[0], message=reason[1])
        is_disturbed = bool(measurement.conditions.disturbances or cell.disturbances)
        if is_disturbed:
            self._key = None  # the next one warms up again, for a ceiling to be trusted
        outcome = Outcome.SUSPECT if is_disturbed else Outcome.OK
        notes = dict.fromkeys((*measurement.notes, *cell.disturbances))
        return Attempt(outcome=outcome, measurement=measurement, message="; ".join(notes))

    def _open_cell(self, config: Config) -> Any:
        from autotune.measure.cell import open_cell

        key = (config.batch_size, config.amp, config.accumulation_steps, config.options)
        if key != self._key:
            self._take_options(config)
            self._drop_cell()
            self._device.forget_peaks()
            self._cell = open_cell(self._workload, config, self._device)
            self._key = key
        return self._cell

    def _take_options(self, config: Config) -> None:
        """Note the options that are about to be applied, to a model that has none others."""
        self._require_options((), config.options)
        self._options = config.options

    def _require_options(self, *allowed: tuple[str, ...]) -> None:
        """Refuse to measure with options of another configuration: they cannot be taken off a model."""
        if self._options not in allowed:
            raise UsageError(f"this session's model has {', '.join(self._options)}: open another session")


def _reason_against(measurement: Measurement) -> tuple[Outcome, str] | None:
    """Return why a configuration that could be timed cannot be used all the same."""
    if measurement.loss is not None and not math.isfinite(measurement.loss):
        return Outcome.NUMERICS, f"the loss became {measurement.loss}"
    needed, limit = measurement.epoch_host_memory_bytes, inspect_host().memory_bytes
    if needed is not None and needed > limit:
        return Outcome.HOST_OOM, (
            f"the loader workers' memory grows: by the end of an epoch {needed / 2**30:.1f} of {limit / 2**30:.1f} GiB "
            "would be needed; keep large data in arrays or tensors, of which workers do not make copies"
        )
    return None


def main() -> None:
    """Answer requests until standard input ends; where it is safe, each session in a fork of its own.

    On Linux this process imports what every session needs, and loads and computes nothing itself.
    """
    become_guard()
    requests, replies = _take_channels()
    for line in requests:
        assert json.loads(line) == {"op": "open"}, "a session must be opened first"
        if not sys.platform.startswith("linux"):
            prepare_session()
            _serve(requests, replies)
            _send(replies, {"closed": 0})
            return
        _import_everything()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the threads that imports leave idle
            session = os.fork()
        if session == 0:
            prepare_session()
            _serve(requests, replies)
            end_at_once()
        _send(replies, {"closed": end_of(session)})
    leave()


def _import_everything() -> None:
    """Import what each session would."""
    import torch

    import autotune.measure.anatomy
    import autotune.measure.benchmark
    import autotune.measure.inspect
    import autotune.measure.looks
    import autotune.measure.numerics
    import autotune.measure.trace  # noqa: F401

    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # the first optimizer imports for more than a second


def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer the requests of one session."""
    _send(replies, {"opened": True})
    session: Session | None = None
    for line in requests:
        message = json.loads(line)
        if message["op"] == "close":
            return
        try:
            if message["op"] == "load":
                session = _load(message, requests)
                reply: dict[str, Any] = {"loaded": True}
            elif session is None:
                raise UsageError("load a workload first")
            elif message["op"] == "inspect":
                reply = {"facts": session.facts()}
            else:
                config = Config.from_document(message["config"])
                reply = asdict(session.measure(config, Request(**message["request"])))
        except UsageError as error:
            reply = {"error": "usage", "message": str(error)}
        except UserCodeError as error:
            reply = {"error": "user", "message": str(error), "details": error.user_traceback}
        except Exception as error:
            reply = {"error": "user", "message": classify(error)[1], "details": user_traceback(error)}
        _send(replies, reply)


def _send(replies: BinaryIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


def _load(message: dict[str, Any], requests: BinaryIO) -> Session:
    from autotune.workload import load

    blob = _read(requests, message["blob_bytes"])
    path = tuple(message["path"])
    source: WorkloadSource
    if message["model"] is None:
        source = PickledWorkload(blob=blob, path=path, settings=message["settings"])
    else:
        source = ImportedWorkload(model=message["model"], dataset=message["dataset"], path=path)
    Config.from_document(message["config"]).apply_threads()
    return Session(load(source), message["device"])


def _read(requests: BinaryIO, count: int) -> bytes:
    """Read so many bytes; an unbuffered pipe gives them in pieces."""
    content = bytearray()
    while len(content) < count and (piece := requests.read(count - len(content))):
        content += piece
    return bytes(content)


def _take_channels() -> tuple[BinaryIO, BinaryIO]:
    """Keep standard input and output for the conversation, and give the user's code harmless ones."""
    requests = os.fdopen(os.dup(0), "rb", buffering=0)  # what is read ahead before a fork would be read twice
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


if __name__ == "__main__":
    main()
    end_at_once()
