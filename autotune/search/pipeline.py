"""How fast a DataLoader feeds a training step: the recursion that its in-order loop follows.

With W workers and K = W * prefetch_factor batches in flight, batch k is built at

    f[k] = max(y[k - K], f[k - W]) + S[k]

(its place in the queue is free, its worker is free, then S[k] seconds of building), and handed over at

    y[k] = max(f[k], y[k - 1] + c) + h

with c seconds of training and h of receiving a batch. It follows from the source of torch's DataLoader: tasks are dealt
in turn, one more for each batch handed out, and batches are yielded in order.

Pure: arrays in, arrays out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["pipeline_rates", "scaled_builds"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SETTLING = 128
"""Batches before the rate is taken; a queue that fills or drains for longer changes it little."""
LEAST_WINDOW = 256
LEAST_BURSTS = 8
"""Batches over which the rate is taken, and bursts of the most workers."""
NOTHING = 1e-9
"""Seconds that stand for none where a time is divided by."""
LEAST_DEVIATION = 0.2
"""A batch is not built faster than this share of the mean, however the spread is scaled."""


def pipeline_rates(
    builds: Floats, row: Ints, workers: Ints, prefetch: Ints, step_seconds: Floats, receive_seconds: Floats
) -> Floats:
    """Return batches per second for many configurations with workers at once.

    ``builds`` holds sequences of build times in seconds, one a row; ``row`` says which one each configuration meets,
    over and over. The other arrays have one entry per configuration. Costs some ten microseconds for each batch of the
    window, whatever the number of configurations up to a thousand.
    """
    in_flight, columns, wide = workers * prefetch, np.arange(len(workers)), len(workers)
    window = max(LEAST_WINDOW, LEAST_BURSTS * int(workers.max()))
    before = int(in_flight.max())  # rows of zeros: every worker and every place is free at the start
    built = np.zeros((before + SETTLING + window, len(workers)))
    taken = np.zeros_like(built)
    sequence = np.ascontiguousarray(np.maximum(builds, NOTHING).T)
    place, worker = columns - in_flight * wide, columns - workers * wide  # where y[k - K] and f[k - W] lie, less k rows
    for k in range(before, len(built)):
        free = np.maximum(taken.take(place + k * wide), built.take(worker + k * wide))
        built[k] = free + sequence[(k - before) % len(sequence)].take(row)
        taken[k] = np.maximum(built[k], taken[k - 1] + step_seconds) + receive_seconds
    first = before + SETTLING - 1
    batches = window // workers * workers  # batches come in bursts of all workers
    rates: Floats = batches / (taken[first + batches, columns] - taken[first])
    return rates


def scaled_builds(builds: Floats, mean: float, share: float) -> Floats:
    """Return build times with another mean, for batches of ``share`` times as many samples.

    Their spread is that of a sum of so many samples, each on its own: relative to the mean it shrinks with the root.
    """
    deviation = (builds / max(builds.mean(), NOTHING) - 1) / np.sqrt(share)
    factors = np.maximum(1 + deviation, LEAST_DEVIATION)
    scaled: Floats = mean * factors / factors.mean()
    return scaled
