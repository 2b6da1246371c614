"""Real runs of scripts: beside a neighbour who comes and goes, and of jobs with nothing to gain.

    python -m studies.neighbours.real beside [--jobs images tabular texts] [--runs 3]
    python -m studies.neighbours.real nothing [--jobs trainer rows wide] [--runs 3]

Appends to ``recorded/real.jsonl``. The scripts tell their own clock, by which each answer is judged: plain and with
``apply`` by turns, twice each, without the neighbour.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from multiprocessing import Process
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
JOBS = {"beside": ("images", "tabular", "texts"), "nothing": ("trainer", "rows", "wide")}
STAY, PERIOD, BURST = 30.0, 60.0, 0.05
"""Seconds for which the neighbour stays in each so many, and of each half of his work: he takes half of a CPU."""
SECONDS = "8"
"""Seconds for which a script trains to be judged."""


def disturb() -> None:
    """Take half of one CPU for 30 s of every 60."""
    begin = time.monotonic()
    while True:
        if (time.monotonic() - begin) % PERIOD >= STAY:
            time.sleep(0.5)
            continue
        end = time.monotonic() + BURST
        while time.monotonic() < end:
            sum(range(1000))
        time.sleep(BURST)


@contextmanager
def neighbour(comes: bool) -> Iterator[None]:
    process = Process(target=disturb, daemon=True)
    if comes:
        process.start()
    yield
    if comes:
        process.kill()
        process.join()


def autotune(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "autotune", *arguments], capture_output=True, text=True, check=False)


def clock(text: str) -> float | None:
    found = re.search(r"own clock: ([\d.]+)", text)
    return float(found[1]) if found else None


def judged(script: str, file: str) -> dict[str, list[float | None]]:
    """Return the rates by the script's own clock: before, and with the answer."""
    rates: dict[str, list[float | None]] = {"before": [], "after": []}
    for how in ("before", "after", "after", "before"):
        command = [script, "--seconds", SECONDS]
        if how == "after":
            done = autotune("apply", file, *command)
        else:
            done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        rates[how].append(clock(done.stdout + done.stderr))
    return rates


def run(part: str, job: str, number: int) -> dict[str, object]:
    script, budget = str(HERE / "jobs" / f"{job}.py"), ["--budget", "90s"] if part == "beside" else []
    with tempfile.TemporaryDirectory() as folder:
        file, study = f"{folder}/{job}.yaml", f"{folder}/{job}.study"
        begin = time.time()
        with neighbour(part == "beside"):
            done = autotune("run", *budget, "--output", file, "--storage", study, script)
        seconds = time.time() - begin
        text = Path(file).read_text() if Path(file).exists() else ""
        rates = judged(script, file) if text and part == "beside" else {}
        rounds = rounds_of(study) if Path(study).exists() else {}
    return {
        "part": part,
        "job": job,
        "run": number,
        "seconds": round(seconds, 1),
        "verdict": verdict_in(done.stderr),
        **rates,
        **rounds,
        "file": text,
        "output": done.stderr,
    }


def verdict_in(output: str) -> str:
    """Return the sentence of the verdict, else the end of the output."""
    found = re.findall(
        r"^((?:[\d.]+ times the|No gain above|Undecided|Probably)[^:]*:.*?\.)\s*(?:\n\S|$)", output, re.M | re.S
    )
    return " ".join(found[-1].split()) if found else output[-600:]


def rounds_of(study: str) -> dict[str, object]:
    """Return the seconds of the rounds of a study."""
    from autotune.search.read import read_study

    seconds: dict[str, float] = {}
    for trial in read_study(study).history:
        if trial.round:
            seconds[trial.round] = seconds.get(trial.round, 0.0) + trial.attempt.seconds
    return {"round seconds": [round(each, 2) for each in seconds.values()]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Real runs beside a neighbour, and of jobs with nothing to gain.")
    parser.add_argument("part", choices=JOBS)
    parser.add_argument("--jobs", nargs="*")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    for number in range(options.first, options.first + options.runs):
        for job in options.jobs or JOBS[options.part]:
            found = run(options.part, job, number)
            with (HERE / "recorded" / "real.jsonl").open("a") as file:
                file.write(json.dumps(found) + "\n")
            shown = {name: value for name, value in found.items() if name not in ("file", "output")}
            print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
