"""Tuned from where each trainer is, trained with what came out, by the packages themselves: the promise holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.alone import ROOT, assert_passes
from tests.integrations.data import BATCH, SAMPLES

NAMES = ("lightning", "transformers", "accelerate")


def told(folder: Path, name: str, act: str) -> Any:
    """Run one of the scripts beside this file, and return what its last line says."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", f"tests.integrations.of_{name}", act],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_what_cannot_be_tuned_is_refused_and_modules_get_what_they_ask_for() -> None:
    assert_passes("tests/integrations/refusals.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_changed_and_training_with_the_answer_is_as_fast_as_promised(tmp_path: Path, name: str) -> None:
    """Two workers that wait read 400 samples in a second, none 200: which it is does not depend on the machine."""
    tuned = told(tmp_path, name, "tune")
    assert tuned["same"] is True
    if name == "transformers":
        assert tuned["changed"].keys() <= {
            "dataloader_num_workers",
            "dataloader_prefetch_factor",
            "dataloader_persistent_workers",
        }
        assert tuned["changed"]["dataloader_num_workers"] == 2
    else:
        assert tuned["workers"] == 2
    trained = told(tmp_path, name, "train")
    assert trained["steps"] == SAMPLES / BATCH
    assert trained["rate"] == pytest.approx(trained["promised"], rel=0.1)
    assert trained["promised"] == pytest.approx(400, rel=0.1)
