"""autotune: the fastest safe way to train your PyTorch model on your dataset on this machine, with proof.

The public names are imported on first use, so ``import autotune`` loads neither torch nor optuna.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.accumulation import GradientAccumulator as GradientAccumulator
    from autotune.api import best_config as best_config
    from autotune.api import tune as tune
    from autotune.comparison import check as check
    from autotune.comparison import compare as compare
    from autotune.config import Config as Config
    from autotune.config import load_config as load_config
    from autotune.diagnosis.findings import Cause as Cause
    from autotune.diagnosis.findings import Diagnosis as Diagnosis
    from autotune.diagnosis.findings import Finding as Finding
    from autotune.diagnostics import diagnose as diagnose
    from autotune.errors import AutotuneError as AutotuneError
    from autotune.errors import ConfigFileError as ConfigFileError
    from autotune.errors import InterruptedRunError as InterruptedRunError
    from autotune.errors import NothingFeasibleError as NothingFeasibleError
    from autotune.errors import StorageError as StorageError
    from autotune.errors import UsageError as UsageError
    from autotune.errors import UserCodeError as UserCodeError
    from autotune.exports import Export as Export
    from autotune.exports import export as export
    from autotune.item_store import stored as stored
    from autotune.outcome import Outcome as Outcome
    from autotune.proof import Comparison as Comparison
    from autotune.records import Measurement as Measurement
    from autotune.records import Trial as Trial
    from autotune.report.result import RecordedStudy as RecordedStudy
    from autotune.report.result import Result as Result
    from autotune.result import Check as Check
    from autotune.search.read import read_study as read_study
    from autotune.search.sampler import PredictiveSampler as PredictiveSampler
    from autotune.workload import Workload as Workload

_HOMES = {
    "AutotuneError": "errors",
    "Cause": "diagnosis.findings",
    "Check": "result",
    "Comparison": "proof",
    "Config": "config",
    "ConfigFileError": "errors",
    "Diagnosis": "diagnosis.findings",
    "Export": "exports",
    "Finding": "diagnosis.findings",
    "GradientAccumulator": "accumulation",
    "InterruptedRunError": "errors",
    "Measurement": "records",
    "NothingFeasibleError": "errors",
    "Outcome": "outcome",
    "PredictiveSampler": "search.sampler",
    "RecordedStudy": "report.result",
    "Result": "report.result",
    "StorageError": "errors",
    "Trial": "records",
    "UsageError": "errors",
    "UserCodeError": "errors",
    "Workload": "workload",
    "best_config": "api",
    "check": "comparison",
    "compare": "comparison",
    "diagnose": "diagnostics",
    "export": "exports",
    "load_config": "config",
    "read_study": "search.read",
    "stored": "item_store",
    "tune": "api",
}

__all__ = [*_HOMES, "__version__"]
_INTEGRATIONS = ("accelerate", "lightning", "transformers")
"""Modules of ``autotune.integrations``, named after what they are for."""


def __getattr__(name: str) -> Any:
    if name in _INTEGRATIONS:
        return import_module(f"autotune.integrations.{name}")
    if name == "__version__":
        from autotune.flags import installed_version

        return installed_version()
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    return getattr(import_module(f"autotune.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted((*__all__, *_INTEGRATIONS))
