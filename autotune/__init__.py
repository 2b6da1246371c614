"""autotune: the fastest safe way to train your PyTorch model on your dataset on this machine, with proof.

The public names are imported on first use, so ``import autotune`` loads neither torch nor optuna.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.accumulation import GradientAccumulator as GradientAccumulator
    from autotune.checking import Check as Check
    from autotune.checking import check as check
    from autotune.config import Config as Config
    from autotune.config import load_config as load_config
    from autotune.diagnosing import Diagnosis as Diagnosis
    from autotune.diagnosing import diagnose as diagnose
    from autotune.errors import AutotuneError as AutotuneError
    from autotune.exporting import Export as Export
    from autotune.exporting import export as export
    from autotune.finding import Cause as Cause
    from autotune.finding import Finding as Finding
    from autotune.records import Measurement as Measurement
    from autotune.records import Outcome as Outcome
    from autotune.records import Trial as Trial
    from autotune.result import RecordedStudy as RecordedStudy
    from autotune.result import Result as Result
    from autotune.search.reading import read_study as read_study
    from autotune.tuning import best_config as best_config
    from autotune.tuning import tune as tune
    from autotune.workload import Workload as Workload

_HOMES = {
    "AutotuneError": "errors",
    "Cause": "finding",
    "Check": "checking",
    "Config": "config",
    "Diagnosis": "diagnosing",
    "Export": "exporting",
    "Finding": "finding",
    "GradientAccumulator": "accumulation",
    "Measurement": "records",
    "Outcome": "records",
    "RecordedStudy": "result",
    "Result": "result",
    "Trial": "records",
    "Workload": "workload",
    "best_config": "tuning",
    "check": "checking",
    "diagnose": "diagnosing",
    "export": "exporting",
    "load_config": "config",
    "read_study": "search.reading",
    "tune": "tuning",
}

__all__ = [
    "AutotuneError",
    "Cause",
    "Check",
    "Config",
    "Diagnosis",
    "Export",
    "Finding",
    "GradientAccumulator",
    "Measurement",
    "Outcome",
    "RecordedStudy",
    "Result",
    "Trial",
    "Workload",
    "best_config",
    "check",
    "diagnose",
    "export",
    "load_config",
    "read_study",
    "tune",
]


_INTEGRATIONS = ("accelerate", "lightning", "transformers")
"""Modules of this package, named after what they are for."""


def __getattr__(name: str) -> Any:
    if name in _INTEGRATIONS:
        return import_module(f"autotune.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    return getattr(import_module(f"autotune.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted((*__all__, *_INTEGRATIONS))
