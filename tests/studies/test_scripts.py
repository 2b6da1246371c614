"""The scripts of studies count, time and build what they say."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest

from autotune import Config
from autotune.outcome import Outcome
from tests.pipeline import BATCH_SIZE, SimulatedPipeline, always
from tests.studies.test_figures import STUDIES, script


def test_first_answers_are_rated_over_whole_epochs_after_a_warm_up_or_a_part_of_a_long_one() -> None:
    told = (("step", 50, 1.0), ("epoch", 100, 1.5), ("epoch", 200, 3.0), ("epoch", 300, 6.0), ("step", 350, 9.5))
    lines = [f"{kind}: {done} samples until {moment} s\n" for kind, done, moment in (*told, ("epoch", 400, 13.0))]
    rate_of = script("first_answers", "study").rate_of
    assert rate_of(["a warning\n", *lines]) == pytest.approx(200 / 10.0)
    assert rate_of(lines[:4]) is None
    long = [f"step: {10 * moment} samples until {moment} s\n" for moment in range(1, 40)]
    assert rate_of(long) == pytest.approx(10.0)


def test_a_first_answer_has_one_row_for_each_job_and_door_and_is_known_by_its_numbers(tmp_path: Path) -> None:
    study, path = script("first_answers", "study"), tmp_path / "results.csv"
    for door, rate in (("script", 1.0), ("function", 2.0), ("script", 3.0)):
        study.add(path, {"job": "jpeg", "door": door}, {"present": [rate], "answer": [rate, rate + 2.0]})
    found = pandas.read_csv(path)
    assert list(found.columns) == list(study.COLUMNS)
    rows = list(zip(found.door, found.trained_present, found.trained_answer, strict=True))
    assert rows == [("function", 2.0, 3.0), ("script", 3.0, 4.0)]
    Config(batch_size=64, num_workers=2, amp="bf16", intra_op_threads=1).save(tmp_path / "autotune.yaml")
    loader = {"batch_size": 64, "num_workers": 2, "prefetch_factor": 2, "persistent_workers": False}
    settings = loader | {"pin_memory": False, "threads": 1, "amp": "bf16"}
    assert study.settings_of(tmp_path / "autotune.yaml") == settings


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 0), (1, 1), (1, 8), (2, 2), (4, 1), (8, 2)])
def test_the_truth_of_a_measurement_is_that_of_arithmetic_and_of_the_recursion(workers: int, prefetch: int) -> None:
    pipelines = script("measurement_truth", "pipelines")
    pipeline = pipelines.PIPELINES[2]
    truth = pipelines.true_rate(pipeline, workers, prefetch, [pipeline.build] * 60)
    bound = 1 / (pipeline.build + pipeline.step) if not workers else min(1 / pipeline.step, workers / pipeline.build)
    assert truth <= pipelines.BATCH_SIZE * bound * (1 + 1e-9)
    again = SimulatedPipeline(workers, prefetch, always(pipeline.build), always(pipeline.step)).true_rate(1000)
    assert truth == pytest.approx(again * pipelines.BATCH_SIZE / BATCH_SIZE, rel=0.01)


@pytest.mark.parametrize(("gain", "verdict"), [(0.0, "no gain"), (0.3, "faster")])
def test_a_run_of_the_study_of_confirmation_ends_as_it_should(gain: float, verdict: str) -> None:
    found = script("confirmation", "simulate").run(("steady", gain, 300.0, 1))
    assert found["verdict"] == verdict
    assert float(found["seconds"]) <= 310


def test_the_search_that_runs_on_real_machines_comes_near_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = script("simulated_machines", "compare")
    monkeypatch.setattr(compare, "TRIALS", 10)  # thirty are recorded
    world = compare.draw_world(compare.FAMILIES[0], 3)
    machine = compare.Machine(world=world, noise=0.01, disturbed=0.0)
    rows = list(compare.ours(machine))
    assert len(rows) == compare.TRIALS
    assert rows[-1]["regret"] <= 0.05
    assert not {outcome for _, _, outcome, _ in machine.attempts} - {Outcome.OK}


def test_the_gain_that_a_pair_keeps_is_that_of_the_time_of_all_epochs() -> None:
    pairs = script("scripts", "pairs")
    plain = [[pairs.Epoch(4.0, 2.0, 8), pairs.Epoch(2.0, 2.0, 16)]] * 2
    applied = [[pairs.Epoch(1.0, 2.0, 8), pairs.Epoch(1.0, 2.0, 8)]] * 2
    found = pairs.kept(plain, applied, 2.0)
    assert [found[key] for key in ("kept", "kept_to_low", "kept_later")] == [3.0, 1.5, 2.0]
    assert found["kept_with_evaluation"] == round(10 / 6, 3)
    config = Config(batch_size=8, measured={"baseline": {"batch_size": 8}})
    assert pairs.batches(config, plain[0], applied[0])["batches_kept"] is False
    assert pairs.batches(config, plain[0], plain[0])["batches_kept"] is True
    assert pairs.batches(Config(batch_size=16, measured=config.measured), plain[0], applied[0])["batches_kept"] == (
        "changed by the answer"
    )


def test_claims_of_pairs_are_kept_and_their_figures_are_those_of_the_table() -> None:
    rows = pandas.read_csv(STUDIES / "scripts" / "pairs.csv")
    claims = rows[rows.verdict == "faster"]
    assert set(rows.verdict) == {"faster", "undecided"}
    assert sorted(rows.script) == script("scripts", "pairs").SCRIPTS
    assert rows.batches_kept.all()
    assert (len(claims), (claims.kind == "harmless").sum()) == (10, 8)
    assert claims.kept_to_low.min() >= 0.95
    text = (STUDIES / "scripts" / "README.md").read_text("utf-8")
    ends = f"{claims.kept_to_low.min():.2f} to {claims.kept_to_low.max():.2f}"
    assert f"{ends} times the lower end of their interval, {claims.kept_to_low.median():.2f} in the median" in text
    for row in claims.itertuples():
        cell = f"faster, {row.promised:.2f} ({row.promised_low:.2f} to {row.promised_high:.2f}); {row.kept:.2f}"
        name = row.script.rpartition("_")[0]
        assert any(line.startswith(f"| {name} | ") and cell in line for line in text.splitlines()), row.script
