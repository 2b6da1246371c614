"""A configuration as other tools take it: ``export(config, "lightning")``. Pure: none of them is imported."""

from __future__ import annotations

from autotune.config import Config
from autotune.errors import UsageError
from autotune.exports.accelerate import ACCELERATE
from autotune.exports.deepspeed import DEEPSPEED
from autotune.exports.lightning import LIGHTNING
from autotune.exports.scripts import PYTHON, SHELL, TORCHRUN
from autotune.exports.target import Export, Gap, Target
from autotune.exports.transformers import TRANSFORMERS

__all__ = ["TARGETS", "Export", "Gap", "export"]

TARGETS: dict[str, Target] = {
    target.name: target for target in (LIGHTNING, TRANSFORMERS, ACCELERATE, DEEPSPEED, TORCHRUN, SHELL, PYTHON)
}


def export(config: Config, target: str) -> Export:
    """Return a configuration as a tool takes it: its arguments, a text to use them, and the knobs without an argument.

    Raises ``UsageError`` for a tool that is not one of ``TARGETS``.
    """
    if target not in TARGETS:
        raise UsageError(f"--to {target}: allowed: {', '.join(TARGETS)}")
    return TARGETS[target].export(config)
