"""A session of several ranks: each is a fork of the session's own process, which waits for them and ends them.

Ranks of one host meet in a file of the private scratch folder, from which nothing is unpickled. They talk over the
loopback interface: no port is open to other hosts. Rank 0 leads the conversation with the tuner. Where one of them
fails, the others, which would wait for it for ever, are ended.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn, TypeVar

import torch

from autotune.machine.descendants import MARK
from autotune.machine.postmortem import RANK_FRAME
from autotune.measure.failures import classify
from autotune.measure.rank_group import FOR_EVER, INTERFACE, RankGroup
from autotune.measure.subreaper import end_at_once, fork, prepare_session

T = TypeVar("T")

ROOT_CAUSE = 10.0
"""Seconds for which a rank that was cut off waits to be ended with the failed rank."""
_CUT_OFF = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe"),
    *("ncclRemoteError", "remote process exited", "NCCL communicator"),
)
"""Errors of gloo and NCCL in the others when a rank has gone."""
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""The address that scripts read; nobody listens there."""


class RankFailedError(Exception):
    """This rank cannot go on; ``reply`` is for the tuner."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__(reply.get("message", ""))
        self.reply = reply


def run_ranks(ranks: int, serve: Callable[[RankGroup], None]) -> dict[str, Any] | None:
    """Run ``serve`` in so many ranks; return the reply to the tuner where a rank fails.

    Touches no accelerator: a process with a CUDA context cannot fork ranks that use one. Ranks have the environment of
    ``torchrun``, but for its agent's: whoever makes torch's default group meets in files, by ``meet_in_files``.
    """
    folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=os.environ.get(MARK)))
    started, job = dict[int, int](), os.getpid()
    try:
        for rank in range(ranks):
            if (process := fork()) == 0:
                _be(rank, ranks, folder, serve, job)
            started[process] = rank
    except OSError as error:
        _end(started)
        return {"error": "usage", "message": f"--ranks {ranks}: they could not be started: {error}"}
    failed = _await(started)
    if failed is None:
        return None
    _end(started)
    rank, code = failed
    with suppress(OSError, ValueError):  # its own words, where it had time for any
        told: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text(encoding="utf-8"))
        return told
    return {"closed": code, "rank": rank}


def of_rank(rank: int, function: Callable[..., T]) -> Callable[..., T]:
    """Return a function under a name by which its process, made to say where it hangs, says who it is."""
    code = function.__code__.replace(co_name=f"{RANK_FRAME}{rank}")
    return FunctionType(code, function.__globals__)


def meet_in_files(group: RankGroup, refuse: Callable[[str], NoReturn]) -> None:
    """Have the user's default group meet in files of the private folder, anew each time that it is made.

    A port of its own would be open to other hosts: an address that the code names is refused.
    """
    dist: Any = torch.distributed
    meetings = itertools.count()

    def meet(url: str, *_: Any, **options: Any) -> Iterator[tuple[Any, int, int]]:
        yield dist.FileStore(f"{group.folder}/meeting-{next(meetings)}", group.size), group.rank, group.size

    def meet_elsewhere(url: str, *_: Any, **options: Any) -> NoReturn:
        refuse(f"makes its process group at {url}: call init_process_group without an address, as under torchrun")

    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    handlers |= {"env": meet, "tcp": meet_elsewhere}


def make_default_group(group: RankGroup) -> None:
    """Make torch's default group of these ranks."""
    dist: Any = torch.distributed
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store = dist.FileStore(str(group.folder / "store"), group.size) if group.folder else None
    dist.init_process_group(backend, store=store, rank=group.rank, world_size=group.size, timeout=FOR_EVER)


def _be(rank: int, ranks: int, folder: Path, serve: Callable[[RankGroup], None], job: int) -> NoReturn:
    code = 1
    with suppress(BaseException):
        prepare_session()
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
        names |= {"GROUP_WORLD_SIZE": 1, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": ranks}
        os.environ |= {name: str(value) for name, value in names.items()} | ADDRESS
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = INTERFACE
        code = of_rank(rank, _take_part)(rank, ranks, folder, serve, job)
    end_at_once(code)


def _await(started: dict[int, int]) -> tuple[int, int] | None:
    """Wait until all ranks have ended, or the first has failed: return that one and its exit code.

    Takes those that have ended out of ``started``.
    """
    while started:
        process, status = os.waitpid(-1, 0)
        rank = started.pop(process, None)
        if rank is not None and status:
            return rank, os.waitstatus_to_exitcode(status)
    return None


def _end(processes: Iterable[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _take_part(rank: int, ranks: int, folder: Path, serve: Callable[[RankGroup], None], job: int) -> int:
    try:
        serve(RankGroup(rank, ranks, folder, job))
        return 0
    except RankFailedError as failed:
        reply = failed.reply
    except SystemExit as end:
        reply = {"error": "user", "message": f"the user's code ended the process ({end})"}
    except BaseException as error:
        outcome, message, _ = classify(error)
        details = traceback.format_exc()
        reply = {"error": "user", "outcome": outcome, "message": f"rank {rank}: {message}", "details": details}
    (folder / f"{rank}.json").write_text(json.dumps(reply), encoding="utf-8")
    return 1


def raise_failure(reply: dict[str, Any], error: BaseException) -> NoReturn:
    """End this rank's part; one that only lost the others leaves it to the other to say why.

    Raises ``RankFailedError``.
    """
    if any(sign in str(error) for sign in _CUT_OFF):
        time.sleep(ROOT_CAUSE)
    raise RankFailedError(reply)
