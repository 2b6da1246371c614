"""A trace of real training steps: a file for a trace viewer, and the longest operations."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from autotune.config import Config
from autotune.errors import UsageError
from autotune.measure.device import Device
from autotune.measure.loader import BatchStream, open_stream
from autotune.measure.rank_group import ALONE, RankGroup
from autotune.measure.step_probe import WarmStep
from autotune.output import TRACED, regular_file
from autotune.probes import Trace, TracedOperation
from autotune.records import Request
from autotune.workload import Workload

WARM_STEPS = 3
LEAST_STEPS, MOST_STEPS = 2, 8
"""Steps in a trace; each may hold thousands of events."""
MOST_OPERATIONS = 12
STEP_NAME = "training step"


def trace_steps(
    workload: Workload, config: Config, warm: WarmStep, device: Device, request: Request, group: RankGroup = ALONE
) -> Trace:
    """Train with the real loader: first until its queue was used once, then a few steps with torch's profiler on.

    Writes the trace to ``request.trace_path``, compressed where that ends in ``.gz``, whole or not at all; about half
    of ``request.seconds`` goes to either part. Of several ranks it is the first one's. Raises ``UsageError`` when the
    file cannot be written.
    """
    if request.trace_path is None:
        raise UsageError("a trace needs a file to be written to: pass trace_path")
    path = Path(request.trace_path)
    with _explained(path):
        path = regular_file(path)
        folder = TemporaryDirectory(prefix=".", dir=path.parent)
    with folder:
        warm.step.non_blocking = config.pin_memory  # the step may have been opened for another loader
        with closing(open_stream(workload, config)) as stream:
            _warm_up(stream, warm, config, request.seconds / 2, group)
            profiler, steps = _profile(stream, warm, device, request.seconds / 2, group)
        with _explained(path):
            file = Path(folder.name, path.name)  # the profiler looks at the ending
            profiler.export_chrome_trace(str(file))
            if not file.stat().st_size:  # it only logs its errors
                raise OSError(errno.EIO, "the profiler wrote nothing")
            if group.leads:
                file.replace(path)
    return Trace(path=request.trace_path, operations=_longest_operations(profiler, device, steps), steps=steps)


def _warm_up(stream: BatchStream, warm: WarmStep, config: Config, seconds: float, group: RankGroup) -> None:
    limit, most = time.perf_counter() + seconds, WARM_STEPS + config.num_workers * (config.prefetch_factor or 0)
    for _ in group.together(lambda made: made > 0 and time.perf_counter() > limit, most):
        warm.step(next(stream), stream.samples)


def _profile(stream: BatchStream, warm: WarmStep, device: Device, most: float, group: RankGroup) -> tuple[profile, int]:
    device.synchronize()
    # the accelerator's own records only where it trains
    activities = supported_activities() if device.is_asynchronous else {ProfilerActivity.CPU}
    limit, steps = time.perf_counter() + most, 0
    with profile(activities=activities) as profiler:
        for steps in group.together(  # noqa: B007
            lambda made: made >= LEAST_STEPS and time.perf_counter() >= limit, MOST_STEPS
        ):
            with record_function(STEP_NAME):
                warm.step(next(stream), stream.samples)
        device.synchronize()
        profiler.add_metadata(*TRACED)
    return profiler, steps


def _longest_operations(profiler: profile, device: Device, steps: int) -> tuple[TracedOperation, ...]:
    """Return the operations by their own time, on the accelerator the time of the kernels that each started."""
    attribute = "self_device_time_total" if device.is_asynchronous else "self_cpu_time_total"
    times = {
        total: getattr(total, attribute) * 1e-6 / steps
        for total in profiler.key_averages()  # kernels are in what started them
        if total.device_type.name == "CPU" and total.key != STEP_NAME and getattr(total, attribute) > 0
    }
    return tuple(
        TracedOperation(name=total.key, seconds=times[total], calls=total.count / steps)
        for total in sorted(times, key=lambda total: -times[total])[:MOST_OPERATIONS]
    )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path}: the trace cannot be written: {error.strerror}; name a file in a folder that exists and can be "
            "written to"
        ) from None
