"""The cost of the journal: milliseconds to ask and to tell beyond the forecast itself, over 200 trials in one file.

    python -m studies.samplers.journal

Writes ``recorded/journal.json`` beside this script: medians over the trials, and the bytes of the file.
"""

from __future__ import annotations

import json
import tempfile
import time
import zlib
from pathlib import Path
from statistics import median

from autotune.config import Config
from autotune.records import Request
from autotune.search.setup import Setup
from autotune.search.study import open_study
from autotune.storage.open import StudyStorage
from tests.simulated import SimulatedMachine, StepCost, gpu_facts, host, space_of

RECORDED = Path(__file__).with_name("recorded") / "journal.json"
TRIALS = 200


def milliseconds(begin: float) -> float:
    return 1000 * (time.perf_counter() - begin)


def rough(config: Config) -> StepCost:
    """Waiting depends on the configuration in a way that nothing foretells, so there is always more to try."""
    share = zlib.crc32(repr(config).encode()) / 2**32
    return StepCost(wait=1e-4 * config.batch_size * 30**share, compute=2e-6 * config.batch_size)


def main() -> None:
    machine, facts = SimulatedMachine(cost=rough), gpu_facts()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "autotune.study"
        storage = StudyStorage(path)
        study = open_study(Setup(space=space_of(facts), facts=facts, host=host()), storage=storage)
        forecasts, costs = list[float](), list[float]()
        for _ in range(TRIALS):
            begin = time.perf_counter()
            if study.known.trials:
                study.known.forecast.proposal()
                forecasts.append(milliseconds(begin))
            begin = time.perf_counter()
            asked = study.ask()
            assert asked
            cost = milliseconds(begin)
            attempt = machine.measure(asked[0], Request(seconds=1.0))
            begin = time.perf_counter()
            study.tell(attempt, *asked)
            costs.append(cost + milliseconds(begin))
        storage.close()
        found = {"trials": TRIALS, "ask_and_tell_ms": median(costs), "forecast_ms": median(forecasts)}
        found["file_bytes"] = path.stat().st_size
    RECORDED.write_text(json.dumps({name: round(value, 1) for name, value in found.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
