"""The answer of a run, with evidence and notes for the user, from what is known of its study. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from autotune.config import Config, learning_rate_of
from autotune.configfile import MadeOn, Measured
from autotune.diagnosis.findings import Evidence, workers_text
from autotune.diagnosis.limits import find
from autotune.limits import percent
from autotune.notes import (
    busy_text,
    cause_of_unevenness,
    on_caches,
    on_data_parallel,
    on_disturbances,
    on_losses,
    on_other_batch,
    on_places,
    on_uneven_workers,
    on_unseen_samples,
    on_validation,
)
from autotune.probes import LoaderTrace
from autotune.proof import NEGLIGIBLE, Confirmation, Standing, shown_uneven, standing_of, with_pauses
from autotune.records import ADDED, Probe, Trial, WorkloadFacts
from autotune.report.result import Result
from autotune.result import Verdict, verdict_text
from autotune.search.bound import NOTHING_LEFT
from autotune.search.feasibility import Fitting
from autotune.search.known import Known
from autotune.search.landscape import landscape_of
from autotune.search.observations import GAIN
from autotune.search.option_looks import tried_options
from autotune.search.predict import loader_model
from autotune.search.probe_plan import untried_precision
from autotune.search.run import Ending
from autotune.stats import Interval

LEAST_SAID = 0.01
"""The smallest gain that is ever said to be excluded."""
BY_SCRIPT = "the batch of a script is kept unless it is asked for (--objective samples, or --batch-size 32..256)"
NOT_EXPECTED = f"nothing is expected to gain more than {percent(GAIN)}"
OF_SCRIPT = "an epoch that is short enough to be measured whole"
OF_FUNCTION = f"{OF_SCRIPT} (epoch_batches ends it earlier)"
OR_ALONE = ", or one reader for all of it (--num-workers 0,1)"
"""The remedies where the rest of a stream may run at another rate than its beginning."""
NO_TIME = "there was no time to prove an answer; give a larger --budget"
LOSSES = 20
"""Losses of a script that are compared."""


def answer(known: Known) -> Result:
    """Return the answer of a run: a proven gain, a likely gain, or none. Pure."""
    end, observations, space, searched = known.end, known.observations, known.setup.space, known.baseline.measurement
    assert end
    assert end.run.stop
    assert searched
    run, ending = end.run, end.run.stop.ending
    confirmation, confirmed = known.confirmation(run.proof), known.confirmed()
    is_complete = ending is Ending.COMPLETE and not untried_precision(observations, space)
    alone = known.quiet_baselines or [searched]
    before = confirmation.baseline if confirmation else standing_of(observations.baseline.config, alone)
    before = with_pauses(before, known.measured)
    is_like_epoch = _is_like_rounds(searched.samples_per_second, before.rate, confirmation)
    is_seen = is_complete and is_like_epoch and not known.may_hide_a_gain
    remaining = known.forecast.remaining if is_seen else None
    after, decided = _decided(confirmation, confirmed, before, remaining, known.largest_gain, known)
    is_open = decided["verdict"] is Verdict.UNDECIDED
    is_interrupted = ending is Ending.INTERRUPTED or (run.is_interrupted and is_open)
    result = Result(
        **decided,
        objective=space.objective,
        stop_reason=end.run.stop.text,
        facts=known.setup.facts,
        host=known.setup.host,
        history=known.history,
        interrupted=is_interrupted,
        seconds=run.spent,
        tried=tuple(each for each in tried_options(observations, space) if each.seconds or not is_interrupted),
    )
    other, why = _second(result, after.config, known)
    result = _with_evidence(result, before.config, known)
    if other is None:
        result = replace(result, no_alternative=why)
    else:
        if space.recommends and comes_first(other, result):
            result, other = other, result
        config = replace(result.config, alternatives={other.objective: other.config})
        result = replace(result, config=config, alternative=other)
    return replace(result, notes=(*result.notes, *_on_first_losses(result, known)))


def losses_to_read(result: Result, known: Known) -> tuple[Config, float] | None:
    """Return the settings with which a script is started next to read its first losses, and the seconds of these steps.

    ``None`` where its losses are known, cannot be read, or have to change.
    """
    if (starts := _alike(result)) is None:
        return None
    own, new = (known.observations.looks_at("losses", config) for config in starts)
    seconds = LOSSES * starts[0].samples_per_step / result.baseline_samples_per_second
    if any(not look.attempt.found for look in (*own, *new)) or len(own) > 1:
        return None
    if not own:
        return starts[0], seconds
    if not new:
        return starts[1], seconds
    return None if own[0].attempt.losses == new[0].attempt.losses else (starts[0], seconds)


def _alike(result: Result) -> tuple[Config, Config] | None:
    """Return the script's settings and the answer's where losses have to be the same; ``None`` where they may change.

    The first losses are not those of a later loop. Both have the answer's threads: these decide the order of sums.
    """
    nothing: dict[str, Any] = {"measured": None, "made_on": None, "alternatives": None}
    own, new = replace(result.baseline, **nothing), replace(result.config, **nothing)
    is_alike = (own.batch_size, own.amp) == (new.batch_size, new.amp)
    if result.facts.loop or own.dataloader_kwargs() == new.dataloader_kwargs() or not is_alike:
        return None
    return replace(own, intra_op_threads=new.intra_op_threads, inter_op_threads=new.inter_op_threads), new


def _on_first_losses(result: Result, known: Known) -> Iterator[str]:
    starts, end = _alike(result), known.end
    if known.setup.facts.loader_site is None or starts is None or end is None or end.run.is_interrupted:
        return
    own, new = ([look.attempt.losses for look in known.observations.looks_at("losses", each)] for each in starts)
    if not own:
        yield "There was no time to compare the first losses with those of your settings."
    elif own[0] and new and new[0] and (own[0] == new[0] or own[-1] is not own[0]):
        yield on_losses(own[0], new[0], own[-1])


def comes_first(other: Result, kept: Result) -> bool:
    """Return whether the answer with any batch, ``other``, is recommended: it is sure to reach the same loss sooner."""
    pace = other.same_loss_speedup
    return other.verdict is Verdict.FASTER and pace is not None and pace[0] > kept.speedup


def _decided(
    confirmation: Confirmation | None,
    confirmed: Sequence[Trial],
    before: Standing,
    remaining: float | None,
    bound: float | None,
    known: Known,
) -> tuple[Standing, dict[str, Any]]:
    """Return the standing of the answer, and the fields of a result that a proof decides."""
    assert known.end
    verdict, chosen, most_gain = _decide(confirmation, remaining, bound, known.is_contradicted)
    uneven = shown_uneven(_compared(confirmation, before, verdict), known.history)
    if uneven is not None:
        verdict, chosen, most_gain = Verdict.UNDECIDED, None, None
    missing = _missing(confirmation, confirmed, known, uneven) if verdict is Verdict.UNDECIDED else ()
    after, speedup, interval, rounds = before, 1.0, None, len(confirmation.rounds) if confirmation else 0
    if confirmation and chosen is not None:
        after = with_pauses(confirmation.standing(chosen), known.measured)
        rounds = confirmation.rounds_of(chosen)
        speedup, interval = confirmation.speedup(chosen), confirmation.interval(chosen)
    likeliest = confirmation.answer if confirmation else None
    is_bounded = verdict is Verdict.NO_GAIN and bound is not None and bound < NOTHING_LEFT
    return after, {
        "config": _resolved(after.config, known.setup.facts),
        "baseline": _resolved(before.config, known.setup.facts),
        "samples_per_second": after.rate,
        "ci95": after.rate_ci95,
        "next_run_95": after.next_run_95,
        "baseline_samples_per_second": before.rate,
        "baseline_ci95": before.rate_ci95,
        "rounds": rounds,
        "speedup": speedup,
        "speedup_ci95": interval,
        "verdict": verdict,
        "missing": tuple(missing),
        "most_gain": most_gain,
        "likeliest": confirmation.finding(likeliest) if confirmation and likeliest is not None else None,
        "measurement": after.typical,
        "baseline_measurement": before.typical,
        "findings": find(_evidence(after, known)),
        "finalists": confirmation.found if confirmation else (),
        "remaining_gain": bound if is_bounded else max(0.0, known.forecast.highest_limit / after.rate - 1),
        "landscape": landscape_of(known.forecast, after.config),
        "notes": (
            *(on_uneven_workers(uneven) if uneven else ()),
            *_notes(confirmation, confirmed, after, before, known),
            *_left_out(known),
            *known.end.notes,
        ),
    }


def _compared(confirmation: Confirmation | None, before: Standing, verdict: Verdict) -> Iterator[Standing]:
    yield before
    if confirmation and confirmation.answer is not None and verdict is not Verdict.NO_GAIN:
        yield confirmation.standing(confirmation.answer)


def _second(result: Result, answer: Config, known: Known) -> tuple[Result | None, str]:
    assert known.end
    space, given = known.setup.space.second, known.baseline.config
    if space is None:
        facts = known.setup.facts
        is_fixed = facts.batch_samples is not None or bool(facts.other_loader_sites)
        is_chosen = facts.loader_site and known.setup.space.varies_no_batch and not is_fixed
        return None, BY_SCRIPT if is_chosen else ""
    is_same = known.serves_both(answer) and (result.verdict is Verdict.FASTER or space.objective == "same-batch")
    confirmation, forecast = known.confirmation(known.end.run.second), known.second_forecast
    if confirmation is not None and forecast is not None:
        before = with_pauses(confirmation.baseline, known.measured)
        remaining = None if forecast.is_open.any() else forecast.remaining
        _, decided = _decided(confirmation, known.confirmed(second=True), before, remaining, None, known)
        is_better = decided["verdict"] is Verdict.FASTER and decided["speedup"] >= (1 + GAIN) * result.speedup
        if is_better or not is_same:
            other = replace(result, **{**decided, "missing": ()})
            return _with_evidence(replace(other, objective=space.objective), given, known), ""
    hoped = known.second_finalist(answer if result.verdict is Verdict.FASTER else known.setup.space.base)
    if is_same and (confirmation is not None or hoped is None or space.objective == "same-batch"):
        return _with_evidence(replace(result, objective=space.objective), given, known), ""
    if result.interrupted:
        return None, ""
    return None, NO_TIME if hoped is not None and confirmation is None else NOT_EXPECTED


def _is_like_rounds(searched: float, rate: float, confirmation: Confirmation | None) -> bool:
    """Return whether the baseline ran in the search as in the rounds, or as in one where the machine's speed varies."""
    rates = [rate]
    if confirmation and confirmation.rounds:
        rounds = [one.baselines for one in confirmation.rounds]
        if cause_of_unevenness(rounds) in (None, "machine"):
            rates += [each.samples_per_second for one in rounds for each in one]
    return min(rates) / NEGLIGIBLE <= searched <= max(rates) * NEGLIGIBLE


