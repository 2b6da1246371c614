"""Scripts of two ranks: is the rate that is measured the script's own under torchrun, and is the promise kept there?

    python -m studies.ranks.scripts [KIND ...]

Some twelve minutes for all kinds. Writes ``recorded/scripts.json`` beside this script.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.config import load_config
from autotune.machine.host import inspect_host
from tests.processes import run_python

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded" / "scripts.json"
SCRIPTS = ("plain", "workers", "no_sync", "validates", "shards", "slow", "ends")
TRAINERS = ("accelerate", "transformers", "lightning", "fsdp2")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
BY_LAUNCHER = ("accelerate", "fsdp2")
"""Kinds that are tuned under ``torchrun``; the others with ``--ranks 2``."""
COUNTED = "45"
"""Steps whose rate the job prints; the shortest kind makes 60."""
BUDGETS = {SCRIPTS: "45s", TRAINERS: "90s"}
"""Trainers take seconds to import."""


def job_of(kind: str) -> tuple[str, ...]:
    """Return the words that start a kind of job."""
    return str(HERE / "jobs" / ("trainers.py" if kind in TRAINERS else "job.py")), kind


def rate(folder: str, *words: object) -> float:
    """Return the samples per second of both ranks that a job of these words trains at, by its own clock."""
    done = run_python(*TORCHRUN, *words, folder=Path(folder), seconds=120, COUNTED=COUNTED)
    rates = [float(line.split()[2]) for line in done.stdout.splitlines() if line.split()[1:2] == ["'rate'"]]
    if len(rates) != 2:
        raise subprocess.SubprocessError(done.stderr)
    return sum(rates)


def record(kind: str) -> dict[str, object]:
    """Tune a kind of job, and train with and without the answer."""
    job, path = job_of(kind), "autotune.yaml"
    with tempfile.TemporaryDirectory() as folder:
        before = rate(folder, *job)
        budget = next(budget for kinds, budget in BUDGETS.items() if kind in kinds)
        command = "-m", "autotune", "run", "--budget", budget, "--json"
        start = (*TORCHRUN, *command) if kind in BY_LAUNCHER else (*command, "--ranks", "2")
        done = run_python(*start, *job, folder=Path(folder), seconds=180)
        if done.returncode:
            raise subprocess.SubprocessError(done.stderr)
        found, measured = json.loads(done.stdout), load_config(Path(folder, path)).measured or {}
        after, applied = rate(folder, *job), rate(folder, "-m", "autotune", "apply", path, *job)
    base = next(trial for trial in found["trials"] if trial["kind"] == "baseline")
    return {
        "kind": kind,
        "tuned": "torchrun -m autotune run" if kind in BY_LAUNCHER else "--ranks 2",
        "own": [before, after],
        "present": measured.get("baseline", measured)["samples_per_second"],
        "verdict": found["verdict"],
        "answer": measured["samples_per_second"],
        "speedup": found["speedup"],
        "applied": applied,
        "workers": found["config"]["dataloader"]["num_workers"],
        "slowest": base["slowest_rank"],
        "spread": base["rank_spread"],
        "seconds": found["seconds"],
    }


def main(kinds: list[str]) -> None:
    host = inspect_host()
    known = json.loads(RECORDED.read_text(encoding="utf-8"))["jobs"] if RECORDED.exists() else []
    for kind in kinds or (*SCRIPTS, *TRAINERS):
        known = [each for each in known if each["kind"] != kind] + [record(kind)]
        print(json.dumps(known[-1]), file=sys.stderr)
        machine = {"cpu_model": host.cpu_model, "cpus": host.cpus, "versions": dict(host.versions)}
        RECORDED.write_text(json.dumps({"machine": machine, "jobs": known}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
