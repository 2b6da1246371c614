"""Running a function in several processes that are ranks of one process group."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing

from autotune.measure.rank_group import RankGroup


def in_ranks(ranks: int, folder: Path, function: Callable[[RankGroup], Any]) -> list[Any]:
    """Return what the function, a member of a team of so many, returns in each; plain values."""
    torch.multiprocessing.start_processes(_take_part, (ranks, str(folder), function), nprocs=ranks, start_method="fork")
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


def _take_part(rank: int, ranks: int, folder: str, function: Callable[[RankGroup], Any]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    found = function(RankGroup(rank, ranks, Path(folder)))
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()
