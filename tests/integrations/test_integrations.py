"""Tuned from where each trainer is, trained with what came out, by the packages themselves: the promise holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.alone import assert_passes
from tests.integrations.data import BATCH
from tests.processes import printed

pytestmark = pytest.mark.machine

NAMES = ("lightning", "transformers", "accelerate")
CHANGED = {"dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers"}
"""What tuning may change of ``TrainingArguments``."""


def told(folder: Path, name: str, act: str) -> Any:
    """Run one of the scripts beside this file, and return what its last line says."""
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return json.loads(printed("-m", f"tests.integrations.of_{name}", act, folder=folder, **quiet).splitlines()[-1])


def test_what_cannot_be_tuned_is_refused_and_modules_get_what_they_ask_for() -> None:
    assert_passes("tests/integrations/refusals.py")


@pytest.mark.parametrize("name", NAMES)
def test_tuning_changes_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TEST_BUDGET", "10")
    tuned = told(tmp_path, name, "tune")
    assert tuned["same"] is True
    assert tuned.get("changed", {}).keys() <= CHANGED
    assert name != "lightning" or tuned["epoch"] == 150 * BATCH  # the trainer ends it there
