"""What torch keeps for a whole process and what changes its speed: read here, set where it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

__all__ = ["differing_settings", "set_settings"]

Setter = Callable[[Any], object]


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"


def _set_deterministic(mode: str) -> None:
    torch.use_deterministic_algorithms(mode != "off", warn_only=mode == "warn")


def _set_cudnn(name: str) -> Setter:
    return lambda value: setattr(torch.backends.cudnn, name, value)


SETTINGS: dict[str, tuple[Any, Callable[[], Any], Setter]] = {
    "float32_matmul_precision": (
        "highest",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "cudnn.allow_tf32": (True, lambda: torch.backends.cudnn.allow_tf32, _set_cudnn("allow_tf32")),
    "cudnn.benchmark": (False, lambda: torch.backends.cudnn.benchmark, _set_cudnn("benchmark")),
    "cudnn.deterministic": (False, lambda: torch.backends.cudnn.deterministic, _set_cudnn("deterministic")),
    "deterministic_algorithms": ("off", _deterministic, _set_deterministic),
    "anomaly_detection": (False, torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "default_dtype": (
        "float32",
        lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        lambda name: torch.set_default_dtype(getattr(torch, name)),
    ),
}
"""Each setting with torch's default, what reads it and what sets it."""


def differing_settings() -> dict[str, Any]:
    """Return the settings of this process that are not torch's defaults, as plain values."""
    found = {}
    for name, (default, read, _) in SETTINGS.items():
        with suppress(RuntimeError):  # torch refuses where its old and its new names for TF32 were mixed
            if (value := read()) != default:
                found[name] = value
    return found


def set_settings(settings: Mapping[str, Any]) -> None:
    """Set what another process has."""
    for name, value in settings.items():
        SETTINGS[name][2](value)
