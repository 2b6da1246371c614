"""The result of a run: answer, evidence and notes for the user. Pure but for the date."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from autotune.config import Config
from autotune.diagnosis.findings import Evidence, Finding, ms
from autotune.diagnosis.limits import TAKEN, find
from autotune.host import Host
from autotune.probes import ComputeProbe, LoaderTrace
from autotune.records import Conditions, Outcome, Probe, Trial, WorkloadFacts
from autotune.result import Control, Finalist, Landscape, Result, TriedOption, Verdict, verdict_text
from autotune.search.confirm import CLAIM, NEGLIGIBLE, Confirmation, Standing
from autotune.search.space import without_loader

ODDS = 20 / 21
"""Probability of a gain from which an unproven configuration is the answer: odds of 20 to 1."""
LEAST_SAID = 0.01
"""The smallest gain that is ever said to be excluded."""
UNEVEN = 1.25
"""Ratio of the highest rate to the lowest from which it is said that rates depend on the place in the epoch."""
HEAVY = 0.5
"""Share of the confirming measurements from which a machine counts as disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The course of a run, beside its trials and confirmation."""

    facts: WorkloadFacts
    """The workload."""
    host: Host
    """The machine."""
    history: tuple[Trial, ...]
    """All trials on record."""
    confirmations: Sequence[Trial]
    """The confirming measurements of this run."""
    stop_reason: str
    """Why it ended."""
    seconds: float
    """Seconds that it took."""
    highest_limit: float
    """Highest ceiling of all steps, in samples per second."""
    remaining: float | None
    """Expected gain of all untried settings, as a share; ``None`` unless the search ended because it is small."""
    wanted: str
    """The thing that would decide an undecided verdict."""
    interrupted: bool = False
    """Whether the user has stopped it."""
    tried: tuple[TriedOption, ...] = ()
    """The further options of the step, whether they were tried or not."""
    left_out: Sequence[str] = ()
    """Why precisions and loader workers were left out."""
    probes: Sequence[Probe] = ()
    """Probes of step and loader, evidence for the findings."""
    landscape: Callable[[Config], Landscape] | None = None
    """Returns the expected rates of the space around a configuration."""
    refusal_of_more_workers: Callable[[Config], str | None] = lambda config: None
    """Returns the reason why more loader workers would not fit; ``None`` where they would."""


def conclude(trials: Sequence[Trial], confirmation: Confirmation | None, course: Course) -> Result:
    """Return the result of a run: a proven gain, a likely gain, or none.

    ``trials`` are those of the search, the baseline first.
    """
    facts, host = course.facts, course.host
    is_like_epoch = confirmation is None or _is_near(trials[0], confirmation.baseline)
    verdict, chosen, most_gain = _decide(confirmation, course.remaining if is_like_epoch else None)
    before = confirmation.baseline if confirmation else _standing(trials[0])
    answer, speedup, interval, rounds = before, 1.0, None, len(confirmation.rounds) if confirmation else 0
    if confirmation and chosen is not None:
        answer, rounds = confirmation.standing(chosen), confirmation.rounds_of(chosen)
        speedup, interval = confirmation.speedup(chosen), confirmation.interval(chosen)
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
        likeliest=_likeliest(confirmation),
        missing=tuple(_missing(confirmation, course)) if verdict is Verdict.UNDECIDED else (),
        control=confirmation.control if confirmation else None,
        stop_reason=course.stop_reason,
        remaining_gain=max(0.0, course.highest_limit / answer.rate - 1),
        facts=facts,
        host=host,
        measurement=answer.typical,
        baseline_measurement=before.typical,
        history=course.history,
        interrupted=course.interrupted,
        seconds=course.seconds,
        tried=course.tried,
        finalists=confirmation.found if confirmation else (),
        landscape=course.landscape(answer.config) if course.landscape else None,
        notes=tuple(_notes(confirmation, answer, before, course)),
        findings=_findings(answer, course),
    )
    return replace(result, config=_with_evidence(result, before.config, host))


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


def _is_near(searched: Trial, baseline: Standing) -> bool:
    """Return whether the place of the epoch where the search has measured is like the others, where rounds began."""
    assert searched.rate is not None
    low, high = baseline.rate / NEGLIGIBLE, baseline.rate * NEGLIGIBLE
    return low <= searched.rate <= high


def _likeliest(confirmation: Confirmation | None) -> Finalist | None:
    if confirmation is None or confirmation.answer is None:
        return None
    config = confirmation.finalists[confirmation.answer]
    return next(found for found in confirmation.found if found.config == config)


def _missing(confirmation: Confirmation | None, course: Course) -> Iterator[str]:
    """Yield the things that would decide an undecided verdict."""
    is_over = confirmation is not None and confirmation.answer is None
    yield "another configuration that runs" if is_over else course.wanted
    crowded = _crowded(course.confirmations)
    if crowded and len(crowded) >= HEAVY * len(course.confirmations):
        yield f"a quieter machine ({crowded[-1].crowd_text})"


def _crowded(trials: Sequence[Trial]) -> list[Conditions]:
    """Return the conditions of measurements while others took the CPUs."""
    measured = [trial.measurement.conditions for trial in trials if trial.measurement]
    return [conditions for conditions in measured if conditions.is_crowded]


def _findings(answer: Standing, course: Course) -> tuple[Finding, ...]:
    """Return the limits of the answer, by its measurement, the nearest probes and the other trials."""
    config, probes = answer.config, course.probes
    evidence = Evidence(
        config=config,
        facts=course.facts,
        host=course.host.for_rank(config.ranks),
        measurement=answer.typical,
        compute=_look_at_step(config, probes),
        loader=_look_at_loader(config, probes),
        trials=course.history,
        looks=tuple(probes),
        refusal_of_more_workers=course.refusal_of_more_workers(config),
    )
    return find(evidence)


def _look_at_step(config: Config, probes: Sequence[Probe]) -> ComputeProbe | None:
    """Return the last look at the very step of a configuration."""
    step = without_loader(config)
    alike = [p.attempt.compute for p in probes if without_loader(p.config) == step and p.attempt.compute]
    return alike[-1] if alike else None


def _look_at_loader(config: Config, probes: Sequence[Probe]) -> LoaderTrace | None:
    """Return the look at the loader whose batch size is nearest."""
    traces = [probe.attempt.loader for probe in probes if probe.attempt.loader]
    return min(traces, key=lambda trace: abs(math.log(trace.batch_size / config.batch_size)), default=None)


def _standing(trial: Trial) -> Standing:
    """Return the standing of a trial of the search, where nothing was confirmed."""
    assert trial.measurement is not None
    measured = trial.measurement
    rate, interval = measured.samples_per_second, measured.ci95
    return Standing(config=trial.config, rate=rate, rate_ci95=interval, next_run_95=None, typical=measured)


def _resolved(config: Config, facts: WorkloadFacts) -> Config:
    """Replace torch's own thread counts by the numbers that they were."""
    return replace(
        config,
        intra_op_threads=config.intra_op_threads or facts.intra_op_threads,
        inter_op_threads=config.inter_op_threads or facts.inter_op_threads,
    )


