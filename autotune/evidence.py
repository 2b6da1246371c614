"""The evidence in a config file: rates, gain and memory as measured, and the machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from autotune.config import Config
from autotune.result import Result, verdict_text
from autotune.stats import Interval


def with_evidence(result: Result, given: Config) -> Config:
    """Return the answer with its evidence; ``given`` is the baseline as the user has it."""
    answer, versions, host = result.measurement, result.facts.versions, result.host
    measured = {
        "samples_per_second": _rounded(result.samples_per_second),
        "ci95": _ends(result.ci95),
        "next_run_95": _ends(result.next_run_95),
        "peak_memory_bytes": answer.peak_memory_bytes,
        "memory": answer.memory,
        "memory_limit_bytes": answer.memory_limit_bytes,
        "ceiling_samples_per_second": _rounded(answer.ceiling_samples_per_second),
        "bottleneck": result.bottleneck,
        "baseline": {**given.plain(), "samples_per_second": _rounded(result.baseline_samples_per_second)},
        "speedup": _rounded(result.speedup),
        "speedup_ci95": _ends(result.speedup_ci95),
        "verdict": verdict_text(result.verdict, result.most_gain),
    }
    made_on = {
        "device": result.facts.device_name,
        "cpus": host.cpus,
        "torch": versions["torch"],
        "driver": versions.get("driver"),
        "workload": result.facts.fingerprint,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "autotune": host.versions.get("autotune", "unknown"),
        **({"loader": result.facts.loader_site} if result.facts.loader_site else {}),
        **({"other_loaders": list(result.facts.other_loader_sites)} if result.facts.other_loader_sites else {}),
    }
    return replace(result.config, measured=measured, made_on=made_on)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [max(0.0, _rounded(end)) for end in interval]
