"""Blocks 2 and 3: whole runs on this accelerator, each in a process of its own and under a time limit.

    python -m studies.gpu.runs --block 2
    python -m studies.gpu.runs --block 3
    python -m studies.gpu.runs --only "Ctrl-C" "kill -9"

Writes a row for each into ``recorded/<device>/runs.csv`` beside this script; exit code 2 without an accelerator.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import psutil

import autotune
from autotune.config import Config
from autotune.limits import Budget, parse_duration
from autotune.machine.host import inspect_host
from autotune.messages import Progress
from autotune.records import Request
from autotune.report.result import Result
from autotune.runner import local
from autotune.runner.local import ProcessRunner
from autotune.runner.process import MeasuringProcess
from autotune.workload import describe
from studies.gpu.probes import folder_of
from studies.gpu.sessions import HELD, ROOT, Session, Start, gpu_of, started

FIELDS = (
    "run", "exit_code", "seconds", "verdict", "speedup", "answer", "share_of_grids_best", "grid",
    "half_precision_after_seconds", "sessions", "session_seconds", "processes_left", "bytes_left", "note",
)  # fmt: skip
"""The columns of a row; what a run does not know is empty."""
ANSWER_PLACES = 3
"""Times that the answer is measured among the grid: at its begin, in its middle and at its end."""
GRID_SECONDS = 240.0
LEFT_SECONDS = 5.0
"""Seconds after its end for which a run may still leave something."""
END_SECONDS = 30.0
Rate = Callable[[Config], float | None]


@dataclass(frozen=True)
class Ran:
    """A run of the tuner, observed."""

    result: Result
    """What it found."""
    openings: tuple[float, ...]
    """The seconds to open each session, the workload included."""
    half_after: float | None
    """Seconds until half precision was first looked at; ``None``: never."""

    def row(self) -> dict[str, Any]:
        """Return the columns that it fills."""
        document = self.result.config.to_document()
        answer = {**document["dataloader"], "amp": document["training"]["amp"]}
        return {
            "verdict": str(self.result.verdict), "speedup": round(self.result.speedup, 3),
            "answer": " ".join(f"{name}={value}" for name, value in answer.items()),
            "half_precision_after_seconds": None if self.half_after is None else round(self.half_after, 1),
            "sessions": len(self.openings), "session_seconds": " ".join(f"{each:.1f}" for each in self.openings),
        }  # fmt: skip


@contextmanager
def observed() -> Iterator[list[float]]:
    """Note the seconds from the begin of each session until its workload is loaded."""
    seconds = list[float]()

    class Timed(MeasuringProcess):
        def open(self, ranks: int = 1) -> dict[str, Any]:
            self.begin = time.monotonic()
            return super().open(ranks)

        def ask(self, message: Any, limit: float) -> dict[str, Any]:
            reply = super().ask(message, limit)
            if message["op"] == "load":
                seconds.append(time.monotonic() - self.begin)
            return reply

    with patch.object(local, "MeasuringProcess", Timed):
        yield seconds


def ran(name: str, budget: str, **given: Any) -> Ran:
    """Tune a workload of this study by the public function."""
    halves, total = list[float](), parse_duration(budget)

    def look(progress: Progress) -> None:
        seen = progress.looked or progress.finished
        if seen and seen.config.amp != "off" and progress.seconds_left is not None:
            halves.append(total - progress.seconds_left)

    with observed() as openings:
        result = autotune.tune(reference(name), budget=budget, on_progress=look, **given)
    return Ran(result, tuple(openings), min(halves, default=None))


def reference(name: str) -> str:
    return f"{ROOT}/studies/gpu/workloads.py:{name}"


# --- block 2 ---


def grid(cpus: int) -> list[Config]:
    """Return settings that an expert would try."""
    workers = sorted({max(1, cpus // 4), max(1, cpus // 2), cpus})
    cells = [(batch, "bf16", count) for batch in (64, 128, 256, 512) for count in workers]
    fixed: dict[str, Any] = {"prefetch_factor": 2, "persistent_workers": True, "pin_memory": True}
    return [
        Config(batch_size=batch, amp=amp, num_workers=count, **fixed)
        for batch, amp, count in [*cells, (64, "off", cpus), (256, "off", cpus)]
    ]


def share_of_best(answer: Config, settings: Sequence[Config], rate: Rate, time: Budget) -> dict[str, Any]:
    """Return the answer's rate over the best of a grid, measured among it, and how many of it were measured."""
    others, own, best = random.Random(0).sample(settings, len(settings)), [], list[float]()
    for place in range(ANSWER_PLACES):
        own.append(rate(answer))
        for config in others[place :: ANSWER_PLACES - 1] if place < ANSWER_PLACES - 1 else ():
            if time.left > 0 and (found := rate(config)):
                best.append(found)
    known = [each for each in own if each]
    share = round(median(known) / max(best), 3) if known and best else None
    return {"share_of_grids_best": share, "grid": len(best)}


def default_row(tune: Callable[[], Ran], rate: Rate, settings: Sequence[Config]) -> dict[str, Any]:
    """Return the row of a default run against a grid of its own."""
    found = tune()
    return found.row() | share_of_best(found.result.config, settings, rate, Budget(GRID_SECONDS))


