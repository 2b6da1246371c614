"""Trained with what came out, by the packages themselves, on samples that are waited for: the promise holds.

pytest studies/trainers/test_trained_rates.py
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.data import BATCH, SAMPLES, SECONDS
from tests.integrations.test_integrations import CHANGED, NAMES, told
from tests.quiet import undisturbed


@pytest.mark.parametrize("name", NAMES)
def test_training_with_the_answer_is_as_fast_as_promised(tmp_path: Path, name: str) -> None:
    """Two workers that wait read 200 samples in a second, none 100: which it is does not depend on the machine."""
    attempts = itertools.count()

    def measure() -> Any:
        (folder := tmp_path / str(next(attempts))).mkdir()
        tuned = told(folder, name, "tune")
        assert tuned["same"] is True
        assert tuned.get("changed", {}).keys() <= CHANGED
        trained = told(folder, name, "train")
        assert trained["steps"] == SAMPLES / BATCH
        return tuned | trained

    def is_right(found: Any) -> bool:
        as_promised = found["rate"] == pytest.approx(found["promised"], rel=0.1)
        return bool(found["workers"] == 2 and as_promised and found["promised"] == pytest.approx(2 / SECONDS, rel=0.1))

    found = undisturbed(measure, is_right)
    assert is_right(found), found
