"""The measuring process: ``python -m autotune.measure.worker``.

Reads requests from its standard input, one JSON object a line (``load`` may be followed by pickled bytes), and
answers each with one JSON object on its standard output: ``open`` begins a session of one or several ranks, ``load``,
``inspect`` and ``measure`` are for it, ``close`` ends it. The user's own output goes to standard error, and the user's
code reads an empty standard input, so neither can disturb the conversation. It can be run by hand.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, BinaryIO

from autotune.config import Config
from autotune.errors import UsageError, UserCodeError
from autotune.measure.failure import classify, user_traceback
from autotune.measure.guard import become_guard, end_at_once, end_of, leave, prepare_session
from autotune.measure.ranks import RankFailedError, import_launcher, raise_failure, run_ranks
from autotune.measure.session import Session
from autotune.measure.team import ALONE, Team
from autotune.records import Request
from autotune.workload import ImportedWorkload, PickledWorkload, WorkloadSource

__all__ = ["main"]


def main() -> None:
    """Answer requests until standard input ends; where it is safe, each session in a fork of its own.

    On Linux this process imports what every session needs, and loads and computes nothing itself.
    """
    become_guard()
    with suppress(BrokenPipeError):  # the tuner has ended before this process could be told
        _serve_sessions(*_take_channels())
    leave()


def _serve_sessions(requests: BinaryIO, replies: BinaryIO) -> None:
    for line in requests:
        message = json.loads(line)
        assert message["op"] == "open", "a session must be opened first"
        ranks = message.get("ranks", 1)
        if not sys.platform.startswith("linux"):
            prepare_session()
            _serve(requests, replies, ALONE)
            _send(replies, {"closed": 0})
            return
        _import_everything()
        if ranks > 1:
            import_launcher()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the threads that imports leave idle
            session = os.fork()
        if session == 0:
            prepare_session()
            if ranks == 1:
                _serve(requests, replies, ALONE)
            else:
                _serve_ranks(ranks, requests, replies)
            end_at_once()
        _send(replies, {"closed": end_of(session)})


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


def _serve_ranks(ranks: int, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer the requests of one session in several ranks; once one has failed, wait for the session's end."""
    failure = run_ranks(ranks, lambda team: _serve(requests, replies, team))
    if failure is not None:
        _send(replies, failure)
        for line in requests:
            if json.loads(line)["op"] == "close":
                return
            _send(replies, failure)


def _serve(requests: BinaryIO, replies: BinaryIO, team: Team) -> None:
    """Answer the requests of one session; of several ranks the first replies for all."""
    if team.leads:
        _send(replies, {"opened": True})
    session: Session | None = None
    for message, blob in _messages(requests, team):
        try:
            if message["op"] == "load":
                session = _load(message, blob, team)
                reply: dict[str, Any] = {"loaded": all(team.gather(True))}
            elif session is None:
                raise UsageError("load a workload first")
            elif message["op"] == "inspect":
                reply = {"facts": session.facts()}
            else:
                config = Config.from_document(message["config"])
                reply = asdict(session.measure(config, Request(**message["request"])))
        except RankFailedError:
            raise
        except Exception as error:
            reply = _refusal(error)
            if team.size > 1:
                raise_failure(reply, error)
        if team.leads:
            _send(replies, reply)


def _messages(requests: BinaryIO, team: Team) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the requests up to the session's end, in every rank; bytes may belong to one."""
    close: tuple[dict[str, Any], bytes] = {"op": "close"}, b""
    while True:
        line = requests.readline() if team.leads else b""
        message = json.loads(line) if line else close[0]
        blob = _read(requests, message.get("blob_bytes", 0)) if team.leads else b""
        message, blob = team.tell((message, blob))
        if message["op"] == "close":
            return
        yield message, blob


def _refusal(error: Exception) -> dict[str, Any]:
    """Return what the tuner is told where there is nothing to measure."""
    if isinstance(error, UsageError):
        return {"error": "usage", "message": str(error)}
    if isinstance(error, UserCodeError):
        return {"error": "user", "message": str(error), "details": error.user_traceback}
    return {"error": "user", "message": classify(error)[1], "details": user_traceback(error)}


def _send(replies: BinaryIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


def _load(message: dict[str, Any], blob: bytes, team: Team) -> Session:
    from autotune.workload import load

    path = tuple(message["path"])
    source: WorkloadSource
    if message["model"] is None:
        source = PickledWorkload(blob=blob, path=path, settings=message["settings"])
    else:
        source = ImportedWorkload(model=message["model"], dataset=message["dataset"], path=path)
    Config.from_document(message["config"]).apply_threads()
    return Session(load(source), message["device"], team)


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
