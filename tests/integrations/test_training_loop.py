"""The documentation's loop is this folder's file, and trains as the configuration says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autotune.config import Config
from tests.datasets import Squares

LOOP = Path(__file__).with_name("training_loop.py")
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "config-file.md"


class Counting(torch.optim.SGD):
    made = 0

    def step(self, *given: Any, **more: Any) -> Any:
        self.made += 1
        return super().step(*given, **more)


def test_the_documentation_shows_the_file() -> None:
    assert f"```python\n{LOOP.read_text(encoding='utf-8')}```" in PAGE.read_text(encoding="utf-8")


def test_the_loop_takes_every_sample_in_the_configurations_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Config(batch_size=4, accumulation_steps=3, amp="bf16").save(tmp_path / "autotune.yaml")
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(1, 1)
    optimizer = Counting(model.parameters(), lr=0.0)
    sizes, dtypes = [], set()

    def training_step(model: nn.Module, batch: Any) -> torch.Tensor:
        output = model(batch[0])
        sizes.append(len(output))
        dtypes.add(output.dtype)
        return functional.mse_loss(output.float(), batch[1])

    given = {"dataset": Squares(50), "model": model, "optimizer": optimizer, "device": "cpu"}
    runpy.run_path(str(LOOP), init_globals=given | {"epochs": 1, "training_step": training_step})
    assert sizes == [4] * 12 + [2]
    assert optimizer.made == 5  # four of three batches, and what is left
    assert dtypes == {torch.bfloat16}
