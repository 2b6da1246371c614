"""Searches of many kinds on simulated machines, in figures: what was asked, and what is expected of the whole space.

    python -m tests.search.searches

writes them to ``recorded_searches.json`` beside this module, after a change that was meant to change them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.config import Config
from autotune.knobs import as_baseline
from autotune.limits import Budget, MemoryLimit
from autotune.records import WorkloadFacts
from autotune.report.text import config_text
from autotune.search.landscape import landscape_of
from autotune.search.setup import Setup
from autotune.search.space import build_space
from autotune.search.study import TuningStudy, open_study
from autotune.settings import parse_knobs
from studies.simulated_machines.machines import FAMILIES, GIB, Machine, draw_world
from tests import simulated

RECORDED = Path(__file__).with_name("recorded_searches.json")
BOUNDS = {"batch_size": "16,32,64,256,1024", "num_workers": "0,1,2,4,8", "prefetch_factor": "2,8"}
"""A few hundred configurations; precisions, pinning and threads are those of the machine."""
SHOWN = 40
"""Configurations whose figures are kept, spread over the space."""


def searches() -> dict[str, dict[str, Any]]:
    found = {f"{family} {seed}": searched(family, seed) for family in FAMILIES for seed in (1, 2)}
    found["two ranks, 512 samples a step"] = searched(
        "loader-bound GPU", 3, baseline=as_baseline(None, 512, 2), whole=512
    )
    found["little shared memory"] = searched("loader-bound GPU", 4, shm=200 * 2**20)
    found["little memory"] = searched("compute-bound GPU", 5, memory_limit=MemoryLimit(headroom=0.3, most=8 * GIB))
    found["a stream"] = searched("CPU training", 6, epoch_samples=None, iterable=True)
    found["an epoch that is set"] = searched("CPU training", 7, sets_epoch=True)
    found["a baseline of the user's"] = searched(
        "tiny model", 8, baseline=Config(batch_size=100, num_workers=3, prefetch_factor=4, amp="bf16")
    )
    found["a short budget"] = searched("CPU training", 9, budget=45.0)
    return found


def searched(
    family: str,
    seed: int,
    *,
    baseline: Config | None = None,
    whole: int | None = None,
    memory_limit: MemoryLimit | None = None,
    budget: float = 240.0,
    shm: int | None = None,
    **facts: Any,
) -> dict[str, Any]:
    world = draw_world(family, seed)
    machine = Machine(world=world if shm is None else replace(world, shm=shm), noise=0.03, seed=seed)
    known: WorkloadFacts = replace(machine.facts, **facts)
    space = build_space(known, world.cpus, baseline or Config(batch_size=32), parse_knobs(BOUNDS), whole)
    study = open_study(Setup(space=space, facts=known, host=machine.host, memory_limit=memory_limit or MemoryLimit()))
    time = Budget(budget, machine.now)
    stop = simulated.search_only(machine, study, time)
    return {
        "asked": [
            f"{request.part}: {config_text(config)}: {outcome}" for config, request, outcome, _ in machine.attempts
        ],
        "stop": stop.text,
        "seconds": _figure(machine.time),
        **_expected(study),
    }


def _expected(study: TuningStudy) -> dict[str, Any]:
    forecast = study.known.forecast
    step = max(1, len(forecast.configs) // SHOWN)
    measured = study.known.trials[0].measurement
    assert measured is not None
    landscape = landscape_of(forecast, forecast.best.config)
    return {
        "best": config_text(forecast.best.config),
        "finalists": [config_text(trial.config) for trial in study.known.finalists(3)],
        "remaining": _figure(forecast.remaining),
        "limit": _figure(forecast.highest_limit),
        "loaders": [
            [each.num_workers, each.prefetch_factor, _figure(each.rate), _figure(each.low)]
            for each in landscape.loaders
        ],
        "expected": {
            config_text(config): [
                _figure(forecast.rate_of(config)),
                _figure(forecast.error_of(config)),
                _figure(forecast.bound(config)),
                _figure(float(forecast.prediction.ceilings[index])),
                _figure(float(forecast.prediction.limits[index])),
                forecast.refusal(config) or "",
            ]
            for index, config in list(enumerate(forecast.configs))[::step]
        },
    }


def _figure(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    RECORDED.write_text(json.dumps(searches(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