def _decide(
    confirmation: Confirmation | None,
    remaining: float | None,
    bound: float | None,
    is_contradicted: Callable[[Config], bool],
) -> tuple[Verdict, Config | None, float | None]:
    """Return the verdict, the finalist that is the answer (``None`` for the baseline), and the most it may gain.

    ``remaining`` is the largest gain that is expected of an untried configuration, ``bound`` the largest possible of
    all: where they leave next to nothing, nobody has to be measured beside the baseline. What was proven beside others
    and is contradicted by measurements without them is no answer.
    """
    config = confirmation.answer if confirmation else None
    if confirmation is not None and config is not None and confirmation.is_proven(config):
        if not confirmation.is_crowded or not is_contradicted(config):
            return Verdict.FASTER, config, None
        return Verdict.UNDECIDED, None, None
    if bound is not None and bound < NOTHING_LEFT:
        return Verdict.NO_GAIN, None, max(LEAST_SAID, bound)
    if confirmation is None or config is None:
        return Verdict.UNDECIDED, None, None
    most = max(confirmation.most or math.inf, math.inf if remaining is None else 1 + remaining)
    if most <= NEGLIGIBLE:
        return Verdict.NO_GAIN, None, max(LEAST_SAID, most - 1)
    return Verdict.UNDECIDED, config if confirmation.is_likely(config) else None, None


