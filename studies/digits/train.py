"""A plain training script that runs as an autotune config file says.

    python studies/digits/train.py autotune.yaml --seconds 30

The file gives the batch size, the loader, the precision and the threads; the script keeps everything else.
"""

from __future__ import annotations

import argparse
import json
import math
import time

import autotune

if __name__ == "__main__":  # threads first: native thread pools take their size when torch is imported
    options = argparse.ArgumentParser(description="Train the digit classifier as a config file says.")
    options.add_argument("config", help="the file that autotune wrote")
    options.add_argument("--seconds", type=float, default=30.0, help="train whole epochs until these have passed")
    options.add_argument("--json", action="store_true", help="print the result as a JSON object")
    OPTIONS = options.parse_args()
    CONFIG = autotune.load_config(OPTIONS.config)
    CONFIG.apply_threads()

import torch
from torch import nn
from torch.utils.data import DataLoader
from workload import build, validation


def main(options: argparse.Namespace, config: autotune.Config) -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, dataset = build()
    model.to(device)
    loader = config.dataloader(dataset, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate(config))
    accumulator = config.accumulator(optimizer, device)

    train_epoch(model, loader, accumulator, config, device)  # warm-up, not timed
    epochs, start = 0, time.perf_counter()
    while not epochs or time.perf_counter() - start < options.seconds:
        train_epoch(model, loader, accumulator, config, device)
        epochs += 1
    rate = epochs * len(dataset) / (time.perf_counter() - start)
    show(summary(rate, epochs, accuracy(model, device), config), as_json=options.json)


def learning_rate(config: autotune.Config) -> float:
    """Return the step size: 0.001 at 32 samples a step, and growing with the square root of their number."""
    return 1e-3 * math.sqrt(config.batch_size * config.accumulation_steps / 32)


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    accumulator: autotune.GradientAccumulator,
    config: autotune.Config,
    device: torch.device,
) -> float:
    """Go through the loader once; return the last batch's loss."""
    model.train()
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with config.autocast(device):
            loss = nn.functional.cross_entropy(model(images), labels)
        accumulator.backward(loss, len(labels))
        accumulator.step()
    accumulator.flush()
    return loss.item()  # waits for the device, so the epoch is over when this returns


@torch.no_grad()
def accuracy(model: nn.Module, device: torch.device) -> float:
    """Return the share of the held-out images that the model names correctly."""
    model.eval()
    held_out = validation()
    correct = 0
    for images, labels in DataLoader(held_out, batch_size=60):
        correct += int((model(images.to(device)).argmax(1).cpu() == labels).sum())
    return correct / len(held_out)


def summary(rate: float, epochs: int, accuracy: float, config: autotune.Config) -> dict[str, float]:
    """Return what is shown; with the promised rate (samples/s) and the ratio where the file has one."""
    result = {"samples_per_second": rate, "epochs": epochs, "accuracy": accuracy}
    promised = (config.measured or {}).get("samples_per_second")
    if promised:
        result |= {"promised_samples_per_second": promised, "ratio": rate / promised}
    return result


def show(result: dict[str, float], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    line = "{samples_per_second:.0f} samples/s over {epochs} epochs, validation accuracy {accuracy:.3f}"
    if "ratio" in result:
        line += ", promised {promised_samples_per_second:.0f} samples/s (ratio {ratio:.3f})"
    print(line.format(**result))


if __name__ == "__main__":
    main(OPTIONS, CONFIG)
