"""Run the README's tuning command, five times alone and three times beside half a CPU.

    python -m studies.demo.record

Each run keeps its standard error and its file under ``--out``; the first one its study too. ``table`` reads them.
"""

from __future__ import annotations

import argparse
import os
import re
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


def limits_that_were_passed(said: str) -> list[str]:
    """Looks whose rate ("at most") is below that of a trial with the same step."""
    looks = {key: _rate(rate) for rate, key in re.findall(r"step +([\d,.]+)/s at most[^:]*: +(batch .+)", said)}
    looks = {_step(key): rate for key, rate in looks.items()}
    trials = re.findall(r"^ *\d+ \w+ +([\d,.]+)/s(?: +[\d.]+.)? +(batch .+)", said, re.MULTILINE)
    steps = [(_rate(rate), _step(text)) for rate, text in trials]
    return [f"{key}: {looks[key]:,.0f} < {rate:,.0f}" for rate, key in steps if key in looks and looks[key] < rate]


def spread(said: str) -> float:
    """Fastest measurement over the slowest, which no factor may exceed."""
    rates = [_rate(each) for each in re.findall(r"^ *\d+ \w+ +([\d,.]+)/s", said, re.MULTILINE)]
    return max(rates) / min(rates)


def _step(text: str) -> str:
    """Settings of the step in a line of a trial or a look."""
    parts = [each.strip() for each in re.split(r"[:;,]", text)[0].split(" · ")]
    return " · ".join(each for each in parts if each.startswith(("batch", "fp", "bf", "threads")))


def _rate(text: str) -> float:
    return float(text.replace(",", ""))


def table(out: Path) -> str:
    """The rows of the runs, as the README has them."""
    heads = ("run", "seconds", "batch, workers, precision", "verdict", "gain", "95 % interval", "fastest ÷ slowest")
    rows = [f"| {' | '.join((*heads, 'looks below a trial'))} |", f"{8 * '|---'}|"]
    for name in (name for name in RUNS if (out / f"{name}.yaml").exists()):
        answer = yaml.safe_load((out / f"{name}.yaml").read_text(encoding="utf-8"))
        said = (out / f"{name}.txt").read_text(encoding="utf-8")
        seconds = said.split(" s, exit")[0].split()[-1]
        loader, measured = answer["dataloader"], answer["measured"]
        settings = f"{loader['batch_size']}, {loader['num_workers']}, {answer['training']['amp']}"
        low, high = measured["speedup_ci95"] or (1.0, 1.0)
        gain = f"{measured['speedup']:.2f} | {low:.2f} to {high:.2f} | {spread(said):.2f}"
        passed = "; ".join(limits_that_were_passed(said)) or "none"
        rows.append(f"| {name} | {seconds} | {settings} | {measured['verdict']} | {gain} | {passed} |")
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
