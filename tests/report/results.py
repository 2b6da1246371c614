"""Results as the whole program makes them, on a simulated machine with a GPU."""

from __future__ import annotations

from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.report.result import RecordedStudy, Result
from autotune.search.read import read_study
from autotune.storage.open import StudyStorage
from tests import examples
from tests.simulated import SimulatedMachine, StepCost, few_of, gpu_facts, host, tuner_of

MEMORY = {"off": 9_000_000, "bf16": 5_200_000, "fp16": 5_200_000}
"""Bytes for each sample of a batch."""


def cost(config: Config) -> StepCost:
    """Twelve CPUs decode; the device is faster in larger batches and with less precision."""
    compute = 0.004 + 8e-5 * config.batch_size * {"off": 1.0, "bf16": 0.55, "fp16": 0.6}[config.amp]
    build = 1.2e-3 * config.batch_size
    if not config.num_workers:
        return StepCost(wait=build, compute=compute)
    return StepCost(wait=max(0.0005, build / min(config.num_workers, 12) - compute), compute=compute)


def peak(config: Config) -> int:
    return 600_000_000 + config.batch_size * MEMORY[config.amp] + 30_000_000 * config.num_workers


def fails(config: Config) -> Outcome | None:
    if config.batch_size >= 512 and config.amp == "off":
        return Outcome.DEVICE_OOM
    return Outcome.TIMEOUT if config.num_workers == 16 else None


NAMES = {"model_name": "ResNet", "dataset_name": "FolderOfJpegs"}


def machine() -> SimulatedMachine:
    return SimulatedMachine(cost=cost, peak=peak, fails=fails, noise=0.02, persistence_gain=0.05, seed=3)


def kept_study(path: Path, **facts: Any) -> Result:
    """Write the file of a study of the simulated machine, and return its result; studies of a file are added to."""
    if path.exists():
        return keep_study(path, facts)
    result, content = kept(tuple(facts.items()))
    path.write_bytes(content)
    return result


def keep_study(path: Path, facts: dict[str, Any]) -> Result:
    described = gpu_facts(**{**NAMES, **facts})
    with closing(StudyStorage(path)) as storage:
        result = tuner_of(machine(), few_of(described, num_workers="0,4,16"), described, host(8)).result(storage)
        storage.finish()
    return result


@cache
def kept(facts: tuple[tuple[str, Any], ...]) -> tuple[Result, bytes]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.study"
        return keep_study(path, dict(facts)), path.read_bytes()


@cache
def simulated_result() -> Result:
    """The result of one such run, which is kept nowhere."""
    facts = gpu_facts(**NAMES)
    space = few_of(facts, amp="off,bf16,fp16", batch_size="32..1024", num_workers="0,4,12,16")
    return tuner_of(machine(), space, facts, host(8)).result()


def unfinished(path: Path) -> RecordedStudy:
    """A study whose run was cut off after its baseline and some failures."""
    lines = path.read_bytes().split(b"\n")
    cut = next(index for index, line in enumerate(lines) if b"autotune:run" in line)
    path.write_bytes(b"\n".join(lines[:cut]) + b"\n")
    return read_study(path)


def only_failures() -> RecordedStudy:
    history = tuple(examples.failed_trial(number=number, details="their traceback") for number in range(3))
    return RecordedStudy(location="a", name="autotune-a-1", others=(), made_on={}, history=history, result=None)