def _with_evidence(result: Result, given: Config, host: Host) -> Config:
    """Attach the file's ``measured`` and ``made_on`` sections to the answer; the baseline as it was given."""
    answer = result.measurement
    baseline = {**_plain(given), "samples_per_second": _rounded(result.baseline_samples_per_second)}
    measured = {
        "samples_per_second": _rounded(result.samples_per_second),
        "ci95": _rounded_interval(result.ci95),
        "next_run_95": _rounded_interval(result.next_run_95),
        "peak_memory_bytes": answer.peak_memory_bytes,
        "memory": answer.memory,
        "memory_limit_bytes": answer.memory_limit_bytes,
        "ceiling_samples_per_second": _rounded(answer.ceiling_samples_per_second),
        "bottleneck": result.bottleneck,
        "baseline": baseline,
        "speedup": _rounded(result.speedup),
        "speedup_ci95": _rounded_interval(result.speedup_ci95),
        "verdict": verdict_text(result.verdict, result.most_gain),
    }
    made_on = {
        "device": result.facts.device_name,
        "cpus": host.cpus,
        "torch": result.facts.versions["torch"],
        "driver": result.facts.versions.get("driver"),
        "workload": result.facts.fingerprint,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "autotune": host.versions.get("autotune", "unknown"),
    }
    return replace(result.config, measured=measured, made_on=made_on)


def _notes(confirmation: Confirmation | None, answer: Standing, before: Standing, course: Course) -> Iterator[str]:
    confirmations = course.confirmations
    if crowded := _crowded(confirmations):
        is_adjusted = confirmation and confirmation.answer is not None and confirmation.is_adjusted(confirmation.answer)
        yield (
            f"other processes disturbed {len(crowded)} of {len(confirmations)} confirming measurements "
            f"({crowded[-1].crowd_text}), which "
            + ("are compared at equal load" if is_adjusted else "makes the interval wider")
        )
    without = [trial for trial in confirmations if trial.outcome is Outcome.SUSPECT and trial.measurement is None]
    if without:
        why = without[-1].attempt.message
        yield f"{len(without)} confirming measurements gave no rate ({why}): their rounds do not count"
    if confirmations and (confirmation is None or confirmation.answer is None):
        failed = next((trial for trial in reversed(confirmations) if trial.measurement is None), None)
        why = f"{failed.outcome}: {failed.attempt.message}" if failed else "it took too long or too much memory"
        yield f"no finalist ran beside your settings in a fresh process ({why})"
    if confirmation and (places := _places_text(confirmation)):
        yield places
    if confirmation and confirmation.control and confirmation.control.is_off:
        yield _off_text(confirmation.control)
    size, old_size = answer.config.batch_size, before.config.batch_size
    whole, old_whole = (
        config.samples_per_step * config.accumulation_steps for config in (answer.config, before.config)
    )
    if whole != old_whole:
        yield (
            f"the batch size changes from {old_whole} to {whole}: adapt the learning rate (linear or square-root "
            "rule), or keep the batch size with --batch-size or --global-batch-size"
        )
    elif size != old_size and course.facts.has_batch_norm:
        yield (
            f"an optimizer step keeps its {whole} samples, but batch normalisation now sees {size} at a time, not "
            f"{old_size}"
        )
    if (seen := answer.typical.beginning_samples) is not None:
        of = answer.typical.epoch_samples
        share = f"{min(1.0, seen / of):.0%} of an epoch" if of else "without an end of an epoch"
        yield f"the iterable dataset was measured on its first {seen:,} samples only, {share}"
    yield from _unseen_sizes(answer, course)
    yield from _kept_samples(answer, course)
    if confirmation:
        yield from answer.typical.notes
    yield from _advice_on_data_parallel(answer.config, course.facts, course.host)
    yield from (f"{why}: left out" for why in course.left_out)


