"""What a run comes to: the answer, its evidence, and what the user should know. Pure but for the date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from autotune.config import Config
from autotune.host import Host
from autotune.records import Outcome, Result, Trial, WorkloadFacts
from autotune.search.confirm import Confirmation

__all__ = ["conclude"]


def conclude(
    trials: Sequence[Trial],
    confirmation: Confirmation | None,
    candidate: Config,
    *,
    facts: WorkloadFacts,
    host: Host,
    history: tuple[Trial, ...],
    confirmations: Sequence[Trial],
    stop_reason: str,
    seconds: float,
    highest_limit: float,
) -> Result:
    """Return the result of a run: the candidate where its gain was proven, the baseline otherwise.

    ``trials`` are those of the search, the baseline first; ``confirmations`` the confirming ones of this run;
    ``history`` is everything on record; ``highest_limit`` is what the fastest step would give if no loader
    were ever late.
    """
    baseline = trials[0]
    assert baseline.measurement is not None
    faster = confirmation is not None and confirmation.verdict == "faster"
    before = confirmation.typical(0) if confirmation else baseline.measurement
    answer = confirmation.typical(1) if confirmation and faster else before
    rate_before, interval_before = confirmation.rate(0) if confirmation else (_rate(baseline), before.ci95)
    rate, interval = confirmation.rate(1) if confirmation and faster else (rate_before, interval_before)
    result = Result(
        config=_resolved(candidate if faster else baseline.config, facts),
        baseline=_resolved(baseline.config, facts),
        samples_per_second=rate,
        ci95=interval,
        baseline_samples_per_second=rate_before,
        baseline_ci95=interval_before,
        rounds=confirmation.rounds if confirmation else 0,
        speedup=confirmation.speedup if confirmation and faster else 1.0,
        speedup_ci95=confirmation.speedup_ci95 if confirmation and faster else None,
        verdict="faster" if faster else "no proven gain",
        stop_reason=stop_reason,
        remaining_gain=max(0.0, highest_limit / rate - 1),
        facts=facts,
        measurement=answer,
        baseline_measurement=before,
        history=history,
        seconds=seconds,
        notes=_notes(confirmation, candidate, baseline.config, confirmations),
    )
    return replace(result, config=_with_evidence(result, host))


def _resolved(config: Config, facts: WorkloadFacts) -> Config:
    """Replace torch's own thread counts by the numbers that they were."""
    return replace(
        config,
        intra_op_threads=config.intra_op_threads or facts.intra_op_threads,
        inter_op_threads=config.inter_op_threads or facts.inter_op_threads,
    )


def _with_evidence(result: Result, host: Host) -> Config:
    """Attach the file's ``measured`` and ``made_on`` sections to the answer."""
    answer = result.measurement
    baseline = {
        **_plain(result.baseline),
        "samples_per_second": _rounded(result.baseline_samples_per_second),
    }
    measured = {
        "samples_per_second": _rounded(result.samples_per_second),
        "ci95": _rounded_interval(result.ci95),
        "peak_memory_bytes": answer.peak_memory_bytes,
        "memory": answer.memory,
        "memory_limit_bytes": answer.memory_limit_bytes,
        "ceiling_samples_per_second": _rounded(answer.ceiling_samples_per_second),
        "bottleneck": answer.bottleneck,
        "baseline": baseline,
        "speedup": _rounded(result.speedup),
        "speedup_ci95": _rounded_interval(result.speedup_ci95),
        "verdict": result.verdict,
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


def _notes(
    confirmation: Confirmation | None, candidate: Config, baseline: Config, confirmations: Sequence[Trial]
) -> tuple[str, ...]:
    notes = []
    faster = confirmation is not None and confirmation.verdict == "faster"
    disturbed = [trial for trial in confirmations if trial.outcome is Outcome.SUSPECT]
    if disturbed:
        notes.append(
            f"the machine was disturbed during confirmation ({disturbed[-1].message}); those rounds do "
            "not count. Close what else is running and try again"
        )
    if confirmation is None and candidate != baseline:
        notes.append("the fastest trial was not confirmed in a fresh process, so nothing is claimed")
    elif confirmation is not None and confirmation.rounds == 1:
        notes.append("there was time for one round only, which proves nothing; give a larger --budget")
    if faster and candidate.batch_size != baseline.batch_size:
        notes.append(
            f"the batch size changes from {baseline.batch_size} to {candidate.batch_size}: adapt the "
            "learning rate (linear or square-root rule), or fix it with --batch-size"
        )
    if confirmation is not None:
        notes += confirmation.typical(1 if faster else 0).notes
    return tuple(notes)


def _rate(trial: Trial) -> float:
    assert trial.rate is not None
    return trial.rate


def _plain(config: Config) -> dict[str, Any]:
    return {
        **config.dataloader_kwargs(),
        "amp": config.amp,
        "accumulation_steps": config.accumulation_steps,
        "intra_op_threads": config.intra_op_threads,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _rounded_interval(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [max(0.0, _rounded(end)) for end in interval]
