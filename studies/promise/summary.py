"""Print the table of the recorded runs.

python studies/promise/summary.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import autotune
from autotune.configfile import read_document

RECORDED = Path(__file__).resolve().parent / "recorded"
TOLERANCE = 0.03
"""How far training may lie from the file's number, as a share of it, where the stated interval is narrower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a workload's file says, and what training with it gave."""

    name: str
    """The workload."""
    config: autotune.Config
    """The file."""
    rates: tuple[float, ...]
    """Samples per second of each training run."""
    seconds: tuple[float, ...]
    """How long each took."""

    @property
    def promised(self) -> float:
        """The file's samples per second."""
        return float((self.config.measured or {})["samples_per_second"])

    @property
    def interval(self) -> tuple[float, float]:
        """The file's 95 % interval; where it states none, the number itself."""
        low, high = (self.config.measured or {}).get("ci95") or (self.promised, self.promised)
        return float(low), float(high)

    @property
    def ratio(self) -> float:
        """Mean rate of training over the promised one."""
        return fmean(self.rates) / self.promised

    @property
    def is_kept(self) -> bool:
        """Whether that mean lies within the stated interval or within 3 % of the number."""
        low, high = self.interval
        return low <= fmean(self.rates) <= high or abs(self.ratio - 1) <= TOLERANCE


def read(folder: Path = RECORDED) -> list[Promise]:
    """Return what was recorded for each workload, by name."""
    return [_promise(path.parent) for path in sorted(folder.glob("*/training.json"))]


def table(promises: list[Promise]) -> list[str]:
    """Return the lines of the table: what was promised, and what training gave."""
    lines = [
        "| workload | answer | promised, samples/s (95 %) | first minute | second minute | mean / promised | kept |",
        "|---|---|---|---|---|---|---|",
    ]
    return lines + [_line(promise) for promise in promises]


def _promise(folder: Path) -> Promise:
    runs = json.loads((folder / "training.json").read_text(encoding="utf-8"))["runs"]
    return Promise(
        name=folder.name,
        config=autotune.Config.from_document(read_document(folder / "autotune.yaml")),
        rates=tuple(run["samples_per_second"] for run in runs),
        seconds=tuple(run["seconds"] for run in runs),
    )


def _line(promise: Promise) -> str:
    low, high = promise.interval
    rates = " | ".join(f"{rate:,.0f}" for rate in promise.rates)
    return (
        f"| {promise.name} | {_answer(promise.config)} | {promise.promised:,.0f} ({low:,.0f} to {high:,.0f}) | {rates} "
        f"| {promise.ratio:.3f} | {'yes' if promise.is_kept else 'no'} |"
    )


def _answer(config: autotune.Config) -> str:
    workers = f"workers {config.num_workers} x {config.prefetch_factor}" if config.num_workers else "no workers"
    precision = "fp32" if config.amp == "off" else config.amp
    return f"batch {config.batch_size}, {workers}, {precision}, threads {config.intra_op_threads}"


if __name__ == "__main__":
    print(*table(read(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED)), sep="\n")
