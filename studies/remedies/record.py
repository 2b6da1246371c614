"""Try the remedies on four jobs, then take them: what was predicted beside what training gains.

    python -m studies.remedies.record [--only png augmented collate memory] [--runs 3]
    python -m studies.remedies.record --reading

Each line of ``recorded/runs.jsonl`` is a job: its remedies as ``diagnose --try`` measures them. Of the two jobs that
are worth storing, the whole set is stored by ``autotune.stored`` with the present workers, and two epochs are trained
with it and without it by turns, each in a process of its own. ``recorded/reading.json`` has rates of reading items of
150 kB, by ``autotune.stored`` and from a memmap of numpy by hand, in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import autotune
from studies.remedies.jobs import CONFIG, JOBS, STORED

RECORDED = Path(__file__).resolve().parent / "recorded" / "runs.jsonl"
EPOCHS, TURNS = 2, 3
ITEMS, BYTES = 1000, 150_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the study of remedies.")
    parser.add_argument("--only", nargs="+", choices=JOBS, default=[*JOBS])
    parser.add_argument("--runs", type=int, default=1, help="times that each job is tried")
    parser.add_argument("--train", nargs=2, metavar=("JOB", "FOLDER"), help="train two epochs, and print their rate")
    parser.add_argument("--reading", action="store_true", help="read stored items beside a memmap")
    options = parser.parse_args()
    RECORDED.parent.mkdir(exist_ok=True)
    if options.reading:
        (RECORDED.parent / "reading.json").write_text(json.dumps(reading()) + "\n")
        return
    if options.train:
        print(json.dumps(trained(*options.train)))
        return
    for name in options.only * options.runs:
        line = {"job": name, "date": datetime.now(UTC).isoformat(timespec="seconds"), "torch": torch.__version__}
        config = CONFIG.without_workers if name == "memory" else CONFIG
        found = autotune.diagnose(f"studies.remedies.jobs:{name}", config, device="cpu", remedies=True)
        line["remedies"] = [asdict(each) for each in found.remedies]
        line["bottleneck"] = found.bottleneck
        if name in STORED:
            line |= taken(name)
        with RECORDED.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(name, *(f"{each.name} {each.verdict or each.reason} {each.ratio}" for each in found.remedies), flush=True)


class Rows(Dataset[Any]):
    """Items of 150 kB and a label, from random bytes."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.random.default_rng(index).integers(0, 256, BYTES, dtype=np.uint8)), index


class ByHand(Dataset[Any]):
    """The same items in two memory-mapped arrays of numpy."""

    def __init__(self, folder: str) -> None:
        self.rows = np.memmap(Path(folder, "rows"), np.uint8, "w+", shape=(ITEMS, BYTES))
        self.labels = np.memmap(Path(folder, "labels"), np.int64, "w+", shape=ITEMS)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.array(self.rows[index])), int(self.labels[index])


def reading() -> list[tuple[float, float]]:
    """Return items a second from a store, and by hand from an array in a file, in turns and in random order."""
    with tempfile.TemporaryDirectory() as folder:
        items, by_hand = autotune.stored(Rows(), folder), ByHand(folder)
        for index in range(ITEMS):
            by_hand.rows[index], by_hand.labels[index] = items[index][0].numpy(), index

        def rate(dataset: Dataset[Any]) -> float:
            order = np.random.permutation(ITEMS).tolist() * 5
            begin = time.perf_counter()
            for index in order:
                dataset[index]
            return len(order) / (time.perf_counter() - begin)

        return [(rate(items), rate(by_hand)) for _ in range(9)]


def taken(name: str) -> dict[str, Any]:
    """Store all items of a job, and train with them and without them by turns."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        for _ in CONFIG.dataloader(stored(name, folder), shuffle=True):
            pass
        seconds = time.perf_counter() - begin
        size = Path(folder, "items").stat().st_size
        turns = [[rate_of(name, place) for place in ("-", folder)] for _ in range(TURNS)]
    return {"make_seconds": seconds, "bytes": size, "turns": turns}


def stored(name: str, folder: str) -> Any:
    return autotune.stored(JOBS[name]().dataset, folder, before=STORED[name])


def rate_of(name: str, folder: str) -> float:
    command = [sys.executable, "-m", "studies.remedies.record", "--train", name, folder]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def trained(name: str, folder: str) -> float:
    """Train two epochs as a script does; return samples per second, the starts of the epochs included."""
    CONFIG.apply_threads()
    workload = JOBS[name]()
    dataset: Any = workload.dataset if folder == "-" else stored(name, folder)
    loader, model = CONFIG.dataloader(dataset, shuffle=True), workload.model
    optimizer, samples, begin = torch.optim.AdamW(model.parameters()), 0, time.perf_counter()
    for _ in range(EPOCHS):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            samples += len(labels)
    return samples / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
