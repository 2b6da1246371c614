"""The claims of studies/batch, from its recorded files."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from studies.batch.table import Cell, cells, main, same_batch
from studies.batch.workloads import TASKS

README = Path(__file__).resolve().parents[2] / "studies" / "batch" / "README.md"
CELLS = list(cells())


def test_there_are_three_workloads_with_two_batches_and_two_losses() -> None:
    assert len(CELLS) == 12
    assert len({(cell.name, cell.batch_size) for cell in CELLS}) == 6


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.name}-{cell.batch_size}-{cell.target}")
def test_the_direction_is_right_wherever_the_measured_one_is_sure(cell: Cell) -> None:
    assert cell.is_right or not (cell.is_sure and cell.is_told)


def test_no_direction_is_told_in_one_of_six_cells_at_most() -> None:
    by_batch = groupby(CELLS, key=lambda cell: (cell.name, cell.batch_size))
    silent = [key for key, found in by_batch if any(cell.is_sure and not cell.is_told for cell in found)]
    assert len(silent) <= 1


def test_the_predicted_cost_is_within_two_and_a_half_times_the_measured() -> None:
    ratios = [cell.predicted_cost / cell.cost for cell in CELLS]
    assert all(1 / 2.5 <= ratio <= 2.5 for ratio in ratios)


@pytest.mark.parametrize("name", TASKS)
def test_the_answer_that_keeps_the_batch_is_not_slower_to_the_loss(name: str) -> None:
    _, (low, high), _ = same_batch(name)
    assert high >= 1
    assert (high / low) ** 0.5 - 1 <= 0.15


def test_the_readme_has_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    text = README.read_text(encoding="utf-8")
    assert [line for line in capsys.readouterr().out.splitlines() if line not in text] == []