def _missing(
    confirmation: Confirmation | None, confirmed: Sequence[Trial], known: Known, uneven: Trial | None
) -> Iterator[str]:
    assert known.end
    is_over = confirmation is not None and confirmation.answer is None
    if uneven is not None:
        alone = OR_ALONE if known.baseline.config.readers == 1 else ""
        yield (OF_SCRIPT if known.setup.facts.loader_site else OF_FUNCTION) + alone
        return  # neither time nor quiet tells more of the rest
    if wanted := "another configuration that runs" if is_over else known.end.run.wanted:
        yield wanted
    if busy := busy_text(confirmed):
        yield f"a quieter machine ({busy})"


def _evidence(answer: Standing, known: Known) -> Evidence:
    config, probes, step = answer.config, known.probes, answer.config.without_loader
    looks = [each.attempt.compute for each in probes if each.attempt.compute and each.config.without_loader == step]
    return Evidence(
        config=config,
        facts=known.setup.facts,
        host=known.setup.host.for_rank(config.ranks),
        measurement=answer.typical,
        compute=looks[-1] if looks else None,
        loader=_nearest_loader(config, probes),
        trials=known.history,
        looks=tuple(probes),
        refusal_of_more_workers=known.forecast.refusal_of_more_workers(config),
        are_workers_vain=known.forecast.are_workers_vain(config),
    )


def _nearest_loader(config: Config, probes: Sequence[Probe]) -> LoaderTrace | None:
    traces = [probe.attempt.loader for probe in probes if probe.attempt.loader]
    return min(traces, key=lambda trace: abs(math.log(trace.batch_size / config.batch_size)), default=None)


def _resolved(config: Config, facts: WorkloadFacts) -> Config:
    return replace(
        config,
        intra_op_threads=config.intra_op_threads or facts.intra_op_threads,
        inter_op_threads=config.inter_op_threads or facts.inter_op_threads,
    )


