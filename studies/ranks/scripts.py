"""Scripts of two ranks: is the rate that is measured the script's own under torchrun, and is the promise kept there?

    python -m studies.ranks.scripts [KIND ...]

Some nine minutes for all kinds. Writes ``recorded/scripts.json`` beside this script.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import autotune
from autotune.machine.host import inspect_host
from autotune.workload import Script
from tests.processes import run_python

HERE = Path(__file__).resolve().parent
JOB, RECORDED = HERE / "jobs" / "job.py", HERE / "recorded" / "scripts.json"
KINDS = ("plain", "workers", "no_sync", "validates", "shards", "slow", "ends")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
COUNTED = "45"
"""Steps whose rate the job prints; the shortest kind makes 60."""
BUDGET = "45s"


def rate(folder: str, *words: object) -> float:
    """Return the samples per second of both ranks that a job of these words trains at, by its own clock."""
    done = run_python(*TORCHRUN, *words, folder=Path(folder), seconds=120, COUNTED=COUNTED)
    rates = [float(line.split()[2]) for line in done.stdout.splitlines() if line.split()[1:2] == ["'rate'"]]
    if len(rates) != 2:
        raise subprocess.SubprocessError(done.stderr)
    return sum(rates)


def record(kind: str) -> dict[str, object]:
    """Tune a kind of job, and train with and without the answer."""
    with tempfile.TemporaryDirectory() as folder:
        before = rate(folder, JOB, kind)
        found = autotune.tune(Script(path=str(JOB), arguments=(kind,)), ranks=2, budget=BUDGET, quiet=True)
        path = Path(folder, "autotune.yaml")
        found.config.save(path)
        after, applied = rate(folder, JOB, kind), rate(folder, "-m", "autotune", "apply", path, JOB, kind)
    slowest = found.baseline_measurement.slowest_rank
    return {
        "kind": kind,
        "own": [before, after],
        "present": found.baseline_samples_per_second,
        "verdict": found.verdict,
        "answer": found.samples_per_second,
        "speedup": found.speedup,
        "applied": applied,
        "workers": found.config.num_workers,
        "slowest": slowest and slowest.rank,
        "spread": found.baseline_measurement.rank_spread,
        "seconds": found.seconds,
    }


def main(kinds: list[str]) -> None:
    host = inspect_host()
    known = json.loads(RECORDED.read_text(encoding="utf-8"))["jobs"] if RECORDED.exists() else []
    for kind in kinds or KINDS:
        known = [each for each in known if each["kind"] != kind] + [record(kind)]
        print(json.dumps(known[-1]), file=sys.stderr)
        machine = {"cpu_model": host.cpu_model, "cpus": host.cpus, "versions": dict(host.versions)}
        RECORDED.write_text(json.dumps({"machine": machine, "jobs": known}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
