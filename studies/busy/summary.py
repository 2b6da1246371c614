"""Print what the recorded runs come to.

python -m studies.busy.summary
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

RECORDED = Path(__file__).resolve().parent / "recorded"
BROKEN_DOWN = 200
"""Samples per second below which training has broken down: undisturbed it gives some 900."""


def tuned_table() -> Iterator[str]:
    """Yield the lines of the table of runs."""
    yield "| seed | verdict | gain (interval) | rounds | answer | ten minutes side by side (95 %) | held |"
    yield "|---|---|---|---|---|---|---|"
    ratios = {key_of(each["config"]): each for each in recorded("compared")["answers"]}
    for run in recorded("tuned")["runs"]:
        answer, interval, found = text_of(run["config"]), run["speedup_ci95"], "-"
        held = "-"
        if run["verdict"] == "faster":
            measured = ratios[key_of(run["config"])]
            found = f"{measured['ratio']:.2f} ({span(measured['ci95'])})"
            held = "yes" if interval[0] <= measured["ratio"] <= interval[1] else "no"
        gain = f"{run['speedup']:.2f} ({span(interval)})" if interval else "-"
        yield f"| {run['seed']} | {run['verdict']} | {gain} | {run['rounds']} | {answer} | {found} | {held} |"


def summary() -> Iterator[str]:
    """Yield what all of it comes to."""
    runs, rows = recorded("tuned")["runs"], list(tuned_table())[2:]
    proven = sum(run["verdict"] == "faster" for run in runs)
    yield f"- A gain was proven in {proven} of {len(runs)} runs."
    held = sum(row.endswith("| yes |") for row in rows)
    yield f"- {held} of these {proven} intervals hold the ratio of ten minutes side by side."
    quiet = recorded("quiet")
    means = {
        key_of(config): fmean(rates)
        for config, rates in zip(quiet["configs"], zip(*quiet["rounds"], strict=True), strict=True)
    }
    best = quiet["configs"][quiet["best"]]
    shares = [means[key_of(run["config"])] / means[key_of(best)] for run in runs if run["verdict"] == "faster"]
    if shares:
        yield (
            f"- On the quiet machine the answers gave {median(shares):.2f} of the rate of the quiet answer "
            f"({text_of(best)}) in the median, {min(shares):.2f} at least; {sum(share >= 0.9 for share in shares)} of "
            f"{len(shares)} gave 0.9 of it."
        )
    equal = recorded("equal")["runs"]
    claims = sum(run["is_proven"] for run in equal)
    yield f"- The baseline against itself: {claims} claims of a gain in {len(equal)} runs."


def sessions() -> Iterator[str]:
    """Yield what plain training gave in the neighbour's session and in one of its own."""
    for has_own_session, name in ((False, "in the neighbour's session"), (True, "in a session of its own")):
        runs = [run["rates"] for run in recorded("sessions")["runs"] if run["own session"] is has_own_session]
        rates = [rate for run in runs for rate in run]
        slow = sum(rate < BROKEN_DOWN for rate in rates)
        yield (
            f"- {name}: {fmean(rates):,.0f} samples/s, {min(rates):,.0f} in the slowest second; "
            f"{slow} of {len(rates)} seconds below {BROKEN_DOWN}"
        )


def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return content


def key_of(document: dict[str, Any]) -> str:
    """Return what tells one configuration from another, whatever was measured with it."""
    return json.dumps({name: document[name] for name in ("dataloader", "training", "threads")}, sort_keys=True)


def text_of(document: dict[str, Any]) -> str:
    """Return a configuration in a few words."""
    loader, threads = document["dataloader"], document["threads"]["intra_op"]
    workers = f"workers {loader['num_workers']}x{loader['prefetch_factor']}" if loader["num_workers"] else "no workers"
    precision = "fp32" if document["training"]["amp"] == "off" else document["training"]["amp"]
    return f"batch {loader['batch_size']}, {workers}, {precision}, threads {threads}"


def span(interval: list[float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"


if __name__ == "__main__":
    print(*tuned_table(), "", *summary(), "", *sessions(), sep="\n")
