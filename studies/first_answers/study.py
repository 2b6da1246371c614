"""Does the first answer that a stranger gets hold, when the job then trains with it?

    python studies/first_answers/study.py answer NAME DOOR --out DIR [--budget B]   # one run, as a user would
    python studies/first_answers/study.py judge NAME DOOR --out DIR                 # trains without and with it
    python studies/first_answers/study.py by_hand NAME --out DIR                    # the same for settings of habit
    python studies/first_answers/study.py compare [--old CHECKOUT] --out DIR [--runs 3] [--budget 90s]

Names: jpeg, text, lightning, trainer. Doors: script, function. ``answer`` takes autotune's budget, the others one to
three minutes; ``compare`` sets answers beside those of another checkout, or beside the fastest of a grid, and goes on
where it was stopped. ``judge`` and ``by_hand`` write ``DIR/results.csv``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOBS = {name: HERE / "jobs" / f"{name}.py" for name in ("jpeg", "text", "trainer")} | {
    "lightning": HERE / "jobs" / "lightning_job.py"
}
DOORS = ("script", "function")
BASELINE = "batch_size=32,num_workers=0"
"""What the function door of jpeg and text is told of their scripts."""
COLUMNS = (
    "job", "door", "verdict", "promised", "next_run_low", "next_run_high", "speedup",
    "trained_present", "trained_answer", "seconds", "load",
)  # fmt: skip
TOLD = re.compile(r"(epoch|step): (\d+) samples until ([\d.]+) s")
WARM_UP, COUNTED = (2.0, 10.0), (6.0, 20.0)
"""Seconds before the clock starts, and that are counted: to the end of an epoch, or at any step after the second."""
TURNS = ("present", "answer", "answer", "present")
PATIENCE = 300.0
"""Longest time of one training, in seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what first answers are worth.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("answer", "judge", "by_hand", "compare"):
        command = commands.add_parser(name)
        if name != "compare":
            command.add_argument("name", choices=JOBS)
        if name in ("answer", "judge"):
            command.add_argument("door", choices=DOORS)
        if name in ("answer", "compare"):
            command.add_argument("--budget", help="autotune's own without it" if name == "answer" else "such as 90s")
        if name == "compare":
            command.add_argument("--old", type=Path, help="another checkout of autotune; a grid without it")
            command.add_argument("--runs", type=int, default=3, help="runs of each checkout")
        command.add_argument("--out", type=Path, default=Path("first_answers"), help="folder to write")
    options = parser.parse_args()
    options.out = options.out.resolve()
    if options.command == "compare":
        compare(options.old and options.old.resolve(), options.out, options.runs, options.budget or "90s")
    elif options.command == "by_hand":
        by_hand(options.name, options.out)
    elif options.command == "answer":
        print(
            answer(asking(options.name, options.door, options.budget), options.out / f"{options.name}-{options.door}")
        )
    else:
        judge(options.name, options.door, options.out)


def asking(name: str, door: str, budget: str | None) -> list[str]:
    """Return the command that a user gives for an answer."""
    told = ["--budget", budget] if budget else []
    tuner, job = [sys.executable, "-m", "autotune"], str(JOBS[name])
    if door == "script":
        return [*tuner, "run", *told, job]
    if name in ("jpeg", "text"):
        return [*tuner, "--model", f"{job}:build", "--baseline", BASELINE, *told]
    return [sys.executable, job, "--tune", "autotune.yaml", *told]


