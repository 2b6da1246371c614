"""Strike one trial of a running study with every fault of the zoo: is it told, is there an answer, what is left?

    python -m studies.faults.record [--only "item hangs"]

Writes ``recorded/zoo.json`` beside this script; faults that it holds already are done again only when they are named.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.host import inspect_host
from tests.faults.injecting import inject
from tests.faults.zoo import FAULTS

RECORDED = Path(os.path.relpath(Path(__file__).resolve().parent)) / "recorded" / "zoo.json"


def main() -> None:
    options = parse_arguments()
    known: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {"faults": {}}
    known["machine"] = machine()
    for name in options.only or [name for name in FAULTS if name not in known["faults"]]:
        known["faults"][name] = struck(name)
        print(name, json.dumps(known["faults"][name]), file=sys.stderr)
        RECORDED.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the zoo of faults.")
    parser.add_argument("--only", nargs="+", choices=FAULTS, help="these faults alone")
    return parser.parse_args()


def machine() -> dict[str, object]:
    facts = ("cpus", "cpu_model", "memory_bytes", "gpus", "versions")
    host = asdict(inspect_host())
    return {"date": datetime.now(UTC).isoformat(timespec="seconds")} | {key: host[key] for key in facts}


def struck(name: str) -> dict[str, object]:
    found = inject(name)
    return {
        "expected": FAULTS[name].outcome,
        "outcome": found.outcome,
        "message": found.message,
        "recovery_seconds": round(found.recovery_seconds, 1),
        "confirmed_rounds": found.result.rounds,
        "verdict": found.result.verdict,
        "valid_file": found.is_valid,
        "processes_left": found.processes,
        "segments_left": found.segments,
    }


if __name__ == "__main__":
    main()
