"""A neighbour that takes one CPU in random bursts, half of the time.

python -m studies.busy.neighbour [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import time

BURST_SECONDS = 5.0
"""How long a burst lasts on average, and a pause (exponentially distributed)."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Take one CPU in random bursts.")
    parser.add_argument("--seed", type=int, default=0)
    chance = random.Random(parser.parse_args().seed)
    while True:
        end = time.monotonic() + chance.expovariate(1 / BURST_SECONDS)
        while time.monotonic() < end:
            sum(range(10_000))
        time.sleep(chance.expovariate(1 / BURST_SECONDS))


if __name__ == "__main__":
    main()
