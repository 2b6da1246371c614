"""Print the tables of the README from what was recorded.

python -m studies.faults.summary
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from studies.faults.zoo import FAULTS

RECORDED = Path(__file__).resolve().parent / "recorded"
MIB = 2**20
WARM = 3
"""Studies after which everything that is used has been loaded."""


def zoo() -> str:
    """Return the table of all faults, in the order of the zoo."""
    rows = []
    for study in sorted(_read("zoo.json")["studies"], key=lambda study: list(FAULTS).index(study["fault"])):
        left = len(study["processes_left"]) + len(study["segments_left"])
        file = "valid" if study["valid_file"] else "none"
        rounds, seconds = study["confirmed_rounds"], study["recovery_seconds"] or "none"
        rows.append((study["fault"], f"`{study['outcome']}`", seconds, rounds, file, left or "nothing"))
    return _table(("fault", "told as", "s to the next result", "rounds of the answer", "file", "left behind"), rows)


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


def confined() -> str:
    """Return the table of the runs with little memory."""
    rows = []
    for name, found in _read("confined.json").items():
        failed = sum(trial["outcome"] not in ("ok", "suspect") for trial in found["ran"])
        left_out = sum("would need" in note for note in found["left_out"])
        answer = "batch {batch_size}, workers {num_workers}, prefetch {prefetch_factor}".format(**found["answer"])
        rows.append(
            (name, len(found["ran"]), failed, left_out, answer, f"{found['speedup']:.1f} times", found["rounds"])
        )
    return _table(("with", "ran", "failed", "left out for want of memory", "answer", "faster", "rounds"), rows)


def soak() -> str:
    """Return in one sentence what the tuner's own process held after each study."""
    studies = soaked()
    warm = studies[WARM:]
    memory = [study["memory_bytes"] / MIB for study in warm]
    return (
        f"{len(studies)} studies in {studies[-1]['minutes']:.0f} minutes: memory {min(memory):.0f} to "
        f"{max(memory):.0f} MiB after the first {WARM}, {_range(warm, 'descriptors')} open files, "
        f"{_range(warm, 'threads')} threads."
    )


def soaked() -> list[dict[str, Any]]:
    """Return the studies that ran in one process, in order."""
    return [study for study in _read("zoo.json")["studies"] if study["run"] == 1]


def _range(rows: list[dict[str, Any]], name: str) -> str:
    values = sorted({row[name] for row in rows})
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _read(name: str) -> Any:
    return json.loads((RECORDED / name).read_text(encoding="utf-8"))


def main() -> None:
    print(zoo(), kills(), confined(), soak(), sep="\n\n")


if __name__ == "__main__":
    main()
