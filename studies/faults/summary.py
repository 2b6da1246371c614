"""Print the tables of the README from what was recorded.

python -m studies.faults.summary
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parent / "recorded"
MIB = 2**20
WARM = 3
"""Studies of the soak after which everything that is used has been loaded."""


def zoo() -> Iterator[str]:
    """Yield the table of all faults."""
    yield "| fault | told as | s to the next result | rounds of the answer | file | left behind |"
    yield "|---|---|---|---|---|---|"
    for name, became in _read("zoo.json")["faults"].items():
        left = len(became["processes_left"]) + len(became["segments_left"])
        file = "valid" if became["valid_file"] else "none"
        cells = [name, f"`{became['outcome']}`", f"{became['recovery_seconds']:.1f}", became["confirmed_rounds"], file]
        yield _row(*cells, left or "nothing")


def kills() -> str:
    """Return in one sentence what became of the runs that were killed."""
    rows = _read("kills.json")
    moments = [row["killed_after_seconds"] for row in rows]
    kept, lost = sum(row["trials_kept"] for row in rows), sum(row["trials_lost"] for row in rows)
    return (
        f"{len(rows)} kills, {min(moments):.1f} to {max(moments):.1f} s after the start, {kept} trials finished before "
        f"them: {lost} lost, {sum(row['repeated_trials'] for row in rows)} repeated, "
        f"{sum(row['valid_file'] for row in rows)} valid files."
    )


def confined() -> Iterator[str]:
    """Yield the table of the runs with little memory."""
    yield "| with | ran | failed | left out for want of memory | answer | faster | rounds |"
    yield "|---|---|---|---|---|---|---|"
    for name, found in _read("confined.json").items():
        failed = sum(trial["outcome"] not in ("ok", "suspect") for trial in found["ran"])
        left_out = sum("would need" in trial["message"] for trial in found["left_out"])
        answer = "batch {batch_size}, workers {num_workers}, prefetch {prefetch_factor}".format(**found["answer"])
        faster, rounds = f"{found['speedup']:.1f} times", found["rounds"]
        yield _row(name, len(found["ran"]), failed, left_out, answer, faster, rounds)


def soak() -> str:
    """Return in one sentence what the tuner's own process held over half an hour."""
    rows = soak_rows()
    warm, faults = rows[WARM:], {row["fault"] for row in rows}
    memory = [int(row["rss_bytes"]) / MIB for row in warm]
    return (
        f"{len(rows)} studies in {float(rows[-1]['minutes']):.0f} minutes, {len(faults)} different faults: "
        f"{sum(row['is_valid'] == 'True' for row in rows)} answers written; memory {min(memory):.0f} to "
        f"{max(memory):.0f} MiB after the first {WARM}, {_range(warm, 'descriptors')} open files, "
        f"{_range(warm, 'threads')} threads."
    )


def soak_rows() -> list[dict[str, str]]:
    with (RECORDED / "soak.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _range(rows: list[dict[str, str]], name: str) -> str:
    values = sorted({int(row[name]) for row in rows})
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _read(name: str) -> Any:
    return json.loads((RECORDED / name).read_text(encoding="utf-8"))


def main() -> None:
    print(*zoo(), "", kills(), "", *confined(), "", soak(), sep="\n")


if __name__ == "__main__":
    main()
