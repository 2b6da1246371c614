from __future__ import annotations

import csv
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.pipeline import BATCH_SIZE, SimulatedPipeline, always

STUDY = Path(__file__).resolve().parents[2] / "studies" / "measurement_truth"


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 0), (1, 1), (1, 8), (2, 2), (4, 1), (8, 2)])
def test_the_truth_is_that_of_arithmetic_and_of_the_recursion(study: Any, workers: int, prefetch: int) -> None:
    pipelines = study("pipelines")
    pipeline = pipelines.PIPELINES[2]
    truth = pipelines.true_rate(pipeline, workers, prefetch, [pipeline.build] * 60)
    bound = 1 / (pipeline.build + pipeline.step) if not workers else min(1 / pipeline.step, workers / pipeline.build)
    assert truth <= pipelines.BATCH_SIZE * bound * (1 + 1e-9)
    again = SimulatedPipeline(workers, prefetch, always(pipeline.build), always(pipeline.step)).true_rate(1000)
    assert truth == pytest.approx(again * pipelines.BATCH_SIZE / BATCH_SIZE, rel=0.01)


def test_one_batch_in_twenty_is_slow_to_build(study: Any) -> None:
    pipelines = study("pipelines")
    delayed = next(p for p in pipelines.scenarios() if p.delay == "random builds")
    seconds = [pipelines.build_seconds(delayed, index) for index in range(0, pipelines.LENGTH, 10)]
    assert set(seconds) == {delayed.build, 20 * delayed.build}
    assert sum(each > delayed.build for each in seconds) == pytest.approx(1000, rel=0.1)


def test_the_recorded_errors_are_within_what_is_promised(study: Any) -> None:
    record = study("record")
    rows = [row for row in record.recorded() if row.delay != record.SHORT]
    naive, _, ours = record.errors(rows)
    assert len(rows) == 3 * 3 * 5 * 17
    assert median(map(abs, ours)) <= 0.03
    assert max(map(abs, ours)) <= 0.06
    assert max(naive) > 2


def test_no_recorded_loader_earns_anything_by_prefetching_where_the_step_is_the_limit(study: Any) -> None:
    record = study("record")
    for repetition in record.REPETITIONS:
        rates = [
            row.ours
            for row in record.recorded()
            if (row.repetition, row.pipeline, row.delay) == (repetition, "compute-bound", "none") and row.num_workers
        ]
        assert len(rates) == 16
        assert max(rates) <= 1.02 * min(rates)


def test_the_tables_in_the_studys_readme_are_those_of_its_data(study: Any, readme: str) -> None:
    record = study("record")
    assert all(line in readme for line in record.tables(list(record.recorded())).splitlines())


def test_measuring_was_recorded_to_cost_less_than_a_percent_of_a_step_of_10_ms() -> None:
    with (STUDY / "recorded" / "cost.csv").open(encoding="utf-8", newline="") as file:
        rows = [(float(row["plain_seconds"]), float(row["autotune_seconds"])) for row in csv.DictReader(file)]
    assert len(rows) == 20
    assert median(ours - plain for plain, ours in rows) < 0.01 * 0.010
    assert median(plain for plain, _ in rows) < 0.000_25
