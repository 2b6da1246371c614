"""The answer follows from a study and the end of its run: live, read again, and once the study has gone on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.search.read import read_study
from autotune.storage.trials import END
from tests.search.answers import RECORDED, RUNS, delivered
from tests.search.there import there

DELIVERED = json.loads(RECORDED.read_text(encoding="utf-8"))


def as_read(path: Path) -> Any:
    return json.loads(json.dumps(delivered(there(read_study(path).result))))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_and_its_study_give_the_file_and_the_words_that_are_on_record(name: str, tmp_path: Path) -> None:
    result = RUNS[name](tmp_path / "a.study")
    assert json.loads(json.dumps(delivered(result))) == DELIVERED[name]
    assert as_read(tmp_path / "a.study") == DELIVERED[name]


def test_an_answer_is_that_of_its_run_although_the_study_has_gone_on(tmp_path: Path) -> None:
    RUNS["resumed twice"](tmp_path / "a.study")
    lines = (tmp_path / "a.study").read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if f'"{END}"'.encode() in line]
    assert len(ends) == 3
    for place, end in enumerate(ends):
        (tmp_path / "then.study").write_bytes(b"".join(lines[: end + 1]))
        later = (line for number, line in enumerate(lines) if number not in ends[place + 1 :])
        (tmp_path / "later.study").write_bytes(b"".join(later))
        assert as_read(tmp_path / "then.study") == as_read(tmp_path / "later.study")


def test_there_are_runs_of_many_kinds() -> None:
    assert len(RUNS) >= 16
