"""A clock of a training script's own: it prints samples per second, and ends training after so many seconds."""

from __future__ import annotations

import sys
import time

WARM = 2.0
"""Seconds before samples count."""


class Clock:
    """Counts samples after a warm-up; ``--seconds 10`` ends the script."""

    def __init__(self) -> None:
        self.most = float(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else 1000.0
        self.begin = time.perf_counter()
        self.counted, self.since = 0, 0.0

    def step(self, samples: int) -> None:
        now = time.perf_counter()
        if now - self.begin < WARM:
            return
        self.counted, self.since = (self.counted + samples, self.since) if self.since else (0, now)
        if now - self.begin > self.most:
            print(f"own clock: {self.counted / (now - self.since):.1f} samples/s", flush=True)
            sys.exit()
