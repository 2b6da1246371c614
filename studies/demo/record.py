"""Run the README's tuning command, five times alone and three times beside half a CPU.

    python -m studies.demo.record

Each run keeps its standard error and its file under ``--out``; the first one its study too. ``table`` reads them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

FOLDER = Path(__file__).resolve().parent
COMMAND = ("-m", "autotune", "--model", "autotune.demo:build", "--budget", "3m")
NEIGHBOUR = """
import time
while True:
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:
        pass
    time.sleep(0.05)
"""
"""A process that takes a CPU half of the time."""
RUNS = (*(f"alone-{number}" for number in range(1, 6)), *(f"beside-{number}" for number in range(1, 4)))


def run(name: str, out: Path) -> None:
    """Run the command in an empty folder, and keep what it leaves."""
    beside = subprocess.Popen((sys.executable, "-c", NEIGHBOUR)) if name.startswith("beside") else None
    begin, load = time.monotonic(), os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run((sys.executable, *COMMAND), cwd=folder, capture_output=True, text=True, check=False)
            head = f"load {load:.2f} before, {time.monotonic() - begin:.0f} s, exit {done.returncode}\n"
            (out / f"{name}.txt").write_text(head + done.stderr, encoding="utf-8")
            shutil.copy(Path(folder, "autotune.yaml"), out / f"{name}.yaml")
            if name == RUNS[0]:
                shutil.copy(Path(folder, "autotune.study"), out / "autotune.study")
    finally:
        if beside:
            beside.kill()
            beside.wait()


def table(out: Path) -> str:
    """The rows of the runs, as the README has them."""
    rows = [
        "| run | seconds | batch, workers, precision | verdict | gain | 95 % interval |",
        "|---|---|---|---|---|---|",
    ]
    for name in (name for name in RUNS if (out / f"{name}.yaml").exists()):
        answer = yaml.safe_load((out / f"{name}.yaml").read_text(encoding="utf-8"))
        seconds = (out / f"{name}.txt").read_text(encoding="utf-8").split(" s, exit")[0].split()[-1]
        loader, measured = answer["dataloader"], answer["measured"]
        settings = f"{loader['batch_size']}, {loader['num_workers']}, {answer['training']['amp']}"
        low, high = measured["speedup_ci95"] or (1.0, 1.0)
        gain = f"{measured['speedup']:.2f} | {low:.2f} to {high:.2f}"
        rows.append(f"| {name} | {seconds} | {settings} | {measured['verdict']} | {gain} |")
    return "\n".join(rows)


def main() -> None:
    """Run what has not been run, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER / "recorded")
    out = parser.parse_args().out
    out.mkdir(exist_ok=True, parents=True)
    for name in RUNS:
        if not (out / f"{name}.yaml").exists():
            run(name, out)
    print(table(out))


if __name__ == "__main__":
    main()