def _notes(
    confirmation: Confirmation | None, confirmed: Sequence[Trial], answer: Standing, before: Standing, known: Known
) -> Iterator[str]:
    typical, facts = answer.typical, known.setup.facts
    has_answer = confirmation is not None and confirmation.answer is not None
    yield from on_disturbances(confirmed, has_answer=has_answer, is_new=answer.config != before.config)
    same, old = (
        [trial.measurement for trial in known.measured if trial.config == each.config and trial.measurement]
        for each in (answer, before)
    )
    trace = _nearest_loader(answer.config, known.probes)
    caches = list(on_caches(trace, same)) or list(on_caches(trace, old))
    yield from caches
    if confirmation and not confirmation.is_crowded and not caches:
        yield from on_places([one.baselines for one in confirmation.rounds])
    yield from on_other_batch(answer.config, before.config, facts)
    yield from on_unseen_samples(typical, same, facts)
    yield from on_validation(typical, before.typical)
    if confirmation:
        yield from typical.notes
    yield from on_data_parallel(answer.config, facts, known.setup.host)


def _left_out(known: Known) -> Iterator[str]:
    distrusted = (known.observations.distrust(amp) for amp in known.setup.space.allowed["amp"])
    failures = (f"loader workers: {failure}" for failure in known.observations.worker_failures[-1:])
    yield from (f"{why}: left out" for why in (*filter(None, distrusted), *failures, *_refused(known)))


def _refused(known: Known) -> Iterator[str]:
    found, forecast = dict[str, str](), known.forecast
    fitting = Fitting(known.observations, loader_model(known.observations))
    best = forecast.rate_of(forecast.best.config)
    faster = [config for config in forecast.configs if forecast.bound(config) > best]
    for config in sorted(faster, key=lambda each: (each.batch_size, each.num_workers)):
        if (why := fitting.refusal_in_flight(config)) is not None:
            kind = re.sub(r"[0-9.]+", "", why)
            found.setdefault(kind, f"batch {config.batch_size} with {workers_text(config.num_workers)}: {why}")
    yield from found.values()


def _with_evidence(result: Result, given: Config, known: Known) -> Result:
    """Return a result with the gradients' noise and its evidence; ``given`` is the baseline as the user has it."""
    assert known.end
    if result.config.samples_per_update != result.baseline.samples_per_update:
        noise = known.noise
        result = replace(result, **({"no_noise": noise} if isinstance(noise, str) else {"noise": noise}))
    answer, facts, versions, host = result.measurement, result.facts, result.facts.versions, result.host
    cast, is_cast = facts.autocast_call, result.config.amp != "off"  # added, or left out
    before = _rounded(result.baseline_samples_per_second)
    is_of_later_epochs = answer.later_epochs or result.baseline_measurement.later_epochs
    measured: Measured = {
        "samples_per_second": _rounded(result.samples_per_second),
        "ci95": _ends(result.ci95),
        "next_run_95": _ends(result.next_run_95),
        **({} if answer.beginning_samples is None else {"beginning_samples": answer.beginning_samples}),
        **({"later_epochs": True} if is_of_later_epochs else {}),
        "peak_memory_bytes": answer.peak_memory_bytes,
        "memory": answer.memory,
        "memory_limit_bytes": answer.memory_limit_bytes,
        "ceiling_samples_per_second": _rounded(answer.ceiling_samples_per_second),
        "bottleneck": result.bottleneck,
        **({"baseline": {**given.plain(), "samples_per_second": before}} if result.config != result.baseline else {}),
        "speedup": _rounded(result.speedup),
        "speedup_ci95": _ends(result.speedup_ci95),
        "objective": result.objective,
        "learning_rate": learning_rate_of(
            facts.optimizer, result.baseline.samples_per_update, result.config.samples_per_update
        ),
        "verdict": verdict_text(result.verdict, result.most_gain),
    }
    made_on: MadeOn = {
        "device": facts.device_name,
        "cpus": host.cpus,
        "threads": facts.intra_op_threads,
        "torch": versions["torch"],
        "driver": versions.get("driver"),
        "workload": facts.fingerprint,
        "date": known.end.date,
        "autotune": host.versions.get("autotune", "unknown"),
        **({} if not facts.loader_site or is_cast == bool(cast) else {"autocast": cast or ADDED}),
        **({"loader": facts.loader_site} if facts.loader_site else {}),
        **({"loop": facts.loop} if facts.loop else {}),
        **({"other_loaders": list(facts.other_loader_sites)} if facts.other_loader_sites else {}),
        **({"loaders_of_ranks": list(facts.sites_of_ranks)} if facts.sites_of_ranks else {}),
        **({"shared_lines": list(facts.shared_lines)} if facts.shared_lines else {}),
    }
    return replace(result, config=replace(result.config, measured=measured, made_on=made_on))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [max(0.0, _rounded(end)) for end in interval]