def answer(command: list[str], folder: Path, root: Path = ROOT) -> dict[str, Any]:
    """Run the command once in an empty folder; keep what it prints, its file, its time, and the load beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before, start = os.getloadavg()[0], time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment(root), check=False, capture_output=True, text=True)
    told = {
        "command": [part.replace(str(ROOT), ".") for part in command[1:]],
        "exit_code": done.returncode,
        "seconds": round(time.perf_counter() - start, 1),
        "load": [round(load, 2) for load in (before, os.getloadavg()[0])],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    (folder / "summary.txt").write_text(f"{done.stdout}\n{done.stderr}", encoding="utf-8")
    if done.returncode or not (folder / "autotune.yaml").exists():
        sys.exit(f"no answer (exit code {done.returncode}):\n{done.stderr}")
    (folder / "answer.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    return told


def judge(name: str, door: str, out: Path) -> None:
    """Train the job by turns without and with its answer, and add the row to the table."""
    folder = out / f"{name}-{door}"
    file, told = folder / "autotune.yaml", json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    applied = [sys.executable, "-m", "autotune", "apply", str(file), str(JOBS[name])]
    command = applied if door == "script" else with_file(name, file)
    rates = by_turns({"present": [sys.executable, str(JOBS[name])], "answer": command}, folder, threads_of(file, door))
    measured = config_at(file).measured
    low, high = measured.get("next_run_95") or (None, None)
    add(
        out / "results.csv",
        {
            "job": name,
            "door": door,
            "verdict": measured.get("verdict"),
            "promised": measured.get("samples_per_second"),
            "next_run_low": low,
            "next_run_high": high,
            "speedup": measured.get("speedup"),
            "seconds": told["seconds"],
            "load": max(told["load"]),
        },
        rates,
    )


def by_hand(name: str, out: Path) -> None:
    """Train the job by turns without and with what people set by habit: a worker for each CPU, pinning, bf16."""
    import torch

    from autotune import Config

    folder = out / f"{name}-by_hand"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "autotune.yaml"
    Config(
        batch_size={"jpeg": 32, "text": 32, "lightning": 64, "trainer": 16}[name],
        num_workers=os.cpu_count() or 1,
        pin_memory=torch.cuda.is_available(),
        amp="bf16",
    ).save(file)
    rates = by_turns({"present": [sys.executable, str(JOBS[name])], "answer": with_file(name, file)}, folder, {})
    add(out / "results.csv", {"job": name, "door": "by_hand", "load": round(os.getloadavg()[0], 2)}, rates)


def compare(old: Path | None, out: Path, runs: int, budget: str) -> None:
    """Tune jpeg, and train by turns with the answers and with those of another checkout, or a grid's three fastest."""
    checkouts = {"old": old, "new": ROOT} if old else {"new": ROOT}
    command = asking("jpeg", "function", budget)
    for number in range(runs):
        for side in list(checkouts)[:: 1 if number % 2 == 0 else -1]:
            folder = out / f"{side}-{number}"
            if not (folder / "answer.json").exists():
                print(side, number, answer(command, folder, checkouts[side]), flush=True)
    found = {
        path.parent.name: json.dumps(settings_of(path), sort_keys=True) for path in sorted(out.glob("*/autotune.yaml"))
    }
    if not old:
        found |= {f"grid-{place}": settings for place, settings in enumerate(fastest_of_grid(out / "grid.csv"))}
    rates = measured_by_turns(sorted(set(found.values())), out / "trained.jsonl", rounds=4 if old else 3)
    sides: dict[str, list[float]] = {}
    for run, settings in found.items():
        sides.setdefault(run.partition("-")[0], []).append(rates[settings])
        print(f"{run}: {rates[settings]:,.0f} samples/s with {settings}")
    reference = max(sides["grid"]) if not old else statistics.median(sides["old"])
    print("new ÷ " + ("old" if old else "the fastest:"), *(f"{rate / reference:.3f}" for rate in sides["new"]))
    print(f"medians: {statistics.median(sides['new']) / reference:.3f}")


def fastest_of_grid(path: Path, count: int = 3) -> list[str]:
    """Return the fastest settings of the grid, which is measured unless its file is there."""
    measure_grid(path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: -float(row["rate"] or 0))
    return [row["settings"] for row in rows[:count]]


