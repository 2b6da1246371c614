"""Print the table of the recorded runs.

python studies/trainers/summary.py [FOLDER]
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import autotune
from autotune.report.text import config_text

RECORDED = Path(__file__).resolve().parent / "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was promised for a trainer, and the rates that it reports of itself."""

    trainer: str
    """Its name and version."""
    config: autotune.Config
    """The answer."""
    promised: float
    """Samples per second that the answer promises."""
    interval: tuple[float, float]
    """95 % interval of that."""
    rates: tuple[float, ...]
    """What the trainer reports of each training, samples per second."""
    beside: tuple[float, ...]
    """What autotune measured beside each, in turn with it."""

    @property
    def of_promise(self) -> float:
        """Mean of the trainer's rates over the promised one."""
        return fmean(self.rates) / self.promised

    @property
    def of_beside(self) -> float:
        """Geometric mean of the trainer's rates over those measured beside them."""
        pairs = zip(self.rates, self.beside, strict=True)
        return math.exp(fmean(math.log(rate / beside) for rate, beside in pairs))


def read(folder: Path = RECORDED) -> list[Kept]:
    """Return what was recorded for each trainer."""
    found = []
    for path in sorted(folder.glob("*/rates.json")):
        said = json.loads(path.read_text(encoding="utf-8"))
        low, high = said["tuned"]["ci95"]
        found.append(
            Kept(
                trainer=said["trainer"],
                config=autotune.load_config(path.with_name("autotune.yaml")),
                promised=said["tuned"]["rate"],
                interval=(low, high),
                rates=tuple(each["train"]["rate"] for each in said["rounds"]),
                beside=tuple(each["beside"]["rate"] for each in said["rounds"]),
            )
        )
    return found


def table(found: list[Kept]) -> list[str]:
    """Return the lines of the table, in Markdown."""
    lines = [
        "| trainer | answer | promised, samples/s (95 %) | reported by the trainer | / promised | / measured beside |",
        "|---|---|---|---|---|---|",
    ]
    for kept in found:
        low, high = kept.interval
        rates = ", ".join(f"{rate:,.0f}" for rate in kept.rates)
        promised = f"{kept.promised:,.0f} ({low:,.0f} to {high:,.0f})"
        ratios = f"{kept.of_promise:.2f} | {kept.of_beside:.2f}"
        lines.append(f"| {kept.trainer} | {config_text(kept.config)} | {promised} | {rates} | {ratios} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table(read(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED))))
