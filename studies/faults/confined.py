"""Tune with little shared memory, and with little memory: is what cannot fit left out, and the rest tuned?

    python -m studies.faults.confined studies/faults/recorded/confined.json

Needs the right to mount a file system of its own (``unshare``), and to make a control group.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune import Workload, load_config

MIB = 2**20
SHARED_MEMORY = 64 * MIB
MEMORY = 1024 * MIB
HIERARCHIES = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))
"""Where control groups are made, and the file with their limit: version 1, then version 2."""
COMMAND = [sys.executable, "-m", "autotune", "--device", "cpu", "--amp", "off", "--threads", "1", "--budget", "90s"]
COMMAND += ["--num-workers", "0..4", "--batch-size", "4..512", "--baseline", "batch_size=4", "--json", "--quiet"]
TASKS = "cgroup.procs"
SAMPLE = MIB // 4
"""Bytes of a sample of ``large_samples``."""


class Slow(Dataset[torch.Tensor]):
    """Samples that have to be waited for, so that workers pay."""

    def __init__(self, sample_bytes: int) -> None:
        self._sample = torch.zeros(sample_bytes // 4)

    def __len__(self) -> int:
        return 10**5

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        return self._sample.clone()


def sleeping_step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Take 40 ms, whatever the batch, so that larger ones pay."""
    time.sleep(0.040)
    loss: torch.Tensor = model(batch[:, :1]).mean()
    return loss


def hungry_step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The same with 4 MiB for each sample, as activations take them."""
    activations = torch.ones(len(batch), MIB)
    return sleeping_step(model, batch) + 0 * activations[0, 0]


def large_samples() -> Workload:
    """A quarter of a MiB each: 64 MiB hold 256 of them."""
    return Workload(nn.Linear(1, 1), Slow(SAMPLE), training_step=sleeping_step)


def large_activations() -> Workload:
    """A batch of 256 takes a GiB."""
    return Workload(nn.Linear(1, 1), Slow(64), training_step=hungry_step)


def with_little_shared_memory(folder: Path) -> subprocess.CompletedProcess[str]:
    """Tune where ``/dev/shm`` is small."""
    tune = shlex.join([*COMMAND, "--model", "studies.faults.confined:large_samples"])
    mount = f"mount -t tmpfs -o size={SHARED_MEMORY} tmpfs /dev/shm"
    return run(["unshare", "--mount", "sh", "-c", f"{mount} && exec {tune}"], folder)


def with_little_memory(folder: Path) -> subprocess.CompletedProcess[str]:
    """Tune in a control group with a limit on its memory."""
    tune = shlex.join([*COMMAND, "--model", "studies.faults.confined:large_activations"])
    hierarchy, limit = next(each for each in HIERARCHIES if (each[0] / TASKS).exists())
    group = hierarchy / f"autotune-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(MEMORY), encoding="ascii")
        return run(["sh", "-c", f"echo $$ > {group / TASKS} && exec {tune}"], folder)
    finally:
        time.sleep(1.0)
        group.rmdir()


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def summary(tune: Callable[[Path], subprocess.CompletedProcess[str]]) -> dict[str, Any]:
    """Tune once, and say what ran, what was left out, and what came of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = tune(folder)
        if done.returncode:
            return {"exit_code": done.returncode, "error": done.stderr[-2000:]}
        answer = json.loads(done.stdout)
        config = load_config(folder / "autotune.yaml")
    return {
        "exit_code": done.returncode,
        "answer": config.dataloader_kwargs(),
        "verdict": answer["verdict"],
        "speedup": answer["speedup"],
        "rounds": answer["rounds"],
        "ran": [shown(trial) for trial in answer["trials"]],
        "left_out": [note for note in answer["notes"] if note.endswith("left out")],
    }


def shown(trial: dict[str, Any]) -> dict[str, Any]:
    names = ("kind", "outcome", "batch_size", "num_workers", "prefetch_factor", "samples_per_second", "message")
    values = {name: trial.get(name) for name in (*names, "peak_memory_bytes", "memory_limit_bytes")}
    in_flight = trial["num_workers"] * (trial.get("prefetch_factor") or 0) + 1
    return {**values, "bytes_in_flight": in_flight * trial["batch_size"] * SAMPLE if trial["num_workers"] else 0}


def main() -> None:
    limits = {"shared memory of 64 MiB": with_little_shared_memory, "memory of 1 GiB": with_little_memory}
    found = {name: summary(tune) for name, tune in limits.items()}
    Path(sys.argv[1]).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
