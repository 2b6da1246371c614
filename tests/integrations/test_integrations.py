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

QUIET = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
NAMES = ("lightning", "transformers", "accelerate")
CHANGED = {"dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers"}
"""What tuning may change of ``TrainingArguments``."""


def told(folder: Path, name: str, act: str) -> Any:
    return json.loads(printed("-m", f"tests.integrations.of_{name}", act, folder=folder, **QUIET).splitlines()[-1])


def test_what_cannot_be_tuned_is_refused_and_modules_get_what_they_ask_for() -> None:
    assert_passes("tests/integrations/refusals.py")


def test_tuning_changes_nothing(tmp_path: Path) -> None:
    """In one process for all: importing the packages takes longer than the rest."""
    tunes = "".join(f"from tests.integrations.of_{name} import tune\ntune()\n" for name in NAMES)
    lines = printed("-c", tunes, folder=tmp_path, AUTOTUNE_TEST_BUDGET="10", **QUIET).splitlines()
    tuned = [json.loads(line) for line in lines if line.startswith('{"same"')]
    assert [each["same"] for each in tuned] == [True, True, True]
    lightning, transformers, _ = tuned
    assert transformers["changed"].keys() <= CHANGED
    assert lightning["epoch"] == 150 * BATCH  # the trainer ends it there
