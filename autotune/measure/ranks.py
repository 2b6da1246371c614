"""A session of several ranks: torch's elastic agent, which is what ``torchrun`` runs, starts them and ends them.

The agent is the session's own process, and each rank a fork of it; rank 0 leads the conversation. Where one of them
fails, in any way, the agent ends the others, which would wait for it for ever, and says which it was.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn

from autotune.descendants import MARK
from autotune.measure.guard import prepare_session
from autotune.measure.team import FOR_EVER, Board, Team
from autotune.postmortem import RANK_FRAME

__all__ = ["RankFailedError", "import_launcher", "raise_failure", "run_ranks"]

LOOPBACK = "127.0.0.1"
INTERFACE = "lo"
"""Linux's name of it."""
ROOT_CAUSE = 10.0
"""Seconds for which a rank that was cut off waits to be ended with the one that has failed."""
_CUT_OFF = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL error", "NCCL communicator")
"""What the others hear from gloo and NCCL when a rank has gone."""


class RankFailedError(Exception):
    """This rank cannot go on; ``reply`` is what the tuner is told."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__(reply.get("message", ""))
        self.reply = reply


def import_launcher() -> None:
    """Import what ranks need, and what torch imports once it wraps a model."""
    import torch._dynamo
    import torch.distributed.elastic.rendezvous.c10d_rendezvous_backend
    import torch.distributed.launcher.api
    import torch.nn.parallel  # noqa: F401


def run_ranks(ranks: int, serve: Callable[[Team], None]) -> dict[str, Any] | None:
    """Run ``serve`` in so many ranks; return what the tuner is told where one of them fails."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("GLOO_SOCKET_IFNAME", INTERFACE)
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # any other look at CUDA would be the ranks' end, who are forks
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # what failed is told once, by us
    logging.getLogger("torch.multiprocessing").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id="autotune",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{LOOPBACK}:0",
        local_addr=LOOPBACK,
        logs_specs=DefaultLogsSpecs(log_dir=os.environ.get(MARK)),
        max_restarts=0,
        start_method="fork",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the agent's threads, which no fork needs
            elastic_launch(config, _rank)(Board(ranks), serve, os.getpid())
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _told_of(rank, failure)
    except Exception as error:
        return {"error": "usage", "message": f"--ranks {ranks}: they could not be started: {error}"}
    return None


def _told_of(rank: int, failure: Any) -> dict[str, Any]:
    """Return what the tuner is told of a rank that failed: its own words, or how it ended."""
    told: dict[str, Any] = failure.error_file_data
    if "reply" in told:
        return dict(told["reply"])
    if isinstance(told.get("message"), dict):  # an exception that torch has written down
        details = told["message"].get("extraInfo", {}).get("py_callstack", "")
        return {"error": "user", "message": f"rank {rank}: {told['message'].get('message')}", "details": details}
    return {"closed": failure.exitcode, "rank": rank}


def _rank(board: Board, serve: Callable[[Team], None], job: int) -> None:
    """Be one rank, until the session ends."""
    prepare_session()
    name = f"{RANK_FRAME}{os.environ['RANK']}"  # where processes are made to say where they hang, this says who
    named = FunctionType(_take_part.__code__.replace(co_name=name), globals())
    named(board, serve, job)


def _take_part(board: Board, serve: Callable[[Team], None], job: int) -> None:
    try:
        serve(_join(board, job))
    except (RankFailedError, SystemExit) as failed:
        reply = getattr(failed, "reply", {"error": "user", "message": f"the user's code ended the process ({failed})"})
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w", encoding="utf-8") as file:
            json.dump({"message": str(failed), "reply": reply}, file)
        sys.exit(1)
    _leave()


def _join(board: Board, job: int) -> Team:
    import torch
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=FOR_EVER)
    return Team(dist.get_rank(), dist.get_world_size(), board, job)


def _leave() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def raise_failure(reply: dict[str, Any], error: BaseException) -> NoReturn:
    """End this rank's part; one that only lost the others leaves it to the agent to find out why.

    Raises ``RankFailedError``.
    """
    if any(sign in str(error) for sign in _CUT_OFF):
        time.sleep(ROOT_CAUSE)
    raise RankFailedError(reply)
