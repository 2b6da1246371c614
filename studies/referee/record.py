"""Compare pairs of training scripts, of which half are equal and half differ by 5 %, and keep every measurement.

    python -m studies.referee.record [--only quiet busy] [--pairs 20] [--minutes 12]
    python -m studies.referee.record --train-doctor ENV/bin/train-doctor [--pairs 10] [--minutes 12]

Each part is written to ``recorded`` pair by pair, and goes on where it ended. ``quiet`` and ``busy``, beside a process
that takes half of one CPU: so many equal pairs and so many with a sleep of 5 % more, by turns, each of 20 seconds at
most. Five rounds are completed afterwards for those who always take five, and the first steps of both sides are kept.
``--train-doctor`` gives pairs on the quiet machine to its ``compare`` instead, in its shortest form of five pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from autotune import comparison
from autotune.comparison import Side, in_rounds
from autotune.config import Config
from autotune.limits import Budget
from autotune.messages import Messages, Progress
from autotune.records import Request, Trial
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded"
KINDS = {"equal": ("0.015", "0.015"), "slower": ("0.015", "0.016")}
"""The sleeps of both sides, in seconds: a step takes some 20 ms."""
WINDOW_SECONDS, PAIR_SECONDS, ROUNDS = 1.0, 20.0, 5
STEPS = slice(5, 25)
"""Steps that are kept of the first session of a side: twenty, after those that allocate."""
HALF = """
import time
while True:
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    time.sleep(0.05)
"""
"""A program that takes half of one CPU."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the study of the referee.")
    parser.add_argument("--only", nargs="+", choices=("quiet", "busy"), default=["quiet", "busy"])
    parser.add_argument("--pairs", type=int, default=20, help="pairs of each kind in each part")
    parser.add_argument("--minutes", type=float, default=15.0, help="begin no pair after so many minutes")
    parser.add_argument("--train-doctor", help="the command to compare by instead")
    options = parser.parse_args()
    RECORDED.mkdir(exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    for part in ["train_doctor"] if options.train_doctor else options.only:
        path = RECORDED / f"{part}.jsonl"
        known = [json.loads(line)["kind"] for line in path.read_text().splitlines()] if path.exists() else []
        wanted = [kind for _ in range(options.pairs) for kind in KINDS][len(known) :]
        with neighbour() if part == "busy" else nullcontext():
            for kind in wanted:
                if time.monotonic() > end:
                    return
                pair = by_train_doctor(options.train_doctor, kind) if options.train_doctor else compared(kind)
                with path.open("a") as file:
                    file.write(json.dumps({"kind": kind, **about(), **pair}) + "\n")
                print(part, kind, pair["verdict"], f"{pair['seconds']:.0f} s", flush=True)


def about() -> dict[str, Any]:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "cpu": platform.processor() or platform.machine(), "torch": torch.__version__}


@contextmanager
def neighbour() -> Iterator[None]:
    """Have a process beside that takes half of one CPU."""
    process = subprocess.Popen([sys.executable, "-c", HALF])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def compared(kind: str) -> dict[str, Any]:
    """Compare one pair, and go on to five rounds."""
    comparison.WINDOW_SECONDS = WINDOW_SECONDS
    clock, steps = Budget(PAIR_SECONDS), dict[str, list[float]]()
    os.environ["REFEREE"] = f"autotune-referee-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0" + os.environ["REFEREE"])
        heard.setblocking(False)

        def hear(moment: Progress) -> None:
            if moment.phase == "confirm":
                steps.setdefault((moment.message or "")[:1], received(heard)[STEPS])

        scripts = [Script.of((os.path.relpath(HERE / "train.py"), pause)) for pause in KINDS[kind]]
        sources = [describe(each) for each in scripts]
        with ProcessRunner(sources[0]) as first:
            second = first if sources[0] == sources[1] else ProcessRunner(sources[1], beside=first)
            for runner in dict.fromkeys((first, second)):
                runner.inspect(Config())
            received(heard)
            assert first.script is not None
            config = first.script.present
            sides = Side("a", config, first), Side("b", config, second)
            found, trials = in_rounds(sides, clock, Messages(clock, hear), margin=0.0, seed=secrets.randbits(31))
            seconds, verdict = clock.spent, found.verdict(config)
            measured = [turn_of(trial) for trial in trials]
            while len(measured) < 2 * ROUNDS:
                side = len(measured) % 2
                seed = len(measured) // 2
                request = Request(seconds=WINDOW_SECONDS, time_limit=30.0, fresh=True, seed=seed, needs_ceiling=False)
                attempt = sides[side].runner.measure(config, request)
                measured.append({"side": side, "rate": attempt.measurement and attempt.measurement.samples_per_second})
    return {
        "verdict": verdict,
        "ratio": found.speedup(config),
        "interval": found.interval(config),
        "rounds": found.rounds_of(config),
        "seconds": seconds,
        "measured": measured,
        "steps": [steps.get(name, []) for name in "ab"],
    }


def turn_of(trial: Trial) -> dict[str, Any]:
    said = {} if trial.rate else {"outcome": trial.outcome, "message": trial.attempt.message}
    return {"side": int(trial.entry is not None), "rate": trial.rate, "seconds": trial.attempt.seconds, **said}


def received(heard: socket.socket) -> list[float]:
    """Return the seconds of the steps that were sent since the last call."""
    found = list[float]()
    while True:
        try:
            found += map(float, heard.recv(1024).split())
        except BlockingIOError:
            return found


def by_train_doctor(command: str, kind: str) -> dict[str, Any]:
    one, two = (f"{sys.executable} {os.path.relpath(HERE / 'train.py')} {pause}" for pause in KINDS[kind])
    begin = time.monotonic()
    given = ["--baseline", one, "--candidate", two, "--seconds", "1", "--steps", "20", "--warmup-runs", "0"]
    done = subprocess.run(
        [command, "compare", *given, "--json", "--quiet"], capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - begin
    said = json.loads(done.stdout[done.stdout.index("{") :])
    return {"verdict": said["verdict"], "seconds": seconds, "said": said}


if __name__ == "__main__":
    main()
