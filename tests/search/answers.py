"""Runs of many kinds on simulated machines, each kept as a study: the file and the words that they deliver.

    python -m tests.search.answers

writes these to ``recorded_answers.json`` beside this module, after a change that was meant to change them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import optuna

from autotune.config import Config
from autotune.knobs import as_baseline
from autotune.limits import MemoryLimit
from autotune.outcome import Outcome
from autotune.records import Attempt, Request, WorkloadFacts
from autotune.report.result import Result
from autotune.search.read import read_study
from autotune.search.space import build_space
from autotune.settings import parse_knobs
from autotune.storage.open import StudyStorage
from tests import examples
from tests.report import results
from tests.search.test_options import PAIR, Optioned
from tests.simulated import (
    FEW,
    SimulatedMachine,
    equal_everywhere,
    four_shared_cores,
    gpu_facts,
    host,
    larger_batches_pay,
    loader_bound,
    tuner_of,
)

RECORDED = Path(__file__).with_name("recorded_answers.json")
CPU, GPU = examples.facts(), gpu_facts()
SITE = "train.py:31 Photos[50000]"
UNSOUND = examples.numerics_check(losses=(float("nan"),) * 20)


@dataclass(kw_only=True)
class Shared(SimulatedMachine):
    """Measures until another tuner, which joins the study at the fifth call, has ended its own run."""

    join: Callable[[], object]

    def measure(self, config: Config, request: Request) -> Attempt:
        if request.part == "training" and len(self.calls) == 4:
            self.join()
        return super().measure(config, request)


def run(
    storage: str | Path,
    machine: SimulatedMachine,
    facts: WorkloadFacts = GPU,
    budget: float = 180.0,
    *,
    baseline: Config = examples.BASELINE,
    whole: int | None = None,
    options: tuple[str, ...] = (),
    bounds: dict[str, Any] = FEW,
    **plan: Any,
) -> Result:
    space = build_space(facts, host(8).for_rank(baseline.ranks).cpus, baseline, parse_knobs(bounds), whole, options)
    with closing(StudyStorage(storage)) as kept:
        return tuner_of(machine, space, facts, host(8), budget, **plan).result(kept)


def resumed(path: Path) -> Result:
    """Three runs of a command, of which the first two are too short."""
    for seed in (1, 2):
        run(path, SimulatedMachine(cost=loader_bound, noise=0.03, seed=seed), budget=25.0)
    return run(path, SimulatedMachine(cost=loader_bound, noise=0.03, seed=3), budget=90.0)


def shared(path: Path) -> Result:
    """Two tuners that fill one study by turns."""
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shared.db"
        other = SimulatedMachine(cost=larger_batches_pay, noise=0.02, seed=5)
        machine = Shared(cost=larger_batches_pay, noise=0.02, seed=4, join=lambda: run(url, other, budget=60.0))
        result = run(url, machine)
        name = read_study(url).name
        optuna.copy_study(from_study_name=name, from_storage=url, to_storage=journal(path))
    return result


def journal(path: Path) -> optuna.storages.JournalStorage:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


def noisy(cost: Any, noise: float = 0.02, seed: int = 1, **more: Any) -> SimulatedMachine:
    return SimulatedMachine(cost=cost, noise=noise, seed=seed, **more)


RUNS: dict[str, Callable[[Path], Result]] = {
    "faster": lambda path: run(path, noisy(loader_bound)),
    "no gain": lambda path: run(path, noisy(equal_everywhere, 0.005)),
    "undecided": lambda path: run(path, noisy(equal_everywhere, 0.3), budget=60.0),
    "interrupted": lambda path: run(path, noisy(loader_bound, interrupt_at=7)),
    "out of memory": lambda path: run(path, results.machine(), gpu_facts(**results.NAMES)),
    "resumed twice": resumed,
    "two tuners": shared,
    "two ranks": lambda path: run(path, noisy(loader_bound), baseline=as_baseline(None, None, 2)),
    "a whole of 128 samples": lambda path: run(
        path, noisy(larger_batches_pay), baseline=as_baseline(None, 128), whole=128, bounds={"num_workers": "0,2"}
    ),
    "options": lambda path: run(
        path, Optioned(factors={"channels_last": 1.2, "tf32": 1.3}, noise=0.02, seed=1), budget=400.0, options=PAIR
    ),
    "a script": lambda path: run(
        path, noisy(loader_bound), replace(CPU, loader_site=SITE, autocast_call="train.py:40")
    ),
    "Optuna's sampler": lambda path: run(
        path, noisy(loader_bound), budget=60.0, sampler=optuna.samplers.TPESampler(seed=1)
    ),
    "a baseline in half precision": lambda path: run(
        path, noisy(results.cost, peak=results.peak), baseline=Config(batch_size=64, amp="bf16")
    ),
    "half precision diverges": lambda path: run(path, noisy(results.cost, numerics=lambda amp: UNSOUND)),
    "three trials": lambda path: run(path, noisy(loader_bound), max_trials=3),
    "neighbours": lambda path: run(path, noisy(four_shared_cores, fails=lambda config: Outcome.SUSPECT), CPU),
    "little memory": lambda path: run(
        path, noisy(results.cost, peak=results.peak), memory_limit=MemoryLimit(headroom=0.3, most=2 * 2**30)
    ),
    "no second configuration works": lambda path: run(
        path, noisy(loader_bound, fails=lambda config: Outcome.CRASHED if config.num_workers else None), CPU
    ),
}


def delivered(result: Result) -> dict[str, Any]:
    document = result.config.to_document()
    document.get("made_on", {}).pop("date", None)
    return {"document": document, "summary": str(result).splitlines()}


def main() -> None:
    with TemporaryDirectory() as folder:
        found = {name: delivered(start(Path(folder, f"{name}.study"))) for name, start in RUNS.items()}
    RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
