"""Does a layer beneath a script make reading dearer?

    python studies/scripts/files.py

Reads 3,000 files of 4 KB, and one of 64 MiB, in processes with and without a layer by turns, warm; writes ``files.csv``
beside this script, in CPU seconds. Takes half a minute.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

FILES, BYTES, LARGE, PASSES, READS = 3000, 4096, 64 * 2**20, 7, 5
"""Small files and their size, the size of the large one, passes of each kind, and readings of all in a pass."""
HERE = Path(__file__).resolve().parent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
        small, large = Path(folder, "small"), Path(folder, "large")
        small.mkdir()
        for number in range(FILES):
            (small / str(number)).write_bytes(os.urandom(BYTES))
        large.write_bytes(os.urandom(LARGE))
        os.chdir(folder)
        rows = [
            {"pass": turn, "held": held, **passed(held, scratch)} for turn in range(PASSES) for held in (False, True)
        ]
    with (HERE / "files.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(
        f"{1e6 * more(rows, 'small') / FILES:.2f} µs a file more; the large one {100 * share(rows, 'large'):.1f} % more"
    )


def passed(held: bool, scratch: str) -> dict[str, float]:
    """Return the CPU seconds of reading all small files, and the large one, in a process of its own."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        from autotune.measure.writes import hold_writes

        if held:
            assert hold_writes(__file__, (), Path(tempfile.mkdtemp(dir=scratch), "written")).way == "layer"
        os.write(writer, json.dumps({"small": seconds("small"), "large": seconds("large")}).encode())
        os._exit(0)
    os.wait()
    os.close(writer)
    with os.fdopen(reader) as told:
        found: dict[str, float] = json.load(told)
    return found


def seconds(name: str) -> float:
    """Return the CPU seconds of one reading, warm."""
    paths = sorted(map(str, Path(name).iterdir())) if os.path.isdir(name) else [name]
    for turn in range(READS + 1):
        if turn == 1:
            begin = time.process_time()
        for path in paths:
            with open(path, "rb") as file:
                file.read()
    return (time.process_time() - begin) / READS


def more(rows: list[dict[str, float]], name: str) -> float:
    """Return how many CPU seconds more a reading takes with a layer, in the median of the passes."""
    plain, held = (rows[kind::2] for kind in (0, 1))
    return median(there[name] - without[name] for without, there in zip(plain, held, strict=True))


def share(rows: list[dict[str, float]], name: str) -> float:
    """Return that as a share of a reading without."""
    return more(rows, name) / median(row[name] for row in rows[::2])


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))
    main()
