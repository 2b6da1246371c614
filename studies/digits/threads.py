"""Compare where thread counts are set: in the environment before Python starts, or after torch is imported.

    python studies/digits/threads.py > studies/digits/recorded/threads.csv

Each round measures the recorded configuration three times, one after the other, in samples per second: by autotune,
in a new process that calls ``apply_threads`` after ``import torch``, and in one that has them in its environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import autotune
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
CONFIG = HERE / "recorded" / "autotune.yaml"
REQUEST = Request(seconds=4.0, target=0.001, fresh=True)
ROUNDS = 6


def main() -> None:
    config = autotune.load_config(CONFIG)
    print("autotune,after_import,in_environment")
    with ProcessRunner(describe(f"{HERE}/workload.py:build")) as runner:
        for _ in range(ROUNDS):
            attempt = runner.measure(config, REQUEST)
            assert attempt.measurement is not None, attempt.message
            rates = (attempt.measurement.samples_per_second, by_hand({}), by_hand(config.thread_environment()))
            print(*(f"{rate:.0f}" for rate in rates), sep=",", flush=True)


def by_hand(environment: dict[str, str]) -> float:
    """Measure in a process that has this in its environment from the start."""
    command = [sys.executable, "-W", "ignore", __file__, "measure"]
    done = subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True, text=True)
    return float(done.stdout)


def measure_here() -> float:
    import torch  # noqa: F401  # first, as most scripts do
    from workload import build

    from autotune.measure.benchmark import measure
    from autotune.measure.device import open_device
    from autotune.measure.step_probe import open_step

    config = autotune.load_config(CONFIG)
    config.apply_threads()
    workload, device = autotune.Workload(*build()), open_device("auto")
    return measure(workload, config, open_step(workload, config, device), device, REQUEST).samples_per_second


if __name__ == "__main__":
    print(measure_here()) if sys.argv[1:] == ["measure"] else main()
