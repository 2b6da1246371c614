"""A plain training script that runs as an autotune config file says, and prints its rate as a JSON object.

    python studies/promise/train.py autotune.yaml --workload digits

After a warm-up of whole epochs it trains whole epochs until a minute has passed.
"""

from __future__ import annotations

import argparse
import json
import time

import autotune

if __name__ == "__main__":  # threads first: native thread pools take their size when torch is imported
    parser = argparse.ArgumentParser(description="Train as a config file says.")
    parser.add_argument("config", help="the file that autotune wrote")
    parser.add_argument("--workload", required=True, help="a function of workloads.py")
    parser.add_argument("--seconds", type=float, default=60.0, help="train whole epochs until these have passed")
    parser.add_argument("--warm-up", type=float, default=10.0, help="the same before the clock starts, in seconds")
    OPTIONS = parser.parse_args()
    CONFIG = autotune.load_config(OPTIONS.config)
    CONFIG.apply_threads()

import torch
import workloads
from torch.utils.data import DataLoader

DEVICE = torch.device("cpu")


def main(options: argparse.Namespace, config: autotune.Config) -> None:
    workload = getattr(workloads, options.workload)()
    workload.model.train()
    loader = config.dataloader(workload.dataset, shuffle=True, collate_fn=workload.collate_fn)
    accumulator = config.accumulator(torch.optim.AdamW(workload.model.parameters()), DEVICE)
    train(workload, loader, accumulator, config, options.warm_up)
    samples, epochs, seconds = train(workload, loader, accumulator, config, options.seconds)
    print(json.dumps({"samples_per_second": samples / seconds, "epochs": epochs, "seconds": seconds}))


def train(
    workload: autotune.Workload,
    loader: DataLoader,
    accumulator: autotune.GradientAccumulator,
    config: autotune.Config,
    least: float,
) -> tuple[int, int, float]:
    """Train whole epochs until ``least`` seconds have passed; return samples, epochs and seconds."""
    samples, epochs, start = 0, 0, time.perf_counter()
    while not epochs or time.perf_counter() - start < least:
        samples += train_epoch(workload, loader, accumulator, config)
        epochs += 1
    return samples, epochs, time.perf_counter() - start


def train_epoch(
    workload: autotune.Workload,
    loader: DataLoader,
    accumulator: autotune.GradientAccumulator,
    config: autotune.Config,
) -> int:
    """Go through the loader once; return the number of samples."""
    samples = 0
    for batch in loader:
        with config.autocast(DEVICE):
            loss = workload.training_step(workload.model, batch)
        accumulator.backward(loss, len(batch[0]))
        accumulator.step()
        samples += len(batch[0])
    accumulator.flush()
    return samples


if __name__ == "__main__":
    main(OPTIONS, CONFIG)