def measure_grid(path: Path) -> None:
    """Measure eighty settings, each once with a window of two seconds, in random order."""
    from autotune import Config
    from autotune.records import Request
    from autotune.runner.local import ProcessRunner
    from autotune.workload import describe

    if path.exists():
        return
    workers = ({"num_workers": count, "persistent_workers": True, "prefetch_factor": 2} for count in (1, 2, 4))
    loaders = [{"num_workers": 0}, *workers]
    steps = itertools.product((64, 128, 256, 512, 1024), ("off", "bf16"), (1, 2))
    steps = random.Random(0).sample(list(steps), 20)
    with ProcessRunner(describe(f"{JOBS['jpeg']}:build")) as runner:
        runner.inspect(Config(batch_size=32))
        rows = []
        for (batch, amp, threads), loader in itertools.product(steps, loaders):
            config = Config(batch_size=batch, amp=amp, intra_op_threads=threads, **loader)
            measured = runner.measure(config, Request(seconds=2.0)).measurement
            settings = {**config.dataloader_kwargs(), "threads": threads, "amp": amp}
            rate = measured.samples_per_second if measured else None
            rows.append({"settings": json.dumps(settings, sort_keys=True), "rate": rate})
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def measured_by_turns(distinct: list[str], log: Path, rounds: int = 4) -> dict[str, float]:
    """Train with each of some settings once in each round, every other round backwards; return their median rates."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    known = {(line["round"], line["settings"]): line["rate"] for line in lines}
    for turn in range(rounds):
        for settings in distinct[:: 1 if turn % 2 == 0 else -1]:
            if (turn, settings) not in known:
                threads = json.loads(settings).get("threads")
                command = [sys.executable, str(HERE / "neutral.py"), settings]
                rate = trained(command, log.parent, {"OMP_NUM_THREADS": str(threads)} if threads else {})
                known[turn, settings] = rate
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"round": turn, "settings": settings, "rate": rate}) + "\n")
    return {s: statistics.median(known[turn, s] for turn in range(rounds)) for s in distinct}


def settings_of(file: Path) -> dict[str, Any]:
    """Return the settings of an answer as numbers: DataLoader arguments, threads and precision."""
    config = config_at(file)
    assert (config.accumulation_steps, config.options) == (1, ()), config
    return {**config.dataloader_kwargs(), "threads": config.intra_op_threads, "amp": config.amp}


def by_turns(commands: dict[str, list[str]], folder: Path, of_answer: dict[str, str]) -> dict[str, list[float]]:
    """Return the rates of both trainings, each a fresh process, present and answer by turns."""
    rates: dict[str, list[float]] = {"present": [], "answer": []}
    for turn in TURNS:
        rates[turn].append(trained(commands[turn], folder, of_answer if turn == "answer" else {}))
        print(turn, round(rates[turn][-1], 1), flush=True)
    (folder / "trained.json").write_text(json.dumps(rates), encoding="utf-8")
    return rates


def trained(command: list[str], folder: Path, variables: dict[str, str]) -> float:
    """Return samples per second of a job after its warm-up; stop it once enough was counted."""
    process = subprocess.Popen(
        command, cwd=folder, env={**environment(ROOT), **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
    signal.alarm(int(PATIENCE))
    try:
        rate = rate_of(process.stdout)
    finally:
        signal.alarm(0)
        os.killpg(process.pid, signal.SIGKILL)
        _, complaint = process.communicate()
    if rate is None:
        sys.exit(f"{command} did not train long enough:\n{complaint}")
    return rate


def rate_of(lines: Any) -> float | None:
    """Return samples per second from the lines that a job prints, as soon as they are enough."""
    start = None
    for found in filter(None, map(TOLD.match, lines)):
        is_epoch, done, moment = found[1] == "epoch", int(found[2]), float(found[3])
        if start is None:
            if moment >= WARM_UP[0 if is_epoch else 1]:
                start = done, moment
        elif moment - start[1] >= COUNTED[0 if is_epoch else 1]:
            return (done - start[0]) / (moment - start[1])
    return None


def with_file(name: str, file: Path) -> list[str]:
    return [sys.executable, str(JOBS[name]), "--config", str(file)]


def threads_of(file: Path, door: str) -> dict[str, str]:
    """Return the variables that make a file's threads hold before torch is imported; ``apply`` sets them itself."""
    return config_at(file).thread_environment() if door == "function" else {}


def config_at(file: Path) -> Any:
    from autotune import Config
    from autotune.configfile import read_document

    return Config.from_document(read_document(file))


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root)}


def add(table: Path, row: dict[str, Any], rates: dict[str, list[float]]) -> None:
    """Put the row into the table, in place of an older one of the same job and door."""
    row |= {f"trained_{kind}": round(statistics.mean(found), 1) for kind, found in rates.items()}
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines())) if table.exists() else []
    rows = [each for each in rows if (each["job"], each["door"]) != (row["job"], row["door"])]
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, row])
    print(row)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
