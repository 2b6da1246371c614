"""What torchrun trains with a file for several ranks: the same losses as one process, at the same effective batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autotune.config import Config
from tests.ranks.train import SAMPLES

pytestmark = pytest.mark.machine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "ranks.md"


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
LAUNCHER = (
    "-m torch.distributed.run --master-addr 127.0.0.1 --master-port 0 --rdzv-backend c10d "
    "--rdzv-endpoint 127.0.0.1:0 --nproc-per-node"
)


def torchrun(folder: Path, ranks: int, what: str) -> None:
    """Start the training script in so many ranks, as its user does."""
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *LAUNCHER.split(), str(ranks), "-m", "tests.ranks.train", what]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=True)


def curve(folder: Path, config: Config) -> dict[str, Any]:
    folder.mkdir()
    config.save(folder / "autotune.yaml")
    torchrun(folder, config.ranks, "curve")
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
    assert f"```python\n{text}```" in PAGE.read_text(encoding="utf-8")


def test_two_ranks_train_as_one_process_does_with_the_same_samples_in_a_step(tmp_path: Path) -> None:
    together = curve(tmp_path / "two", Config(batch_size=4, accumulation_steps=2, ranks=2))
    alone = curve(tmp_path / "one", Config(batch_size=16))
    found, expected = steps_of(together["losses"], 2), steps_of(alone["losses"], 1)
    assert len(found) == len(expected) == 16
    assert found == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0] / 2
    for mine, theirs in zip(together["weights"], alone["weights"], strict=True):
        assert mine == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in theirs] or mine == pytest.approx(theirs)
