"""One loaded workload in the process, or in the rank, that measures it."""

from __future__ import annotations

import gc
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autotune.cgroup import oom_kills
from autotune.config import Config
from autotune.errors import UsageError
from autotune.host import inspect_host
from autotune.measure.failure import classify
from autotune.measure.ranks import raise_failure
from autotune.measure.sharding import share_of
from autotune.measure.team import ALONE, Team
from autotune.measure.together import as_one
from autotune.records import Attempt, Measurement, Outcome, Request
from autotune.workload import Workload

__all__ = ["Session"]

ROOT = Path("/")
UNUSED = (
    "where not every parameter takes part in every step, pass "
    "Workload(parallelize=lambda model: DistributedDataParallel(model, find_unused_parameters=True))"
)


class Session:
    """One loaded workload, and the warm cell of the configurations measured last.

    Of several ranks each has one of its own, and all are asked the same.
    """

    def __init__(self, workload: Workload, device: str, team: Team = ALONE) -> None:
        from autotune.measure.device import open_device

        self._whole, self._workload = workload, share_of(workload, team)
        self._team = team
        self._device = open_device(device, team)
        self._options: tuple[str, ...] = ()
        """What was applied to the model; it stays."""
        self._is_parallel = False
        self._key: tuple[Any, ...] | None = None
        self._cell: Any = None

    def facts(self) -> dict[str, Any]:
        """Describe the workload and the devices of all ranks."""
        from autotune.measure.inspect import inspect

        facts = inspect(self._whole, self._device, self._team.size)
        others = tuple(uuid for uuid in self._team.gather(facts.device_uuid)[1:] if uuid)
        return asdict(replace(facts, other_devices=others or facts.other_devices))

    def measure(self, config: Config, request: Request) -> Attempt:
        """Measure one configuration, or one part of it; what goes wrong becomes an outcome.

        Of several ranks every one returns what all have found. One that fails ends its part there and then
        (``RankFailedError``), since it cannot meet the others any more.
        """
        config.apply_threads()
        kills = oom_kills(ROOT) or 0
        try:
            attempt = self._measure(config, request)
        except Exception as error:
            outcome, message, details = classify(error, (oom_kills(ROOT) or 0) - kills)
            attempt = Attempt(outcome=outcome, message=message, details=details)
            if self._team.size == 1:
                return attempt
            message = f"rank {self._team.rank} of {self._team.size}: {message}{_way_out(error)}"
            raise_failure(asdict(replace(attempt, message=message)), error)
        found = self._team.gather(attempt)
        if any(each.outcome is Outcome.SUSPECT for each in found):
            self._key = None  # the next one warms up again, in every rank, for a ceiling to be trusted
        return as_one(found) if len(found) > 1 else found[0]

    def _measure(self, config: Config, request: Request) -> Attempt:
        looks = {
            "loader": self._look_at_loader,
            "compute": self._look_at_step,
            "numerics": self._look_at_losses,
            "anatomy": self._look_inside,
            "trace": self._trace,
        }
        return looks.get(request.part, self._train)(config, request)

    def _look_at_loader(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.looks import look_at_loader

        trace = look_at_loader(self._workload, config.batch_size, self._device, request.seconds, self._team.size)
        return Attempt(outcome=Outcome.OK, loader=trace)

    def _look_at_step(self, config: Config, request: Request) -> Attempt:
        cell = self._open_cell(config)
        outcome = Outcome.SUSPECT if cell.disturbances else Outcome.OK
        return Attempt(outcome=outcome, compute=cell.compute, message="; ".join(cell.disturbances))

    def _look_at_losses(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.numerics import check_numerics

        if config.options:
            self._require_options(())  # plain fp32 comes first
        self._drop_cell()  # its optimizer needs memory that is wanted here
        self._options = config.options
        check = check_numerics(self._workload, config, self._device, request.seconds)
        return Attempt(outcome=Outcome.OK, numerics=check)

    def _look_inside(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.anatomy import look_inside

        self._take_options(config)
        self._drop_cell()  # for its memory, and because the look trains with another optimizer
        anatomy = look_inside(self._workload, config, self._device, request.seconds)
        return Attempt(outcome=Outcome.OK, anatomy=anatomy)

    def _trace(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.trace import trace_steps

        trace = trace_steps(self._workload, config, self._open_cell(config), self._device, request)
        self._drop_cell()  # the memory that the profiler took would count as that of the next configuration
        return Attempt(outcome=Outcome.OK, trace=trace)

    def _make_parallel(self) -> None:
        """Wrap the model in the user's own way, once: it cannot be wrapped again, nor taken out."""
        if self._team.size > 1 and self._workload.parallelize is not None and not self._is_parallel:
            model = self._workload.parallelize(self._workload.model.to(self._device.torch_device))
            self._workload, self._is_parallel = replace(self._workload, model=model), True

    def _drop_cell(self) -> None:
        if self._cell is not None:
            self._cell.step.close()
        self._key = self._cell = None
        gc.collect()  # a step holds itself through its optimizer

    def _train(self, config: Config, request: Request) -> Attempt:
        from autotune.measure.benchmark import measure

        cell = self._open_cell(config)
        measurement = measure(self._workload, config, cell, self._device, request, self._team)
        reason = _reason_against(measurement, inspect_host().for_rank(self._team.size).memory_bytes)
        if reason is not None:
            return Attempt(outcome=reason[0], message=reason[1])
        is_disturbed = bool(measurement.conditions.disturbances or cell.disturbances)
        outcome = Outcome.SUSPECT if is_disturbed else Outcome.OK
        notes = dict.fromkeys((*measurement.notes, *cell.disturbances))
        return Attempt(outcome=outcome, measurement=measurement, message="; ".join(notes))

    def _open_cell(self, config: Config) -> Any:
        from autotune.measure.cell import open_cell

        key = (config.batch_size, config.amp, config.accumulation_steps, config.options)
        if key != self._key:
            self._take_options(config)
            self._drop_cell()
            self._make_parallel()
            self._device.forget_peaks()
            self._cell = open_cell(self._workload, config, self._device, self._team)
            self._key = key
        return self._cell

    def _take_options(self, config: Config) -> None:
        """Note the options that are about to be applied, to a model that has none others."""
        self._require_options((), config.options)
        self._options = config.options

    def _require_options(self, *allowed: tuple[str, ...]) -> None:
        """Refuse to measure with options of another configuration: they cannot be taken off a model."""
        if self._options not in allowed:
            raise UsageError(f"this session's model has {', '.join(self._options)}: open another session")


def _way_out(error: Exception) -> str:
    """Return what to pass where DistributedDataParallel asks for an argument of its own."""
    if "find_unused_parameters" not in str(error):
        return ""
    return f"; {UNUSED}"


def _reason_against(measurement: Measurement, limit: int) -> tuple[Outcome, str] | None:
    """Return why a configuration that could be timed cannot be used all the same."""
    if measurement.loss is not None and not math.isfinite(measurement.loss):
        return Outcome.NUMERICS, f"the loss became {measurement.loss}"
    needed = measurement.epoch_host_memory_bytes
    if needed is not None and needed > limit:
        return Outcome.HOST_OOM, (
            f"the loader workers' memory grows: by the end of an epoch {needed / 2**30:.1f} of {limit / 2**30:.1f} GiB "
            "would be needed; keep large data in arrays or tensors, of which workers do not make copies"
        )
    return None
