"""Measure the rates of the batch sizes of ``curves``, and the noise of the gradients with the baseline's.

    python -m studies.batch.costs [demo] [digits] [characters]

Rates in three interleaved rounds of three seconds, the noise in three looks of four seconds, as a run of autotune takes
them. Writes ``recorded/rates-NAME.csv`` and ``recorded/noise-NAME.json``. Takes three minutes on a quiet machine.
"""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from autotune.config import Config
from autotune.encoding import to_json
from autotune.measure.device import open_device
from autotune.measure.gradient_noise import measure_noise
from studies.batch import workloads
from studies.batch.workloads import FACTORS, TASKS, parse

RECORDED = Path(__file__).with_name("recorded")
ROUNDS, SECONDS, NOISE_SECONDS = 3, 3.0, 4.0


def main() -> None:
    """Measure, and write the tables."""
    for name in parse(__doc__ or "").workloads:
        with (RECORDED / f"rates-{name}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(("batch_size", "round", "samples_per_second"))
            for number in range(ROUNDS):
                for factor in (1, *FACTORS):
                    batch_size = factor * TASKS[name].batch_size
                    table.writerow((batch_size, number, round(rate(name, batch_size), 1)))
                    file.flush()
        looks = [to_json(look(name, seed)) for seed in range(ROUNDS)]
        (RECORDED / f"noise-{name}.json").write_text(json.dumps(looks) + "\n", encoding="utf-8")


def rate(name: str, batch_size: int) -> float:
    """Return the samples per second of training on prepared tensors; the first step does not count."""
    workload = getattr(workloads, f"build_{name}")()
    optimizer = torch.optim.AdamW(workload.model.parameters())
    samples, begin, end = 0, 0.0, 0.0
    while end < begin + SECONDS or not samples:
        for inputs, targets in DataLoader(workload.dataset, batch_size=batch_size, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            workloads.token_loss(workload.model(inputs), targets).backward()
            optimizer.step()
            end = time.perf_counter()
            if not begin:  # the first step is slow
                begin = end
                continue
            samples += batch_size
            if end >= begin + SECONDS:
                break
    return samples / (end - begin)


def look(name: str, seed: int) -> object:
    """Return the gradients' noise with the baseline's batch."""
    torch.manual_seed(seed)
    workload = getattr(workloads, f"build_{name}")()
    return measure_noise(workload, Config(batch_size=TASKS[name].batch_size), open_device("cpu"), NOISE_SECONDS)


if __name__ == "__main__":
    main()