def _kept_samples(answer: Standing, course: Course) -> Iterator[str]:
    """Yield a note on later epochs, where a sample is read faster the second time."""
    trace = _look_at_loader(answer.config, course.probes)
    if trace and trace.again_seconds is not None and trace.keeps_samples:
        yield (
            f"building a batch took {ms(fmean(trace.build_seconds))}, and the same batch again "
            f"{ms(trace.again_seconds)}: the rates are those of the first epoch, and later epochs may be faster"
        )


def _unseen_sizes(answer: Standing, course: Course) -> Iterator[str]:
    """Yield that larger batches may come than were seen, where sizes may differ and not all of an epoch was seen."""
    trials = {trial.number: trial for trial in (*course.history, *course.confirmations)}.values()
    found = [trial.measurement for trial in trials if trial.config == answer.config and trial.measurement]
    counts, epoch = (
        [m.seen_samples or m.samples for m in found],
        answer.typical.epoch_samples or course.facts.epoch_samples,
    )
    seen = sum(counts)
    if epoch is not None:  # each measurement sees samples from another part of another order
        seen = round(epoch * (1 - math.prod(1 - min(1.0, count / epoch) for count in counts)))
    sizes_may_differ = {"collate_fn", "batch_sampler"} & set(course.facts.loader_arguments)
    if sizes_may_differ and (epoch is None or seen < epoch):
        peak, memory = max(each.epoch_peak_bytes for each in (answer.typical, *found)), answer.typical.memory
        of = "" if epoch is None else f" of an epoch's {epoch:,}"
        yield (
            f"the answer was measured on about {seen:,}{of} samples, with up to {peak / 2**30:.2g} GiB of {memory} "
            "memory: a batch with a larger sample takes more"
        )


def _places_text(confirmation: Confirmation) -> str | None:
    """Return how much the baseline's rate depends on the place in the epoch, where it does."""
    found = [one.baseline for one in confirmation.rounds]
    rates = [each.samples_per_second for each in found]
    is_placed = not confirmation.is_crowded and all(each.beginning_samples is None for each in found)
    if not is_placed or max(rates) < UNEVEN * min(rates):
        return None
    return (
        f"the baseline's rate depends on the place in the epoch: {min(rates):,.0f} to {max(rates):,.0f} samples/s; the "
        "rates are means over the places measured"
    )


def _advice_on_data_parallel(config: Config, facts: WorkloadFacts, host: Host) -> Iterator[str]:
    """Yield advice on a model that copies itself to every device in every step."""
    if facts.data_parallel_devices is None or config.ranks > 1:
        return
    ranks = min(2, host.cpus) if facts.device == "cpu" else facts.data_parallel_devices
    wrapped = "the model is in nn.DataParallel, one process for all devices"
    if ranks < 2:
        yield f"{wrapped}: with one device it does nothing; take it out"
    else:
        yield f"{wrapped}: take it out, pass --ranks {ranks}, and train with torchrun"


def _off_text(control: Control) -> str:
    assert control.ci99 is not None
    low, high = (100 * (end - 1) for end in control.ci99)
    return (
        f"the machine is unsteady: the baseline measured twice differs by {100 * (control.ratio - 1):+.1f} % (99 % "
        f"interval {low:+.1f} to {high:+.1f} %), and only a larger gain counts. Close other programs, or give a larger "
        "--budget"
    )


def _plain(config: Config) -> dict[str, Any]:
    return {
        **config.dataloader_kwargs(),
        "amp": config.amp,
        "accumulation_steps": config.accumulation_steps,
        **({"ranks": config.ranks} if config.ranks > 1 else {}),
        **({"options": list(config.options)} if config.options else {}),
        "intra_op_threads": config.intra_op_threads,
        "inter_op_threads": config.inter_op_threads,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _rounded_interval(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [max(0.0, _rounded(end)) for end in interval]
