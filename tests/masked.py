"""A workload whose import leaves its process one CPU, as libraries with OpenMP may."""

from __future__ import annotations

import os
from functools import partial

from tests.limited import Decoded, trained_by_sleep

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

build = partial(trained_by_sleep, Decoded())
