"""Is a gain claimed on a real machine, where there is none? The demo's baseline against itself.

    python studies/confirmation/real.py [--budget 90] [--repeats 5] [--output FILE]

First a whole run whose settings are all fixed to the baseline's, then confirmations with the baseline itself as the
finalist. Writes ``recorded/real.json`` beside this script, with what the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from autotune.config import Config
from autotune.limits import Budget
from autotune.machine.host import inspect_host
from autotune.proof import Confirmation, Rounds, finalists_for
from autotune.records import Attempt, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
WORKLOAD = "autotune.demo:build"
WINDOW_SECONDS = 4.0
"""Longest window of one measurement."""
GRACE = 30.0
"""Seconds that a measurement may take longer than the budget."""


def main() -> None:
    options = parse_arguments()
    config = Config(batch_size=32, intra_op_threads=inspect_host().cpus)
    content = {"machine": machine(), "baseline": config.to_document(), "budget_seconds": options.budget}
    content["run"] = run_fixed(config, options.budget)
    content["confirmations"] = [confirm_itself(config, options.budget, seed) for seed in range(options.repeats)]
    options.output.parent.mkdir(exist_ok=True, parents=True)
    options.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Confirm a baseline against itself on this machine.")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of each confirmation")
    parser.add_argument("--repeats", type=int, default=5, help="confirmations")
    parser.add_argument("--output", type=Path, default=HERE / "recorded" / "real.json", help="file to write")
    return parser.parse_args()


def machine() -> dict[str, object]:
    facts = ("cpus", "cpu_model", "memory_bytes", "gpus", "versions")
    host = asdict(inspect_host())
    return {"date": datetime.now(UTC).isoformat(timespec="seconds")} | {key: host[key] for key in facts}


def run_fixed(config: Config, budget: float) -> dict[str, object]:
    """Run the command line where nothing may vary; return what it says of the baseline."""
    fixed = ["--batch-size", str(config.batch_size), "--num-workers", "0", "--pin-memory", "false", "--amp", "off"]
    fixed += ["--threads", str(config.intra_op_threads)]
    baseline = ["--baseline", f"batch_size={config.batch_size},threads={config.intra_op_threads}"]
    command = [sys.executable, "-m", "autotune", "--model", WORKLOAD, "--device", "cpu", "--budget", f"{budget:g}s"]
    with tempfile.TemporaryDirectory() as folder:
        output = ["--json", "--output", str(Path(folder) / "autotune.yaml")]
        done = subprocess.run([*command, *baseline, *fixed, *output], check=True, stdout=subprocess.PIPE, text=True)
    measured = json.loads(done.stdout)["config"]["measured"]
    return {key: measured[key] for key in ("samples_per_second", "verdict", "speedup")}


def confirm_itself(config: Config, budget: float, seed: int) -> dict[str, object]:
    """Confirm a baseline with itself as the finalist, as a run would in so much time."""
    with ProcessRunner(describe(WORKLOAD), "cpu") as runner:
        runner.inspect(config)
        first = runner.measure(config, Request(seconds=WINDOW_SECONDS, fresh=True))
        pace = Pace(Budget(budget), first.seconds)
        found = Rounds(
            runner,
            config,
            [config],
            pace.next_request,
            has_time=pace.has_time,
            baselines=finalists_for(budget / first.seconds)[1],
            seed=seed,
            on_attempt=lambda config, attempt, place: pace.count(config, attempt),
        ).run()
    return {"seed": seed, "seconds": pace.clock.spent, "measurements": pace.taken} | facts(found)


class Pace:
    """How long measurements take, and whether there is time for more."""

    def __init__(self, clock: Budget, first: float) -> None:
        self.clock = clock
        self.first = first
        self.taken = 0

    def next_request(self) -> Request:
        return Request(seconds=WINDOW_SECONDS, fresh=True, time_limit=self.clock.left + GRACE)

    def has_time(self, measurements: float, rounds: int) -> bool:
        cost = self.clock.spent / self.taken if self.taken else self.first
        least = measurements / 2 if not rounds else measurements
        return self.clock.spent + least * cost <= self.clock.seconds

    def count(self, config: Config, attempt: Attempt) -> None:
        self.taken += 1


def facts(found: Confirmation | None) -> dict[str, object]:
    """Return what a confirmation says of its only finalist."""
    if found is None:
        return {"rounds": 0, "verdict": "not proven"}
    return {
        "rounds": len(found.rounds),
        "ratio": found.speedup(0),
        "ci95": found.interval(0),
        "verdict": "faster" if found.is_proven(0) else "not proven",
        "pairs": [
            [each.samples_per_second, one.baseline_rate] for one in found.rounds for each in one.finalists.values()
        ],
    }


if __name__ == "__main__":
    main()
