"""What torchrun trains with a file for several ranks: the same losses as one process, at the same effective batch."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autotune.config import Config
from tests.processes import printed
from tests.ranks.train import SAMPLES
from tests.server import free_port

pytestmark = pytest.mark.machine

HERE = Path(__file__).parent


LAUNCHER = (
    "-m torch.distributed.run --master-addr 127.0.0.1 --master-port 0 --rdzv-backend c10d "
    "--rdzv-endpoint 127.0.0.1:0 --nproc-per-node 2"
)
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
"""What torchrun says to a single process."""


def curve(folder: Path, config: Config) -> dict[str, Any]:
    """Start the training script in its ranks, as its user does, and return what it writes."""
    folder.mkdir()
    config.save(folder / "autotune.yaml")
    launcher, given = (
        (LAUNCHER.split(), dict[str, str]()) if config.ranks > 1 else ([], ALONE | {"MASTER_PORT": str(free_port())})
    )
    given |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    printed(*launcher, "-m", "tests.ranks.train", "curve", folder=folder, **given)
    found: dict[str, Any] = json.loads((folder / "curve.json").read_text(encoding="utf-8"))
    return found


def steps_of(losses: list[list[tuple[float, int]]], batches: int) -> list[float]:
    """The mean loss over the samples of each step of the optimizer, of all ranks; epochs end in a short one."""
    per_epoch = SAMPLES // len(losses) / losses[0][0][1]
    ends = [0]
    while ends[-1] < len(losses[0]):
        epoch_end = -(-(ends[-1] + 1) // -(-per_epoch // 1)) * -(-per_epoch // 1)
        ends.append(int(min(ends[-1] + batches, epoch_end)))
    parts = [[batch for rank in losses for batch in rank[first:last]] for first, last in pairwise(ends)]
    return [sum(loss * count for loss, count in part) / sum(count for _, count in part) for part in parts]


def test_the_documentation_shows_the_loop() -> None:
    text = (HERE / "training_loop.py").read_text(encoding="utf-8")
    assert f"```python\n{text}```" in (HERE.parents[1] / "docs" / "ranks.md").read_text(encoding="utf-8")


def test_two_ranks_train_as_one_process_does_with_the_same_samples_in_a_step(tmp_path: Path) -> None:
    together = curve(tmp_path / "two", Config(batch_size=4, accumulation_steps=2, ranks=2))
    alone = curve(tmp_path / "one", Config(batch_size=16))
    found, expected = steps_of(together["losses"], 2), steps_of(alone["losses"], 1)
    assert len(found) == len(expected) == 16
    assert found == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0] / 2
    for mine, theirs in zip(together["weights"], alone["weights"], strict=True):
        assert mine == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in theirs] or mine == pytest.approx(theirs)
