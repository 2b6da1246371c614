"""Two answers from one search: with the samples of an optimizer step as they are, and with any batch."""

from __future__ import annotations

import math
import re
import warnings
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autotune.batch_cost import NoiseScale
from autotune.config import Config, load_config
from autotune.configfile import Objective
from autotune.errors import ConfigFileError
from autotune.outcome import Outcome
from autotune.records import Attempt, Request, WorkloadFacts
from autotune.report.html import html_report
from autotune.report.result import Result
from autotune.report.text import alternative_text, in_python, rate_text, same_loss_pace
from autotune.result import StudyRecord, Verdict
from autotune.search.answer import BY_SCRIPT, NO_TIME, NOT_EXPECTED, comes_first
from autotune.search.read import read_study
from autotune.search.space import Space, build_space
from autotune.settings import parse_knobs
from autotune.storage.open import StudyStorage
from tests import examples
from tests.search.test_agenda import both_pay
from tests.search.there import there
from tests.simulated import (
    SimulatedMachine,
    equal_everywhere,
    gpu_facts,
    host,
    larger_batches_pay,
    loader_bound,
    tuner_of,
)

GPU = gpu_facts(optimizer="SGD")


NOISY = examples.gradient_noise(points=(((145.0, 10.0), (161.0, 11.0), (177.0, 12.0)),) * 3)
"""Gradients as noisy as 320 samples make them: larger batches hardly need more samples."""


def tuned(
    machine: SimulatedMachine,
    objective: Objective | None = "samples",
    facts: WorkloadFacts = GPU,
    *,
    budget: float = 180.0,
    storage: Path | None = None,
    baseline: Config = examples.BASELINE,
    trials: int | None = None,
    **given: Any,
) -> Result:
    space = build_space(facts, 8, baseline, parse_knobs({"amp": "off"} | given), objective=objective)
    with closing(StudyStorage(storage)) as kept:
        return tuner_of(machine, space, facts, host(8), budget=budget, max_trials=trials).result(kept)


@cache
def both_answers(objective: Objective | None) -> Result:
    """Return the result of a run that proves both."""
    return tuned(SimulatedMachine(cost=both_pay), objective)


def read(path: Path, objective: str | None = None) -> Config:
    """Return the answer of a file that was made on another machine."""
    with warnings.catch_warnings(action="ignore"):
        return load_config(path, objective)


@pytest.mark.parametrize("objective", ["samples", "same-batch"])
def test_both_answers_are_proven_and_stand_in_file_and_report(objective: Objective, tmp_path: Path) -> None:
    result = both_answers(objective)
    other = there(result.alternative)
    assert {result.objective, other.objective} == {"samples", "same-batch"}
    assert result.verdict is other.verdict is Verdict.FASTER
    answers = {result.objective: result, other.objective: other}
    larger, same = answers["samples"], answers["same-batch"]
    assert same.config.samples_per_update == 32 < larger.config.samples_per_update
    assert 1.02 < same.speedup < larger.speedup
    result.config.save(tmp_path / "autotune.yaml")
    for name, answer in answers.items():
        config = read(tmp_path / "autotune.yaml", name)
        assert config == answer.config
        assert there(config.measured)["speedup"] == pytest.approx(answer.speedup, rel=1e-5)
        assert config.scaled_lr(0.1) == pytest.approx(0.1 * config.samples_per_update / 32)
    assert read(tmp_path / "autotune.yaml") == result.config
    assert f"{other.speedup:.2f} times the samples a second" in " ".join(str(result).split())
    assert in_python(alternative_text(result)) in result._repr_html_()
    assert there(larger.same_loss_speedup)[1] < larger.speedup  # the cost is that of the larger batch
    assert (same.noise, same.same_loss_speedup) == (None, None)
    assert ("as fast to the same loss" in alternative_text(result)) == (objective == "same-batch")


