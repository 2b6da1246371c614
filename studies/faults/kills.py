"""Kill the tuner at random moments, and give the same command again: what is lost, what is measured twice?

python -m studies.faults.kills 20 studies/faults/recorded/kills.json
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from autotune import load_config, read_study
from autotune.errors import AutotuneError

COMMAND = [
    *(sys.executable, "-m", "autotune", "--model", "tests.workloads:small", "--device", "cpu", "--quiet"),
    *("--budget", "60s", "--trials", "4", "--num-workers", "0,1", "--batch-size", "32", "--threads", "1,2"),
    *("--amp", "off"),
]
LONGEST_WAIT = 4.0
"""Seconds between the last trial that is waited for and the kill, at most: some two trials."""


def kept(folder: Path) -> list[str]:
    """The configurations of the search's trials that have ended in the study's file."""
    try:
        history = read_study(folder / "autotune.study").history
    except AutotuneError:  # it is not there yet, or nothing was measured
        return []
    return [repr(trial.config) for trial in history if trial.kind != "confirm"]


def is_valid(path: Path) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            return load_config(path).measured is not None
    except AutotuneError:
        return False


def one_kill(seed: int) -> dict[str, Any]:
    """Kill a run at a random moment, give the command again, and say what became of what had been finished."""
    generator = random.Random(seed)
    trials, wait = generator.randrange(3), generator.uniform(0.0, LONGEST_WAIT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.monotonic()
        with subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and len(kept(folder)) < trials:
                time.sleep(0.05)
            try:
                process.wait(timeout=wait)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        moment = time.monotonic() - begin
        was_killed = process.returncode == -signal.SIGKILL
        before = kept(folder)
        again = subprocess.run(COMMAND, cwd=folder, capture_output=True, text=True, check=False)
        after = kept(folder)
        return {
            "killed_after_seconds": round(moment, 2),
            "was_killed": was_killed,
            "trials_kept": len(before),
            "trials_lost": sum(config not in after for config in before) if was_killed else 0,
            "trials_in_the_end": len(after),
            "repeated_trials": sum(count - 1 for count in Counter(after).values()),
            "exit_code": again.returncode,
            "valid_file": is_valid(folder / "autotune.yaml"),
            "left_behind": sorted(each.name for each in folder.iterdir()),
        }


def main() -> None:
    count, path = int(sys.argv[1]), Path(sys.argv[2])
    rows = json.loads(path.read_text()) if path.exists() else []
    for seed in range(len(rows), count):
        rows.append(one_kill(seed))
        print(json.dumps(rows[-1]), flush=True)
        path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
