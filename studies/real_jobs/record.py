"""Tune a job of this folder for a minute, then train as before and as advised, in plain loops of new processes.

    python studies/real_jobs/record.py archive raw client mapped cached

prints a row for each: rates that were read and rates of a plain loop over whole epochs, samples per second.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS = Path(__file__).parent / "jobs.py"
BUDGET = "60s"


def main() -> None:
    """Print a row for each job."""
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.json"
            asked = ["--model", f"{JOBS}:{name}", "--budget", BUDGET, "--output", str(answer)]
            told = subprocess.run(
                [sys.executable, "-m", "autotune", *asked], cwd=folder, capture_output=True, text=True
            )
            print(told.stderr, file=sys.stderr)
            rows = [
                subprocess.run([sys.executable, __file__, name, str(answer), which], capture_output=True, text=True)
                for which in ("before", "after")
            ]
            print(name, *(row.stdout.strip() or row.stderr[-300:] for row in rows), sep=" | ", flush=True)


def train(name: str, answer: str, which: str) -> None:
    """Print the rate that was read for a configuration, and those of a plain loop over two epochs."""
    sys.path.insert(0, str(JOBS.parent))
    import jobs
    import torch

    import autotune

    found = autotune.load_config(answer)
    measured = found.measured or {}
    config = found if which == "after" else autotune.Config()
    read = (measured if which == "after" else measured.get("baseline", measured))["samples_per_second"]
    workload = getattr(jobs, name)()
    loader = config.dataloader(workload.dataset, shuffle=True)
    optimizer = torch.optim.AdamW(workload.model.parameters())
    rates = []
    for _ in range(2):
        begin, samples = time.perf_counter(), 0
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(workload.model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            samples += len(x)
        rates.append(samples / (time.perf_counter() - begin))
    print(f"{read:.0f} : " + ", ".join(f"{rate:.0f}" for rate in rates))


if __name__ == "__main__":
    train(*sys.argv[1:]) if sys.argv[-1] in ("before", "after") else main()