def test_of_two_answers_the_one_that_reaches_the_same_loss_sooner_is_recommended(tmp_path: Path) -> None:
    kept, open_ = both_answers("same-batch"), both_answers(None)
    other = there(kept.alternative)
    assert there(other.same_loss_speedup)[1] < 1.0  # seven times the samples a second, and half the pace
    assert (open_.objective, there(open_.alternative).objective) == ("same-batch", "samples")
    assert (open_.config, there(open_.alternative).config) == (kept.config, other.config)
    assert open_.config == read_back(open_, tmp_path).for_objective("same-batch")
    lines = str(open_).split("\n\n")[-1]
    assert lines.startswith("Take this, with your batch: ")
    assert lines.index("Take this") < lines.index("Or, with any batch: ")
    sure = replace(other, noise=NoiseScale(samples=math.inf, interval=(math.inf, math.inf), horizon=1000))
    assert comes_first(sure, kept)
    assert not comes_first(replace(sure, verdict=Verdict.UNDECIDED), kept)
    assert not comes_first(replace(sure, noise=None, no_noise="too few steps"), kept)
    assert not comes_first(other, kept)


def test_an_answer_that_is_sure_to_reach_the_same_loss_sooner_stands_at_the_top(tmp_path: Path) -> None:
    result = tuned(SimulatedMachine(cost=larger_batches_pay, gradients=NOISY), None)
    assert (result.objective, result.verdict) == ("samples", Verdict.FASTER)
    assert there(result.same_loss_speedup)[0] > 1.0
    assert read_back(result, tmp_path).batch_size > 32
    assert there(result.alternative).config.batch_size == 32


def read_back(result: Result, folder: Path) -> Config:
    result.config.save(folder / "autotune.yaml")
    return read(folder / "autotune.yaml")


def test_the_same_answer_and_the_same_settings_stand_in_a_file_once(tmp_path: Path) -> None:
    result = tuned(SimulatedMachine(cost=loader_bound), "same-batch")
    assert result.config.to_document()["alternatives"] == {"samples": {}}
    config = read_back(result, tmp_path)
    assert there(config.for_objective("samples").measured) == {**there(config.measured), "objective": "samples"}
    kept = tuned(SimulatedMachine(cost=equal_everywhere), "same-batch")
    assert "baseline" not in there(kept.config.measured)
    assert "baseline" in there(config.measured)


def test_the_page_shows_the_cost_and_the_other_answer_beside_the_rate() -> None:
    result = both_answers("samples")
    page = html_report(StudyRecord.of(result))
    for heading, value in (
        ("as fast to the same loss", there(same_loss_pace(result))[0]),
        ("with your batch, samples/s", rate_text(there(result.alternative).samples_per_second)),
    ):
        assert re.search(rf"<dt>{heading}</dt><dd><b>{re.escape(value)}</b>", page)


def test_samples_of_a_step_are_kept_by_accumulation() -> None:
    present = Config(batch_size=64, accumulation_steps=2)
    result = tuned(SimulatedMachine(cost=both_pay), "same-batch", baseline=present)
    assert (result.config.batch_size, result.config.accumulation_steps) == (128, 1)
    assert there(result.alternative).config.accumulation_steps == 2


@pytest.mark.parametrize(
    ("cost", "objective", "why"),
    [(larger_batches_pay, "samples", NOT_EXPECTED), (equal_everywhere, "same-batch", NOT_EXPECTED)],
)
def test_where_nothing_else_gains_that_is_said(cost: Any, objective: Objective, why: str, tmp_path: Path) -> None:
    result = tuned(SimulatedMachine(cost=cost), objective)
    assert (result.alternative, result.no_alternative) == (None, why)
    result.config.save(tmp_path / "a.yaml")
    other = "same-batch" if objective == "samples" else "samples"
    with pytest.raises(ConfigFileError, match=f"no answer for '{other}'; there is {objective}"):
        read(tmp_path / "a.yaml", other)


def test_without_time_the_answer_comes_first_and_the_other_is_not_claimed() -> None:
    result = tuned(SimulatedMachine(cost=both_pay), budget=30.0)
    assert result.verdict is Verdict.FASTER
    assert (result.alternative, result.no_alternative) == (None, NO_TIME)


def test_the_batch_of_a_script_is_kept_and_how_it_varies_is_said() -> None:
    facts = replace(GPU, loader_site="train.py:31 Photos[50000]")
    kept = tuned(SimulatedMachine(cost=both_pay), "same-batch", facts, batch_size=32)
    assert (kept.config.samples_per_update, kept.alternative, kept.no_alternative) == (32, None, BY_SCRIPT)
    fixed = tuned(SimulatedMachine(cost=both_pay), "same-batch", replace(facts, batch_samples=32), batch_size=32)
    assert (fixed.alternative, fixed.no_alternative) == (None, "")
    varied = tuned(SimulatedMachine(cost=both_pay), "same-batch", facts, batch_size="16..256")
    assert (varied.config.batch_size, varied.config.accumulation_steps) == (32, 1)
    assert there(varied.alternative).config.batch_size > 32
    assert there(varied.alternative).no_noise


