"""Whatever a study has measured, no finding, no advice and no figure of its result contradicts another."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Measurement, Request, Trial
from autotune.report.html import html_summary
from autotune.report.result import Result
from autotune.report.terminal import summary
from tests import examples
from tests.report.test_terminal import shown
from tests.simulated import SimulatedMachine, StepCost, few_of, gpu_facts, host, tuner_of

SAME = 1.02
"""Ratio of two rates up to which one is no faster than the other."""
FEW = 6
"""Percent that are little."""
TROUBLES: dict[str, list[Any]] = {
    "foreign_cpus": [0.0, 0.0, 0.5, 1.9],
    "worker_threads": [None, 4],
    "storage_share": [0.0, 0.9],
    "own_cpus": [0.3, 1.0, 2.0],
    "throttled_share": [0.0, 0.0, 0.3],
}
"""What the machine may do meanwhile."""


@dataclass(frozen=True)
class Job:
    """A training job: what limits it, and what fails."""

    building: float
    """Seconds for a sample, over what the step takes."""
    readers: int
    """Workers that are served at the same time."""
    of_large_batches: float
    """What a larger batch gains, as a share."""
    contention: float
    """What each worker takes from the step, as a share."""
    most_workers: int
    outcome: Outcome

    def cost(self, config: Config) -> StepCost:
        step = config.batch_size / 1000 / (1 + self.of_large_batches * (config.batch_size > 32))
        build, workers = self.building * config.batch_size / 1000, config.num_workers
        wait = max(0.0, build / min(workers, self.readers) - step) if workers else build
        return StepCost(wait=wait, compute=step, contention=workers * self.contention * step)

    def fails(self, config: Config) -> Outcome | None:
        return self.outcome if config.num_workers >= self.most_workers else None


@dataclass(kw_only=True)
class TroubledMachine(SimulatedMachine):
    conditions: dict[str, Any] = field(default_factory=dict)
    starting: float = 0.0
    """Share of an epoch that starting it takes."""
    ordering: float = 0.0
    """The part of that in which the sampler orders it."""
    cpu_share: float = 0.2
    """Share of building a batch that uses a CPU."""
    looks_fail: bool = False

    def _look(self, config: Config, request: Request) -> Attempt:
        found = super()._look(config, request)
        if request.part != "loader" or found.loader is None:
            return found
        if self.looks_fail:
            return Attempt(outcome=Outcome.TIMEOUT, message="no answer within 29 s: it was in __getitem__, data.py")
        used = self.cpu_share * fmean(found.loader.build_seconds)
        storage = self.conditions.get("storage_share")
        return replace(found, payload=replace(found.loader, cpu_seconds=used, storage_share=storage))

    def _measurement(self, config: Config, place: float, *, is_disturbed: bool) -> Measurement:
        found = super()._measurement(config, place, is_disturbed=is_disturbed)
        steady = found.samples_per_second / (1 - self.starting)
        samples = 4096
        machine = examples.conditions(**self.conditions)
        return replace(
            found,
            steps=40,
            samples=40 * config.batch_size,
            steady_samples_per_second=steady,
            ceiling_samples_per_second=max(steady, found.ceiling_samples_per_second),
            epoch_samples=samples,
            order_seconds=self.ordering * self.starting * samples / found.samples_per_second,
            restart_seconds=self.starting * samples / found.samples_per_second,
            conditions=replace(machine, is_crowded=machine.foreign_cpus > 0.2),
        )


JOBS = st.builds(
    Job,
    building=st.sampled_from([0.01, 0.3, 3.0, 50.0, 400.0]),
    readers=st.sampled_from([1, 2, 8]),
    of_large_batches=st.sampled_from([-0.2, 0.0, 0.2]),
    contention=st.sampled_from([0.0, 0.2]),
    most_workers=st.sampled_from([1, 3, 99]),
    outcome=st.sampled_from([Outcome.TIMEOUT, Outcome.WORKER_DIED, Outcome.SHM, Outcome.USER_ERROR]),
)
MACHINES = st.fixed_dictionaries(
    {
        "conditions": st.fixed_dictionaries({name: st.sampled_from(values) for name, values in TROUBLES.items()}),
        "starting": st.sampled_from([0.0, 0.0, 0.3, 0.6]),
        "ordering": st.sampled_from([0.0, 0.9]),
        "cpu_share": st.sampled_from([0.1, 1.0]),
        "looks_fail": st.booleans(),
        "noise": st.sampled_from([0.0, 0.02]),
        "seed": st.integers(0, 5),
        "persistence_gain": st.sampled_from([None, -0.1, 0.0, 0.4]),
    }
)


def tuned(job: Job, machine: dict[str, Any], *, on_gpu: bool, budget: float, baseline: Config) -> Result:
    troubled = TroubledMachine(cost=job.cost, fails=job.fails, **machine)
    facts = gpu_facts() if on_gpu else examples.facts(amp_modes=("off",))
    space = few_of(facts, baseline=baseline, batch_size="32,64", num_workers="0,1,2,4", amp="off", threads=2)
    return tuner_of(troubled, space, facts, host(), budget).result()


def alike(result: Result, *, with_disturbed: bool = False) -> list[Trial]:
    """What was measured, or failed, with the step of the answer, and another number of workers."""
    answer, own = result.config, result.facts.intra_op_threads
    is_on_cpu = result.facts.device == "cpu"
    return [
        trial
        for trial in result.history
        if trial.config.batch_size == answer.batch_size
        and trial.config.amp == answer.amp
        and trial.config.num_workers != answer.num_workers
        and not (is_on_cpu and (trial.config.intra_op_threads or own) != answer.intra_op_threads)
        and (with_disturbed or trial.outcome is not Outcome.SUSPECT)
    ]


def best_mean(trials: list[Trial]) -> float:
    rates: dict[Config, list[float]] = {}
    for trial in trials:
        if trial.rate is not None:
            rates.setdefault(trial.config, []).append(trial.rate)
    return max(map(fmean, rates.values()), default=0.0)


def check_workers(result: Result, text: str) -> None:
    """Check what is said of workers beside what was measured with others, and what failed."""
    workers = result.config.num_workers
    more = [trial for trial in alike(result) if trial.config.num_workers > workers]
    is_no_faster = 0 < best_mean(more) <= SAME * result.measurement.samples_per_second
    assert not ("more workers" in text and "fewer workers" in text)
    assert "more workers" not in text or workers
    assert "use loader workers" not in text or not workers
    for proposal in ("more workers", "use loader workers"):
        if proposal in text:
            assert not is_no_faster
            assert "are no faster than one" not in text
            have_run = [each.config.num_workers > workers for each in alike(result, with_disturbed=True) if each.rate]
            assert any(have_run) or all(trial.rate is not None for trial in more)
    fewer = [trial for trial in alike(result) if trial.config.num_workers < workers]
    if "fewer workers" in text:
        assert workers
        assert not 0 < best_mean(fewer) <= SAME * result.measurement.samples_per_second
    if "persistent_workers=True" in text:
        gain = result.measurement.persistence_gain
        assert gain is None or gain > SAME - 1


def check_figures(result: Result, text: str) -> None:
    """Check percentages beside each other and beside what is claimed."""
    limits = [finding for finding in result.findings if finding.is_limit]
    shares = [finding.share for finding in limits if finding.share is not None]
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) <= 1.0 + 1e-9
    assert all(int(found) <= 999 for found in re.findall(r"(\d+) %", text))
    left = re.search(r"A perfect data loader would gain at most ([\d,]+) (%|times)", text)
    assert left
    if "no data loader could make" in text:
        assert left[2] == "%"
        assert int(left[1]) <= FEW
    if "is not known while they run" in text:
        assert len(limits) == 1
    assert (result.config.measured or {})["bottleneck"] == str(limits[0].cause)
    assert result.findings[0] is limits[0]


@settings(max_examples=25)
@given(
    job=JOBS,
    machine=MACHINES,
    on_gpu=st.booleans(),
    budget=st.sampled_from([30.0, 120.0]),
    baseline=st.sampled_from([Config(), Config(num_workers=2), Config(num_workers=2, persistent_workers=True)]),
)
def test_no_advice_contradicts_another_or_what_was_measured(
    job: Job, machine: dict[str, Any], on_gpu: bool, budget: float, baseline: Config
) -> None:
    if baseline.num_workers >= job.most_workers:
        baseline = Config()
    result = tuned(job, machine, on_gpu=on_gpu, budget=budget, baseline=baseline)
    for text in (shown(summary(result), width=2000), html_summary(result)):
        check_workers(result, text)
    check_figures(result, shown(summary(result), width=2000))
