"""What the four jobs share: where data lies, the device, the loop with a file, and the lines that tell the progress."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
START = time.perf_counter()


def data_folder(name: str) -> Path:
    """Return a job's folder of data, in ``FIRST_ANSWERS_DATA`` or among the temporary files."""
    root = os.environ.get("FIRST_ANSWERS_DATA") or Path(tempfile.gettempdir(), "first_answers_data")
    folder = Path(root, name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Progress:
    """Prints the samples so far, once a second at most and at the end of each epoch."""

    def __init__(self, samples: int) -> None:
        self.samples, self.epochs, self.done, self.told = samples, 0, 0, 0.0

    def step(self, samples: int) -> None:
        self.done += samples
        if time.perf_counter() - self.told >= 1.0:
            self._tell("step")

    def epoch(self) -> None:
        self.epochs += 1
        self.done = self.epochs * self.samples
        self._tell("epoch")

    def _tell(self, kind: str) -> None:
        self.told = time.perf_counter()
        print(f"{kind}: {self.done} samples until {self.told - START:.4f} s", flush=True)


def config_of(path: str) -> Any:
    """Return the configuration of a file, with its threads applied to this process."""
    import autotune

    config = autotune.load_config(path)
    config.apply_threads()
    return config


def train_as(config: Any, workload: Any, epochs: int) -> None:
    """Train a workload as the documentation's loop does."""
    model = workload.model.to(DEVICE).train()
    loader = config.dataloader(workload.dataset, shuffle=True, collate_fn=workload.collate_fn)
    accumulator = config.accumulator(workload.optimizer(model.parameters()), DEVICE)
    progress = Progress(len(workload.dataset))
    for _ in range(epochs):
        for inputs, targets in loader:
            inputs, targets = (part.to(DEVICE, non_blocking=True) for part in (inputs, targets))
            with config.autocast(DEVICE):
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            accumulator.backward(loss, len(targets))
            accumulator.step()
            progress.step(len(targets))
        accumulator.flush()
        progress.epoch()
