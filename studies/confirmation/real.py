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
from autotune.proof import Confirmation, Proof, confirmation_of, finalists_for
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.simulated import measured

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
WORKLOAD = "autotune.demo:build"
WINDOW_SECONDS = 4.0
"""Longest window of one measurement."""


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
        count = finalists_for(budget / first.seconds)[1]
        proof = Proof(name="itself", finalists=(config,), baselines=count, seed=seed, seconds=first.seconds)
        clock = Budget(budget)
        trials = measured(runner, proof, config, lambda rounds: clock.left, seconds=WINDOW_SECONDS)
        found = confirmation_of(proof, config, trials)
    return {"seed": seed, "seconds": clock.spent, "measurements": len(trials)} | facts(found)


def facts(found: Confirmation | None) -> dict[str, object]:
    """Return what a confirmation says of its only finalist."""
    if found is None:
        return {"rounds": 0, "verdict": "not proven"}
    (finalist,) = found.found
    return {
        "rounds": len(found.rounds),
        "ratio": finalist.speedup,
        "ci95": finalist.interval,
        "verdict": "faster" if found.is_proven(finalist.config) else "not proven",
        "pairs": [
            [each.samples_per_second, one.baseline_rate] for one in found.rounds for each in one.finalists.values()
        ],
    }


if __name__ == "__main__":
    main()
