"""Whether a mixed precision, or an option, trains like plain fp32. Pure: no clock, no torch, no I/O."""

from __future__ import annotations

import math
from statistics import fmean

from autotune.probes import NumericsCheck

__all__ = ["DEVIATION", "reason_against"]

DEVIATION = 0.05
"""Share of the loss by which a precision may always deviate from fp32."""
SPREADS = 3.0
"""The same in units of what another order of the batches and other random numbers make of the loss in fp32."""
SMALL = 0.01
"""Share of the first loss below which a loss is as good as zero: it does not shrink the deviation that is allowed."""
OVERFLOW_SHARE = 0.1
"""Share of the steps whose gradients may be not finite where no scaler takes care of them."""


def reason_against(check: NumericsCheck, amp: str, option: str | None = None) -> str | None:
    """Return why a precision is not to be trusted with this model, in plain words, or ``None``.

    Where an option was added to what is trusted, the words are about the option.
    Where fp32 itself does not stay finite there is nothing to compare with. This is a smoke test over some twenty
    steps: what it rejects is broken, what it accepts may still diverge later.
    """
    reference, steps = check.reference_losses, len(check.losses)
    name, there = (option, f"with {option}") if option else (amp, f"in {amp}")
    if not all(map(math.isfinite, reference)):
        return f"{name} cannot be compared with fp32, whose own loss does not stay finite"
    bad = next((number for number, loss in enumerate(check.losses, 1) if not math.isfinite(loss)), None)
    if bad is not None:
        return f"{there} the loss becomes {check.losses[bad - 1]} at step {bad} of {steps}, in fp32 it stays finite"
    if not check.settles:
        return f"{there} gradients overflow at every scale of the loss"
    if len(check.overflows) > OVERFLOW_SHARE * steps:
        return f"{there} the gradients of {len(check.overflows)} of {steps} steps are not finite"
    late = slice(steps // 2, None)
    expected, found = fmean(reference[late]), fmean(check.losses[late])
    scale = max(fmean(map(abs, reference[late])), SMALL * abs(reference[0]))
    if abs(found - expected) > max(DEVIATION * scale, SPREADS * _spread(check)):
        return f"{there} the loss is {found:.3g} after {steps} steps on the same batches, in fp32 {expected:.3g}"
    return None


def _spread(check: NumericsCheck) -> float:
    """Return how far two runs in fp32 are apart at most, by their means over both halves and over all steps."""
    if not all(map(math.isfinite, check.other_losses)):
        return 0.0
    middle = len(check.reference_losses) // 2
    parts = (slice(None, middle), slice(middle, None), slice(None))
    return max(abs(fmean(check.other_losses[part]) - fmean(check.reference_losses[part])) for part in parts)
