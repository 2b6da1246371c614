"""The first losses of a script that is started anew, with the settings of a configuration."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import torch
from greenlet import getcurrent, greenlet

from autotune.config import Config
from autotune.measure.loader import begin_anywhere
from autotune.records import ScriptFacts
from autotune.sites import apply_answer
from autotune.workload import Script

STEPS = 20
"""Backward passes whose losses are read."""
_left: list[greenlet] = []
"""Scripts that were left: one that nothing refers to any more would be ended by an exception, and catch that."""


def first_losses(script: Script, config: Config, known: ScriptFacts | None, *, seed: int = 0) -> list[float]:
    """Run a script up to its last loss that is read, and return them; fewer where it ends before.

    Random numbers begin with the ``seed``, unless the script seeds them otherwise. Where it is known to have no
    autocast, it is cast in the configuration's precision. Raises whatever the script raises.
    """
    found, backward, here = list[float](), torch.autograd.backward, getcurrent()

    def go_back(tensors: Any, *given: Any, **options: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        found.append(sum(float(root.detach().sum()) for root in roots))
        if len(found) >= STEPS:
            here.switch()  # for good: nothing that the script catches keeps it going
        backward(tensors, *given, **options)

    begin_anywhere(seed)
    torch.autograd.backward = go_back
    is_cast = known is not None and known.present.amp == "off"
    apply_answer(config, known.origins if known else (), script, lambda *_: None, is_cast=is_cast)
    sys.path.insert(0, str(script.folder))
    reading = greenlet(script.run)
    _left.append(reading)
    with suppress(SystemExit):
        reading.switch()
    return found
