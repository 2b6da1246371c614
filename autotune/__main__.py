"""Run autotune's command line with ``python -m autotune``."""

from autotune.cli import main

raise SystemExit(main())
