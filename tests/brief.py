"""The command line with a least budget of seconds: ``python -m tests.brief``, as ``python -m autotune``."""

from __future__ import annotations

import sys

import autotune.limits
from autotune.cli import main

autotune.limits.LEAST_BUDGET = 1.0

if __name__ == "__main__":
    sys.exit(main())
