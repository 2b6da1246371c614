"""Plain training beside the neighbour, in the neighbour's session and in one of its own.

    python -m studies.busy.sessions [--pairs 5] [--seconds 20]

Linux shares the CPUs among sessions first (``/proc/sys/kernel/sched_autogroup_enabled``), and among threads second.
Writes ``recorded/sessions.json`` beside this script: samples per second, second by second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from studies.busy.record import ROOT, neighbour, write
from studies.digits.workload import build

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
BATCH_SIZE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description="Train beside a neighbour, in its session and in another.")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each training")
    parser.add_argument("--train", action="store_true", help="train, and print the rate of each second")
    options = parser.parse_args()
    if options.train:
        print(json.dumps(trained(options.seconds)))
        return
    runs = []
    for seed in range(options.pairs):
        for has_own_session in (False, True):
            with neighbour(seed):
                rates = rates_of(options.seconds, has_own_session=has_own_session)
            runs.append({"seed": seed, "own session": has_own_session, "rates": rates})
    autogroup = AUTOGROUP.read_text(encoding="utf-8").strip() if AUTOGROUP.exists() else "none"
    write("sessions", {"runs": runs, "autogroup": autogroup, "threads": torch.get_num_threads()})


def rates_of(seconds: float, *, has_own_session: bool) -> list[float]:
    command = [sys.executable, "-m", "studies.busy.sessions", "--train", "--seconds", str(seconds)]
    done = subprocess.run(
        command, cwd=ROOT, start_new_session=has_own_session, stdout=subprocess.PIPE, text=True, check=True
    )
    return [float(rate) for rate in json.loads(done.stdout)]


def trained(seconds: float) -> list[float]:
    """Train as a script does that has no autotune in it; return the samples per second of each second."""
    model, dataset = build()
    loss = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters())
    rates, count, begin = list[float](), 0, time.perf_counter()
    end = begin + seconds
    while begin < end:
        for images, labels in DataLoader(dataset, BATCH_SIZE, shuffle=True):
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()
            count += len(labels)
            if (now := time.perf_counter()) - begin >= 1:
                rates.append(round(count / (now - begin), 1))
                count, begin = 0, now
    return rates


if __name__ == "__main__":
    main()
