"""Draw the pictures of the recorded study: ``python -m studies.demo.pictures``."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

import autotune
from autotune.report.terminal import ending, summary, trial_line

FOLDER = Path(__file__).resolve().parent
TERMINAL = FOLDER.parents[1] / "docs" / "terminal.svg"
SHOWN = ("time.svg", "loader.svg")


def main() -> None:
    """Draw two plots, and the terminal at the end of the run."""
    result = autotune.read_study(FOLDER / "recorded" / "autotune.study").result
    assert result is not None
    for path in result.save_plots(FOLDER / "pictures"):
        if path.name not in SHOWN:
            path.unlink()
    TERMINAL.write_text(terminal(result), encoding="utf-8")


def terminal(result: autotune.Result) -> str:
    """Return the terminal as SVG, without fonts from the network."""
    console = Console(record=True, width=92, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print("[bold]$[/] python -m autotune --model autotune.demo:build --budget 3m")
    baseline = next(trial for trial in result.history if trial.kind == "baseline" and not trial.is_disturbed)
    for trial in result.history:
        console.print(trial_line(trial, baseline.rate), no_wrap=True, overflow="ellipsis")
    console.print(summary(result), ending(result, "autotune.yaml", ["autotune.study"]))
    drawn = console.export_svg(title="autotune", unique_id="autotune")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    main()
