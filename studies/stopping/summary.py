"""Print the tables of the README from recorded runs, or compare two recordings on the same seeds.

python -m studies.stopping.summary [folder]
python -m studies.stopping.summary before_stop.csv after_stop.csv
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy
import pandas

RECORDED = Path(os.path.relpath(Path(__file__).resolve().parent)) / "recorded"
MEMORIES = ("device_oom", "host_oom", "shm_oom")
KEYS = ["family", "seed", "kind"]
WORST, LARGE = 5, 10.0
"""Runs of the worst, and the gain in percent that a second answer is expected to prove."""
DRAWS = 10_000
PARTS = ("regret", "second_regret")


def load(path: Path) -> pandas.DataFrame:
    return pandas.read_csv(path)


def worst(regrets: pandas.Series) -> float:
    """Return the mean of the five largest."""
    return float(regrets.nlargest(WORST).mean())


def regrets(name: str, runs: pandas.DataFrame, column: str = "regret") -> str:
    """Return a row of regrets in percent, machine seconds and failures for want of memory."""
    values = runs[column].dropna()
    shown = (values.mean(), values.median(), values.quantile(0.95), values.max(), worst(values))
    cells = [f"{value:.1f}" for value in shown]
    seconds = runs[column.replace("regret", "seconds")].mean()
    failed = " + ".join(f"{runs[memory].sum():.0f}" for memory in MEMORIES)
    return f"| {name} | {len(values)} | {' | '.join(cells)} | {seconds:.0f} | {failed} |"


COLUMNS = ("runs of", "runs", "mean", "median", "95th percentile", "worst", "worst five", "seconds", "out of memory")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def stop_table(runs: pandas.DataFrame) -> list[str]:
    lines = [HEAD, regrets("**answers**", runs), regrets("search, the best observed", runs, "search_regret")]
    return lines + [regrets(f"answers, {family}", runs[runs.family == family]) for family in runs.family.unique()]


def counts(runs: pandas.DataFrame, column: str) -> str:
    """Return how often each value occurs."""
    return ", ".join(f"{name}: {count}" for name, count in runs[column].fillna("none").value_counts().items())


def claims_table(runs: pandas.DataFrame) -> list[str]:
    """Return a table of verdicts by baseline; a claim is false where the answer truly trains no faster."""
    runs = runs[~runs.verdict.isin(["error", "no such baseline"])]
    lines = ["| baseline | runs | faster | of these not faster in truth | no gain | undecided | mean true gain | of |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for kind, own in runs.groupby("kind", sort=False):
        faster = own[own.verdict == "faster"]
        verdicts = " | ".join(str((own.verdict == name).sum()) for name in ("no gain", "undecided"))
        lines.append(
            f"| {kind} | {len(own)} | {len(faster)} | {(faster.gain <= 0).sum()} | {verdicts} "
            f"| {own.gain.mean():.1f} % | {own.possible.mean():.1f} % |"
        )
    return lines


def answers_table(runs: pandas.DataFrame) -> list[str]:
    """Return a table of both answers, by objective and time; regrets in percent."""
    lines = ["| objective, time | first answer | worst | second answer | worst | 10 % to gain, proven | seconds |"]
    lines.append("|---|---|---|---|---|---|---|")
    for kind, own in runs.groupby("kind", sort=False):
        large = own[own.possible >= LARGE]
        shown = [f"{value:.1f}" for part in PARTS for value in (own[part].mean(), own[part].max())]
        proven = f"{(large.second_verdict == 'faster').sum()} of {len(large)}"
        lines.append(f"| {kind} | {' | '.join(shown)} | {proven} | {own.seconds.mean():.0f} |")
    return lines


def compared_answers(before: pandas.DataFrame, after: pandas.DataFrame) -> list[str]:
    """Return the differences of mean regrets, with a bootstrap 95 % interval of paired means."""
    both = before.merge(after, on=KEYS, suffixes=("_before", "_after"))
    lines = [f"{len(both)} runs of both recordings, after - before:"]
    for kind, own in both.groupby("kind", sort=False):
        picks = numpy.random.default_rng(0).integers(len(own), size=(DRAWS, len(own)))
        for part in PARTS:
            change = (own[f"{part}_after"] - own[f"{part}_before"]).to_numpy()
            low, high = numpy.quantile(change[picks].mean(axis=1), [0.025, 0.975])
            lines.append(f"- {kind}, mean {part}: {change.mean():.2f} [{low:.2f}, {high:.2f}]")
    return lines


def rivals_table(runs: pandas.DataFrame, stops: pandas.DataFrame) -> list[str]:
    same = stops.merge(runs[["family", "seed"]].drop_duplicates())
    return [HEAD, regrets("autotune", same), *(regrets(name, runs[runs.kind == name]) for name in runs.kind.unique())]


def compared(before: pandas.DataFrame, after: pandas.DataFrame) -> list[str]:
    """Return ratios of after to before over the runs of both, with a bootstrap 95 % interval of paired means."""
    both = before.merge(after, on=KEYS, suffixes=("_before", "_after"))
    both = both.dropna(subset=["regret_before", "regret_after"])
    lines = [f"{len(both)} runs of both recordings, after / before:"]
    picks = numpy.random.default_rng(0).integers(len(both), size=(DRAWS, len(both)))
    for column in ("regret", "search_regret", "seconds", "search_seconds"):
        first, second = both[f"{column}_before"], both[f"{column}_after"]
        ratios = second.to_numpy()[picks].mean(axis=1) / first.to_numpy()[picks].mean(axis=1)
        low, high = numpy.quantile(ratios, [0.025, 0.975])
        means = f"{first.mean():.2f} to {second.mean():.2f}"
        lines.append(f"- mean {column}: {second.mean() / first.mean():.3f} [{low:.3f}, {high:.3f}], {means}")
        if "regret" in column:
            ratio = worst(second) / worst(first)
            lines.append(f"- worst five {column}: {ratio:.3f}, {worst(first):.2f} to {worst(second):.2f}")
    for memory in MEMORIES:
        lines.append(f"- {memory}: {both[f'{memory}_before'].sum():.0f} to {both[f'{memory}_after'].sum():.0f}")
    return lines


def compared_claims(before: pandas.DataFrame, after: pandas.DataFrame) -> list[str]:
    both = before.merge(after, on=KEYS, suffixes=("_before", "_after"))
    both = both.dropna(subset=["gain_before", "gain_after"])
    lines = [f"{len(both)} runs of both recordings"]
    for kind, own in both.groupby("kind", sort=False):
        for side in ("before", "after"):
            faster = own[own[f"verdict_{side}"] == "faster"]
            lines.append(
                f"- {kind}, {side}: {counts(own, f'verdict_{side}')}; {(faster[f'gain_{side}'] <= 0).sum()} false; "
                f"mean true gain {own[f'gain_{side}'].mean():.2f} %, {own[f'seconds_{side}'].mean():.0f} s"
            )
    return lines


def show(folder: Path, prefix: str) -> None:
    paths = {part: folder / f"{prefix}{part}.csv" for part in ("stop", "answers", "claims")} | {
        "rivals": folder / "rivals.csv"
    }
    found = {part: load(path) for part, path in paths.items() if path.exists() and path.stat().st_size}
    if "stop" in found:
        print("\nRegret in percent:\n", *stop_table(found["stop"]), sep="\n")
        print("\nVerdicts:", counts(found["stop"], "verdict"), "\nReasons:", counts(found["stop"], "reason"))
        print("Answers that are not safe:", (found["stop"].is_safe.astype(str) == "False").sum())
    if "claims" in found:
        print("\nClaims:\n", *claims_table(found["claims"]), sep="\n")
        print("\nVerdicts:", counts(found["claims"], "verdict"))
    if "answers" in found:
        print("\nBoth answers:\n", *answers_table(found["answers"]), sep="\n")
    if "rivals" in found and "stop" in found:
        print("\nThe same machine time:\n", *rivals_table(found["rivals"], found["stop"]), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="*", help="a folder, or two recordings: before, after")
    parser.add_argument("--prefix", default="", help="of the files' names in the folder, such as before_")
    options = parser.parse_args()
    if len(options.paths) == 2:
        before, after = map(load, options.paths)
        of_kind = compared_answers if "second_regret" in before else compared_claims if "gain" in before else compared
        print(*of_kind(before, after), sep="\n")
    else:
        show(options.paths[0] if options.paths else RECORDED, options.prefix)


if __name__ == "__main__":
    main()
