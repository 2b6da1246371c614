"""The result of a run: answer, evidence and notes for the user. Pure but for the date of its file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.config import Config
from autotune.diagnosis.findings import Evidence
from autotune.diagnosis.limits import TAKEN, find
from autotune.diagnosis.notes import (
    cause_of_unevenness,
    crowded_in,
    on_caches,
    on_data_parallel,
    on_disturbances,
    on_other_batch,
    on_places,
    on_unseen_samples,
)
from autotune.evidence import with_evidence
from autotune.host import Host
from autotune.probes import LoaderTrace
from autotune.proof import CLAIM, NEGLIGIBLE, Confirmation, Standing, standing_of, with_pauses
from autotune.records import Probe, Trial, WorkloadFacts
from autotune.result import Landscape, Result, TriedOption, Verdict

ODDS = 20 / 21
"""Probability of a gain from which an unproven configuration is the answer: odds of 20 to 1."""
LEAST_SAID = 0.01
"""The smallest gain that is ever said to be excluded."""
HEAVY = 0.5
"""Share of the confirming measurements from which a machine counts as disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The course of a run, beside its trials and confirmation."""

    facts: WorkloadFacts
    host: Host
    history: tuple[Trial, ...]
    """All trials on record."""
    confirmations: Sequence[Trial]
    """The confirming measurements of this run."""
    stop_reason: str
    seconds: float
    highest_limit: float
    """Highest ceiling of all steps, in samples per second."""
    remaining: float | None
    """Expected gain of all untried settings, as a share; ``None`` unless the search ended because it is small."""
    wanted: str
    """The thing that would decide an undecided verdict."""
    interrupted: bool = False
    tried: tuple[TriedOption, ...] = ()
    """The further options of the step, whether they were tried or not."""
    left_out: Sequence[str] = ()
    """Why precisions and loader workers were left out."""
    probes: Sequence[Probe] = ()
    landscape: Callable[[Config], Landscape] | None = None
    """Returns the expected rates of the space around a configuration."""
    refusal_of_more_workers: Callable[[Config], str | None] = lambda config: None
    """Returns the reason why more loader workers would not fit; ``None`` where they would."""

    @property
    def measured(self) -> list[Trial]:
        """All trials in the order of time, the confirming ones included."""
        found = {trial.number: trial for trial in (*self.history, *self.confirmations)}
        return [found[number] for number in sorted(found)]


def conclude(trials: Sequence[Trial], confirmation: Confirmation | None, course: Course) -> Result:
    """Return the result of a run: a proven gain, a likely gain, or none.

    ``trials`` are those of the search, the baseline first.
    """
    facts, searched = course.facts, trials[0].measurement
    assert searched is not None
    before = confirmation.baseline if confirmation else standing_of(trials[0].config, [searched])
    before = with_pauses(before, course.measured)
    is_like_epoch = _is_like_rounds(searched.samples_per_second, before.rate, confirmation)
    verdict, chosen, most_gain = _decide(confirmation, course.remaining if is_like_epoch else None)
    answer, speedup, interval, rounds = before, 1.0, None, len(confirmation.rounds) if confirmation else 0
    if confirmation and chosen is not None:
        answer = with_pauses(confirmation.standing(chosen), course.measured)
        rounds = confirmation.rounds_of(chosen)
        speedup, interval = confirmation.speedup(chosen), confirmation.interval(chosen)
    likeliest = confirmation.answer if confirmation else None
    result = Result(
        config=_resolved(answer.config, facts),
        baseline=_resolved(before.config, facts),
        samples_per_second=answer.rate,
        ci95=answer.rate_ci95,
        next_run_95=answer.next_run_95,
        baseline_samples_per_second=before.rate,
        baseline_ci95=before.rate_ci95,
        rounds=rounds,
        speedup=speedup,
        speedup_ci95=interval,
        verdict=verdict,
        most_gain=most_gain,
        likeliest=confirmation.finding(likeliest) if confirmation and likeliest is not None else None,
        missing=tuple(_missing(confirmation, course)) if verdict is Verdict.UNDECIDED else (),
        stop_reason=course.stop_reason,
        remaining_gain=max(0.0, course.highest_limit / answer.rate - 1),
        facts=facts,
        host=course.host,
        measurement=answer.typical,
        baseline_measurement=before.typical,
        history=course.history,
        interrupted=course.interrupted,
        seconds=course.seconds,
        tried=course.tried,
        finalists=confirmation.found if confirmation else (),
        landscape=course.landscape(answer.config) if course.landscape else None,
        notes=tuple(_notes(confirmation, answer, before, course)),
        findings=find(_evidence(answer, course)),
    )
    return replace(result, config=with_evidence(result, before.config))


def _is_like_rounds(searched: float, rate: float, confirmation: Confirmation | None) -> bool:
    """Return whether the baseline ran in the search as in the rounds, which begin at other places of the epoch.

    Where the machine's own speed varies, one of the rounds has to have run alike.
    """
    rates = [rate]
    if confirmation and confirmation.rounds:
        rounds = [one.baselines for one in confirmation.rounds]
        if cause_of_unevenness(rounds) in (None, "machine"):
            rates += [each.samples_per_second for one in rounds for each in one]
    return min(rates) / NEGLIGIBLE <= searched <= max(rates) * NEGLIGIBLE


def _decide(confirmation: Confirmation | None, remaining: float | None) -> tuple[Verdict, int | None, float | None]:
    """Return the verdict, the finalist that is the answer (``None`` for the baseline), and the most it may gain."""
    index = confirmation.answer if confirmation else None
    if confirmation is None or index is None:
        return Verdict.UNDECIDED, None, None
    if confirmation.is_proven(index):
        return Verdict.FASTER, index, None
    most = max(confirmation.most or math.inf, math.inf if remaining is None else 1 + remaining)
    if most <= NEGLIGIBLE:
        return Verdict.NO_GAIN, None, max(LEAST_SAID, most - 1)
    is_taken = confirmation.standing(index).typical.conditions.taken_share >= TAKEN
    is_likely = confirmation.chance(index) >= ODDS and confirmation.speedup(index) >= CLAIM and not is_taken
    return Verdict.UNDECIDED, index if is_likely else None, None


def _missing(confirmation: Confirmation | None, course: Course) -> Iterator[str]:
    """Yield the things that would decide an undecided verdict."""
    is_over = confirmation is not None and confirmation.answer is None
    yield "another configuration that runs" if is_over else course.wanted
    crowded = crowded_in(course.confirmations)
    if crowded and len(crowded) >= HEAVY * len(course.confirmations):
        yield f"a quieter machine ({crowded[-1].crowd_text})"


def _evidence(answer: Standing, course: Course) -> Evidence:
    """Return the evidence for the limits of the answer: its measurement, the nearest probes and the other trials."""
    config, probes, step = answer.config, course.probes, answer.config.without_loader
    looks = [each.attempt.compute for each in probes if each.attempt.compute and each.config.without_loader == step]
    return Evidence(
        config=config,
        facts=course.facts,
        host=course.host.for_rank(config.ranks),
        measurement=answer.typical,
        compute=looks[-1] if looks else None,
        loader=_nearest_loader(config, probes),
        trials=course.history,
        looks=tuple(probes),
        refusal_of_more_workers=course.refusal_of_more_workers(config),
    )


def _nearest_loader(config: Config, probes: Sequence[Probe]) -> LoaderTrace | None:
    """Return the look at the loader whose batch size is nearest."""
    traces = [probe.attempt.loader for probe in probes if probe.attempt.loader]
    return min(traces, key=lambda trace: abs(math.log(trace.batch_size / config.batch_size)), default=None)


def _resolved(config: Config, facts: WorkloadFacts) -> Config:
    """Replace torch's own thread counts by the numbers that they were."""
    return replace(
        config,
        intra_op_threads=config.intra_op_threads or facts.intra_op_threads,
        inter_op_threads=config.inter_op_threads or facts.inter_op_threads,
    )


def _notes(confirmation: Confirmation | None, answer: Standing, before: Standing, course: Course) -> Iterator[str]:
    """Yield the notes for the user: on the rounds, the batch, the samples, the data loader and the model."""
    typical, facts, has_answer = (
        answer.typical,
        course.facts,
        confirmation is not None and confirmation.answer is not None,
    )
    yield from on_disturbances(course.confirmations, has_answer=has_answer)
    same, old = (
        [trial.measurement for trial in course.measured if trial.config == each.config and trial.measurement]
        for each in (answer, before)
    )
    trace = _nearest_loader(answer.config, course.probes)
    caches = list(on_caches(trace, same)) or list(on_caches(trace, old))
    yield from caches
    if confirmation and not confirmation.is_crowded and not caches:
        yield from on_places([one.baselines for one in confirmation.rounds])
    yield from on_other_batch(answer.config, before.config, facts)
    yield from on_unseen_samples(typical, same, facts)
    if confirmation:
        yield from typical.notes
    yield from on_data_parallel(answer.config, facts, course.host)
    yield from (f"{why}: left out" for why in course.left_out)
