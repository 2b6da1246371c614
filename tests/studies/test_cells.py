"""The smallest part of each study that no other test runs a part of."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from autotune.runner.local import ProcessRunner
from autotune.workload import describe

STUDIES = Path(__file__).resolve().parents[2] / "studies"

pytestmark = pytest.mark.machine


@pytest.fixture
def study(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script of a study whose folder is on the path when it runs."""
    monkeypatch.syspath_prepend(STUDIES / request.param)
    monkeypatch.chdir(STUDIES.parent)
    before = set(sys.modules)
    yield import_module("record")
    for name in set(sys.modules) - before:
        if str(STUDIES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.usefixtures("shared_processes")
def test_a_spoilt_reply_is_an_outcome_and_the_next_is_right() -> None:
    from studies.pipe.record import SOUND, spoil

    with ProcessRunner(describe("tests.corrupting:corrupting"), "cpu") as runner:
        found = spoil(runner, "flip")
    assert (found["outcome"], found["loss"], found["next_loss"]) == ("crashed", None, SOUND)


def test_a_fault_in_the_code_is_noticed(tmp_path: Path) -> None:
    from studies.mutation.record import FAULTS, copy, struck

    copy(tmp_path)
    fault = next(fault for fault in FAULTS if fault.path == "autotune/search/loader_model.py")
    found = struck(tmp_path, fault)
    assert found["caught"]
    assert str(found["by"]).startswith(fault.likely)


@pytest.mark.parametrize("study", ["trainers"], indirect=True)
def test_a_trainer_trains_with_a_file(study: Any, tmp_path: Path) -> None:
    (tmp_path / "autotune.yaml").write_text("autotune: 1\ndataloader: {batch_size: 8}\nthreads: {intra_op: 1}\n")
    assert study.run("accelerate", "train", tmp_path)["rate"] > 0
