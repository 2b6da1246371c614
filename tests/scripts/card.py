"""A fake accelerator for a script: where a measuring process runs it, that measures on this card too."""

from __future__ import annotations

import sys

from tests.accelerator import Card

CARD = Card()

if "autotune.measure.session" in sys.modules:
    from autotune.measure import benchmark, session, step_probe
    from tests.accelerator import FakeAccelerator, counters_of

    DEVICE = FakeAccelerator(CARD)
    session.open_device = lambda *given: DEVICE  # type: ignore[assignment]
    benchmark.snapshot = step_probe.snapshot = counters_of(CARD)