def resnet(folder: Path) -> dict[str, Any]:
    def tune() -> Ran:
        found = ran("resnet", "3m")
        found.result.config.save(folder / "resnet.yaml")
        return found

    with ProcessRunner(describe(reference("resnet"))) as runner:

        def rate(config: Config) -> float | None:
            measured = runner.measure(config, Request(seconds=2.0)).measurement
            return measured.samples_per_second if measured else None

        return default_row(tune, rate, grid(inspect_host().cpus))


def check(folder: Path) -> dict[str, Any]:
    command = [*TUNER, "check", str(folder / "resnet.yaml"), "--model", reference("resnet")]
    done = subprocess.run(command, capture_output=True, text=True)
    return {"exit_code": done.returncode, "note": " ".join((done.stdout or done.stderr).split())}


# --- block 3 ---

TUNER = [sys.executable, "-m", "autotune"]


def tiny(folder: Path) -> dict[str, Any]:
    return ran("tiny", "75s", batch_size="32..65536").row()


def gpt(folder: Path) -> dict[str, Any]:
    return ran("gpt", "90s", baseline={"batch_size": 8, "amp": "bf16"}).row()


def gpt_beside_another(folder: Path) -> dict[str, Any]:
    with started(Session, "hold", str(HELD)) as answer:
        return gpt(folder) | {"note": f"{answer['reserved']} bytes held by another process"}


def ended(command: list[str], number: int, after: float, used: Callable[[], int | None]) -> dict[str, Any]:
    """Send a run a signal, an interrupt as a terminal does; return how it ended and what is left of it."""
    before = used()
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, cwd=scratch, env=environment, start_new_session=True, **quiet)
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            below = psutil.Process(process.pid).children(recursive=True)
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        else:
            return {"exit_code": process.returncode, "note": "it ended before the signal"}
        begin = time.monotonic()
        try:
            code: object = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = f"none after {END_SECONDS:.0f} s: {process.wait()}"
        seconds = time.monotonic() - begin
        _, alive = psutil.wait_procs(below, LEFT_SECONDS)
        time.sleep(max(0.0, begin + seconds + LEFT_SECONDS - time.monotonic()))  # the driver frees memory later
        left = [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        now = used()
        for each in left:
            each.kill()
    bytes_left = None if before is None or now is None else now - before
    note = f"it ended {seconds:.1f} s after the signal"
    return {"exit_code": code, "processes_left": len(left), "bytes_left": bytes_left, "note": note}


def signalled(number: int, after: float) -> dict[str, Any]:
    with started(Session, "open") as answer:
        gpu = gpu_of(answer)
    command = [*TUNER, "--model", reference("resnet"), "--budget", "3m"]
    return ended(command, number, after, gpu.used_bytes if gpu else lambda: None)


class Run(NamedTuple):
    """A run of this study."""

    block: int
    """Its block."""
    limit: float
    """Seconds that it may take."""
    do: Callable[[Path], dict[str, Any]]
    """What it does, given the folder of the tables."""


RUNS = {
    "resnet": Run(2, 500, resnet),
    "check": Run(2, 70, check),
    "tiny": Run(3, 90, tiny),
    "gpt": Run(3, 110, gpt),
    "gpt, card held": Run(3, 130, gpt_beside_another),
    "Ctrl-C": Run(3, 90, lambda folder: signalled(signal.SIGINT, 40)),
    "kill -9": Run(3, 80, lambda folder: signalled(signal.SIGKILL, 35)),
}


def recorded(name: str, folder: Path) -> dict[str, Any]:
    """Do a run in a process of its own, and return its row."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch, "row.json")
        command = [sys.executable, "-m", "studies.gpu.runs", "--only", name, "--folder", str(folder), "--row", answer]
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            code: object = process.wait(RUNS[name].limit)
        except subprocess.TimeoutExpired:
            code = f"killed after {RUNS[name].limit:.0f} s"
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()
            process.wait()
        row = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {}
    return {"run": name, "exit_code": code, "seconds": round(time.monotonic() - begin, 1)} | row


def write(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows; those of the same runs before are replaced, others kept."""
    path, kept = folder / "runs.csv", dict[str, dict[str, Any]]()
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            kept = {row["run"]: row for row in csv.DictReader(file)}
    kept |= {row["run"]: row for row in rows}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(kept.values())


def main(argv: Sequence[str] | None = None, start: Start = Session) -> int:
    parser = argparse.ArgumentParser(description="Record whole runs on this accelerator.")
    parser.add_argument("--block", type=int, choices=(2, 3), help="the runs of a block")
    parser.add_argument("--only", nargs="+", choices=RUNS, help="these runs")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--row", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    chosen = options.only or [name for name, run in RUNS.items() if options.block in (None, run.block)]
    if options.row:
        options.row.write_text(json.dumps(RUNS[chosen[0]].do(options.folder)), encoding="utf-8")
        return 0
    try:
        with started(start, "open") as answer:
            folder = folder_of(answer["name"])
    except LookupError as error:
        print(f"nothing to run on: {error}", file=sys.stderr)
        return 2
    for name in chosen:
        write(folder, [recorded(name, folder)])
    print((folder / "runs.csv").read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