def test_a_batch_that_the_user_fixes_has_one_answer_and_needs_no_words() -> None:
    result = tuned(SimulatedMachine(cost=both_pay), batch_size=32)
    assert (result.objective, result.alternative, result.no_alternative) == ("same-batch", None, "")
    bounded = tuned(SimulatedMachine(cost=both_pay), batch_size="64..256")
    assert (bounded.objective, bounded.alternative, bounded.no_alternative) == ("samples", None, "")


@pytest.mark.parametrize("objective", ["samples", "same-batch"])
def test_a_study_holds_both_answers_and_a_run_that_goes_on_has_them_again(objective: Objective, tmp_path: Path) -> None:
    path = tmp_path / "kept.study"
    first = tuned(SimulatedMachine(cost=both_pay), objective, storage=path)
    assert there(read_study(str(path)).result).config.to_document() == first.config.to_document()
    again = tuned(SimulatedMachine(cost=both_pay, seed=1), objective, storage=path)
    assert again.config.batch_size == first.config.batch_size
    assert there(again.alternative).speedup >= there(first.alternative).speedup


def test_the_other_answer_takes_no_more_trials_than_were_asked_for() -> None:
    machine = SimulatedMachine(cost=both_pay)
    result = tuned(machine, trials=4)
    assert len([trial for trial in result.history if trial.kind != "confirm"]) == 4


def test_a_trial_for_the_other_answer_has_the_time_that_its_proof_leaves() -> None:
    """With workers the first trials with the baseline's batch take long, and the proof of the answer took short."""
    limits = list[float | None]()

    class Noting(SimulatedMachine):
        def measure(self, config: Config, request: Request) -> Attempt:
            if request.part == "training" and config.batch_size == 32 and not request.fresh:
                limits.append(request.time_limit)
            return super().measure(config, request)

    for budget in (60.0, 90.0):
        tuned(Noting(cost=both_pay), budget=budget)
    assert len(limits) > 3
    assert min(filter(None, limits)) > 8


def test_the_first_trial_for_the_other_answer_is_the_answer_with_the_batch_of_today() -> None:
    result = tuned(SimulatedMachine(cost=both_pay, noise=0.02), threads="1,2,4")
    trials = sorted(result.history, key=lambda trial: trial.number)
    proof = next(place for place, trial in enumerate(trials) if trial.kind == "confirm")
    later = [trial.config for trial in trials[proof:] if trial.kind != "confirm" and trial.config.batch_size == 32]
    twin, proven = later[0].dataloader_kwargs(), replace(result.config, batch_size=32).dataloader_kwargs()
    assert twin | {"persistent_workers": None} == proven | {"persistent_workers": None}
    assert later[0].intra_op_threads in (None, result.config.intra_op_threads)


def test_an_interrupt_in_the_proof_of_the_other_answer_leaves_the_answer() -> None:
    class Interrupted(SimulatedMachine):
        fresh = 0

        def measure(self, config: Config, request: Request) -> Attempt:
            if request.part == "noise":
                raise KeyboardInterrupt
            return super().measure(config, request)

    result = tuned(Interrupted(cost=both_pay))
    assert result.verdict is Verdict.FASTER
    assert not result.interrupted
    assert result.no_noise == "there was no time to measure the noise of the gradients"


def test_a_failing_finalist_of_the_other_answer_is_not_in_the_file() -> None:
    fails = lambda config: Outcome.USER_ERROR if config.batch_size == 32 and config.num_workers else None  # noqa: E731
    result = tuned(SimulatedMachine(cost=both_pay, fails_fresh=fails))
    assert result.verdict is Verdict.FASTER
    assert result.alternative is None or result.alternative.config.num_workers == 0


def test_a_space_of_the_other_answer_is_the_same_after_it_was_kept() -> None:
    space = build_space(GPU, 8, examples.BASELINE, {}, objective="same-batch")
    again = Space.from_document(space.to_document())
    assert space.to_document()["other_batches"] == space.second_batches  # as studies keep it
    assert again.second == space.second
    assert there(space.second).objective == "samples"
    assert there(space.second).second is None
