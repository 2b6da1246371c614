"""Whatever a run comes to, terminal, page and file say the same, and nothing that contradicts itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.report.html import html_summary
from autotune.report.result import Result
from autotune.report.text import in_python, verdict_sentence, verdict_title
from autotune.result import Verdict, parse_verdict, verdict_text
from tests.simulated import SimulatedMachine, StepCost, few_of, gpu_facts, host, tuner_of

SECONDS = 3.0


@dataclass(frozen=True)
class Job:
    of_workers: float
    of_large_batches: float
    noise: float
    is_busy: bool
    fails: Outcome | None

    def cost(self, config: Config) -> StepCost:
        gain = 1 + self.of_workers * (config.num_workers > 0)
        gain *= 1 + self.of_large_batches * (config.batch_size > 32)
        return StepCost(wait=1e-6 * config.batch_size, compute=config.batch_size / (1000 * gain))

    def outcome(self, config: Config) -> Outcome | None:
        if self.fails and config.num_workers > 2:
            return self.fails
        return Outcome.SUSPECT if self.is_busy else None


JOBS = st.builds(
    Job,
    of_workers=st.sampled_from([-0.3, 0.0, 0.01, 0.03, 0.06, 0.3, 2.0]),
    of_large_batches=st.sampled_from([-0.2, 0.0, 0.2]),
    noise=st.sampled_from([0.0, 0.01, 0.05, 0.3]),
    is_busy=st.booleans(),
    fails=st.sampled_from([None, Outcome.SHM, Outcome.CRASHED]),
)


def tuned(job: Job, budget: float, trials: int | None, seed: int, interrupt_at: int | None) -> Result:
    machine = SimulatedMachine(
        cost=job.cost, fails=job.outcome, noise=job.noise, seed=seed, seconds=SECONDS, interrupt_at=interrupt_at
    )
    space = few_of(gpu_facts(), batch_size="32,64", num_workers="0,2,4", amp="off", pin_memory=False)
    return tuner_of(machine, space, gpu_facts(), host(), budget, max_trials=trials).result()


@settings(max_examples=25)
@given(
    job=JOBS,
    budget=st.sampled_from([30.0, 45.0, 75.0, 180.0, 600.0]),
    trials=st.none() | st.integers(1, 4),
    seed=st.integers(0, 5),
    interrupt_at=st.none() | st.integers(2, 12),
)
@example(
    job=Job(of_workers=0.3, of_large_batches=-0.2, noise=0.05, is_busy=False, fails=None),
    budget=30.0, trials=None, seed=5, interrupt_at=None,
)  # fmt: skip
@example(
    job=Job(of_workers=0.3, of_large_batches=-0.2, noise=0.05, is_busy=False, fails=None),
    budget=45.0, trials=None, seed=1, interrupt_at=4,
)  # fmt: skip
def test_no_sentence_contradicts_another(
    job: Job, budget: float, trials: int | None, seed: int, interrupt_at: int | None
) -> None:
    result = tuned(job, budget, trials, seed, interrupt_at)
    said, page = verdict_sentence(result), html_summary(result)
    text = str(result)
    measured = result.config.measured or {}

    assert in_python(said) in " ".join(text.split())
    assert verdict_title(result) in page
    assert parse_verdict(measured["verdict"]) is result.verdict
    is_baseline = result.config == result.baseline
    is_open = result.verdict is Verdict.UNDECIDED
    assert said.endswith(("prove it.", "decide it.")) == bool(is_open and result.missing)
    is_slower = result.likeliest is not None and result.likeliest.speedup < 1
    assert result.missing or not is_open or result.interrupted or is_slower
    assert ("confirmed in" in said) == (result.verdict is Verdict.FASTER)
    is_kept = is_baseline and (result.likeliest is not None or result.verdict is Verdict.NO_GAIN)
    assert ("keep your settings" in said.lower()) == is_kept
    assert said.startswith("Probably") == (result.verdict is Verdict.UNDECIDED and not is_baseline)
    assert is_open or not result.missing

    if result.verdict is Verdict.FASTER:
        assert not is_baseline
        # a gain that every round shows is proven where its size is hardly known: its interval then begins at 1
        assert 1 <= result.speedup_ci95[0] <= result.speedup
        assert result.speedup > 1
    if result.verdict is Verdict.NO_GAIN:
        assert is_baseline
        assert result.most_gain <= 0.05
        assert "budget" not in result.stop_reason
        for found in re.findall(r"no gain above .*? %", f"{said.lower()} {measured['verdict']}"):
            assert found == verdict_text(result.verdict, result.most_gain)
        if result.likeliest and result.likeliest.interval:
            assert result.likeliest.interval[1] <= 1 + result.most_gain + 1e-9
    if is_baseline:
        assert (result.speedup, result.speedup_ci95) == (1.0, None)
    if result.stop_reason == "the budget is spent":
        assert budget - result.seconds < SECONDS
    compared = {trial.config for trial in result.history if trial.kind == "confirm" and trial.measurement}
    assert (result.likeliest is None) or (result.likeliest.config in compared)
    assert is_baseline or result.likeliest is not None
