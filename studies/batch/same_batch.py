"""Train to a held-out loss with today's settings and with the answer that keeps the batch, six times each, in turn.

    python -m studies.batch.same_batch [demo] [digits] [characters]

Tunes each workload for 90 seconds, then trains in fresh processes; both arms of a pair see the same samples in the same
order. Writes ``recorded/answer-NAME.yaml`` and ``recorded/same-batch-NAME.csv``. Takes ten minutes.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

import autotune
from autotune.config import Config, load_config
from studies.batch import workloads
from studies.batch.curves import loss_of
from studies.batch.workloads import TASKS, held_out, parse

RECORDED = Path(__file__).with_name("recorded")
PAIRS, BUDGET = 6, 90.0


def main() -> None:
    """Tune, train and write the tables."""
    for name in parse(__doc__ or "").workloads:
        path, present = RECORDED / f"answer-{name}.yaml", Config(batch_size=TASKS[name].batch_size)
        model = f"studies.batch.workloads:build_{name}"
        result = autotune.tune(model, objective="same-batch", baseline=present, budget=BUDGET)
        result.config.save(path)
        threads = {"baseline": result.baseline.intra_op_threads, "answer": result.config.intra_op_threads}
        with (RECORDED / f"same-batch-{name}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(("seed", "arm", "samples", "seconds"))
            for seed in range(PAIRS):
                for arm in ("baseline", "answer")[:: 1 if seed % 2 else -1]:
                    table.writerow((seed, arm, *trained_apart(name, seed, arm, threads[arm])))
                    file.flush()


def trained_apart(name: str, seed: int, arm: str, threads: int | None) -> tuple[int, float]:
    """Return the samples and seconds of a training in a fresh process."""
    code = f"from studies.batch.same_batch import train; train({name!r}, {seed}, {arm!r})"
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    samples, seconds = json.loads(done.stdout)
    return samples, seconds


def train(name: str, seed: int, arm: str) -> None:
    """Train to the lower target, and print samples and seconds; the time of looks at the held-out loss is left out."""
    task, held = TASKS[name], held_out(name)
    config = load_config(RECORDED / f"answer-{name}.yaml") if arm == "answer" else Config(batch_size=task.batch_size)
    torch.manual_seed(seed)
    workload = getattr(workloads, f"build_{name}")()
    model = workload.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.learning_rate)
    config.apply_options(model, optimizer)
    accumulator = config.accumulator(optimizer, "cpu")
    order = torch.Generator().manual_seed(seed)
    loader = config.dataloader(workload.dataset, shuffle=True, drop_last=True, generator=order)
    samples, next_look, looking, begin = 0, task.every, 0.0, time.perf_counter()
    while samples < task.most:
        for inputs, targets in loader:
            with config.autocast("cpu"):
                loss = workloads.token_loss(model(inputs), targets)
            accumulator.backward(loss, len(inputs))
            accumulator.step()
            samples += len(inputs)
            if samples < next_look:
                continue
            next_look, look = samples + task.every, time.perf_counter()
            is_there = loss_of(model, held) <= task.targets[1]
            model.train()
            looking += time.perf_counter() - look
            if is_there or samples >= task.most:
                print(json.dumps((samples, round(time.perf_counter() - begin - looking, 4))))
                return


if __name__ == "__main__":
    main()
