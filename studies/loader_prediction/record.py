"""Predict the rate of many loader settings from two short looks, then measure each of them.

    python studies/loader_prediction/record.py

Looks and measurements are those of a search, but last longer. Writes the folder ``recorded`` beside this script: a line
in ``runs.csv`` for each workload, length of the step and setting, with predicted and measured rate, and the traces.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import numpy as np
from workloads import STEP_VARIABLE

from autotune.config import Config
from autotune.limits import DEFAULT_MEMORY_LIMIT
from autotune.machine.host import inspect_host
from autotune.records import Probe, Request, Trial, WorkloadFacts
from autotune.runner.local import ProcessRunner
from autotune.search.observations import Observations
from autotune.search.predict import predict
from autotune.workload import describe

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
RECORDED = HERE / "recorded"
BATCH_SIZE = 16
BASELINE = Config(batch_size=BATCH_SIZE)
SETTINGS = [(workers, prefetch) for workers in (1, 2, 3, 4, 6) for prefetch in (1, 2, 4, 8)]
"""Workers and prefetch factors."""
STEP_SHARES = {"sleeping": (0.05, 0.3, 0.6), "jpegs": (0.4,), "texts": (0.4,)}
"""Length of a step as a share of the time that one worker needs for a batch."""
LOOK = Request(seconds=6.0, part="loader")
WINDOW = Request(seconds=6.0, target=0.005)
FIELDS = ("workload", "step_share", "workers", "prefetch", "predicted", "simple", "measured", "low", "high", "error")


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    traces = {}
    with (RECORDED / "runs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for workload, shares in STEP_SHARES.items():
            build = build_seconds(workload)
            for share in shares:
                os.environ[STEP_VARIABLE] = repr(share * build)
                rows, trace = record(workload)
                traces[f"{workload} {share}"] = trace
                for row in rows:
                    writer.writerow({"workload": workload, "step_share": share} | row)
                    file.flush()
    write("traces.json", traces)
    facts = ("cpus", "cpu_model", "memory_bytes", "gpus", "versions")
    host = asdict(inspect_host())
    write("machine.json", {"date": datetime.now(UTC).isoformat(timespec="seconds")} | {key: host[key] for key in facts})


def build_seconds(workload: str) -> float:
    """Return what one worker needs for a batch."""
    os.environ[STEP_VARIABLE] = "0"
    with ProcessRunner(describe(f"{HERE}/workloads.py:{workload}")) as runner:
        runner.inspect(BASELINE)
        trace = runner.measure(BASELINE, LOOK).loader
    assert trace is not None
    return fmean(trace.build_seconds)


def record(workload: str) -> tuple[list[dict[str, object]], dict[str, object]]:
    with ProcessRunner(describe(f"{HERE}/workloads.py:{workload}")) as runner:
        facts = runner.inspect(BASELINE)
        observations = look(runner, facts)
        configs = [
            Config(batch_size=BATCH_SIZE, num_workers=workers, prefetch_factor=prefetch, persistent_workers=True)
            for workers, prefetch in SETTINGS
        ]
        predicted = predict(configs, observations).rates
        rows = []
        for config, expected in zip(configs, predicted.tolist(), strict=True):
            attempt = runner.measure(config, WINDOW)
            assert attempt.measurement is not None, attempt.message
            rate, interval = attempt.measurement.steady_samples_per_second, attempt.measurement.ci95
            rows.append(
                {
                    "workers": config.num_workers,
                    "prefetch": config.prefetch_factor,
                    "predicted": f"{expected:.5g}",
                    "simple": f"{simple(config, observations):.5g}",
                    "measured": f"{rate:.5g}",
                    "low": f"{interval[0]:.5g}" if interval else "",
                    "high": f"{interval[1]:.5g}" if interval else "",
                    "error": f"{expected / rate - 1:.4f}",
                }
            )
            print(workload, rows[-1], file=sys.stderr, flush=True)
    return rows, asdict(observations.traces[0])


def look(runner: ProcessRunner, facts: WorkloadFacts) -> Observations:
    """Take the looks: the baseline, the step alone, the loader alone."""
    baseline = runner.measure(BASELINE, Request(seconds=2.0))
    trial = Trial(number=0, kind="baseline", config=BASELINE, attempt=baseline)
    probes = []
    for part in ("compute", "loader"):
        request = LOOK if part == "loader" else Request(seconds=1.0, part=part)
        found = runner.measure(BASELINE, request)
        probes.append(Probe(part=part, config=BASELINE, attempt=found))
    endless = WorkloadFacts(**{**asdict(facts), "dataset_length": None})
    return Observations(
        facts=endless, host=inspect_host(), memory_limit=DEFAULT_MEMORY_LIMIT, trials=(trial,), probes=tuple(probes)
    )


def simple(config: Config, observations: Observations) -> float:
    """Return the samples per second of the usual formula: the slower of one step and one build by all workers."""
    step = next(probe.attempt.compute for probe in observations.probes if probe.attempt.compute)
    build = fmean(observations.traces[0].build_seconds)
    return float(np.minimum(step.samples_per_second, BATCH_SIZE * config.num_workers / build))


def write(name: str, content: object) -> None:
    (RECORDED / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
