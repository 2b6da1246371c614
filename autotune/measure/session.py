"""One loaded workload in the process, or in the rank, that measures it."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from autotune.config import Config, StepKey
from autotune.encoding import to_json
from autotune.errors import ScriptEndsError, UsageError
from autotune.limits import format_size, percent
from autotune.machine.host import inspect_host, oom_kills
from autotune.measure.benchmark import measure
from autotune.measure.code_probe import look_inside
from autotune.measure.device import Device, open_device
from autotune.measure.failures import classify
from autotune.measure.gradient_noise import measure_noise
from autotune.measure.loader import begin_anywhere, samples_of_batches
from autotune.measure.loader_probe import look_at_loader
from autotune.measure.numerics_probe import check_numerics
from autotune.measure.rank_group import ALONE, RankGroup, as_one, share_of
from autotune.measure.rank_launch import raise_failure
from autotune.measure.remedies import store_items, with_remedy
from autotune.measure.script import ScriptLoop
from autotune.measure.script_step import ScriptStep
from autotune.measure.step_probe import open_step
from autotune.measure.workload_facts import class_of, inspect
from autotune.outcome import Outcome
from autotune.records import Attempt, Measurement, Request, ScriptFacts
from autotune.workload import Workload

FOREIGN_GROWTH = 2**29
"""Bytes that others must have taken of a card; libraries that a session loads late take some hundred megabytes."""
UNUSED = (
    "where not every parameter takes part in every step, pass "
    "Workload(parallelize=lambda model: DistributedDataParallel(model, find_unused_parameters=True))"
)


class Session:
    """One loaded workload, and the warm step of the configurations measured last.

    Of several ranks each has one of its own, and all are asked the same.
    """

    def __init__(
        self,
        workload: Workload,
        device: str | Device,
        group: RankGroup = ALONE,
        script: ScriptLoop | None = None,
        *,
        num_workers: int = 0,
    ) -> None:
        """Take the workload, and how many workers its loader has today."""
        self._script, self._num_workers = script, num_workers
        self._whole, self._workload = workload, workload if script else share_of(workload, group)
        self._group = group
        self._device = open_device(device, group) if isinstance(device, str) else device
        self._options: tuple[str, ...] = ()
        """The options on the model; they stay."""
        self._is_parallel = False
        self._key: StepKey | None = None
        self._warm: Any = None

    def facts(self) -> dict[str, Any]:
        """Describe the workload and the devices of all ranks."""
        facts = inspect(self._whole, self._device, self._group.size)
        others = tuple(uuid for uuid in self._group.gather(facts.device_uuid)[1:] if uuid)
        if self._script is not None:
            run, loaders, optimizers = self._script.run, self._script.loaders, self._script.optimizers
            origin, beside, is_fed = loaders.origin, loaders.origins_beside, loaders.counted is None
            own: Any = self._whole.batch_sampler(1) if self._group.size > 1 and self._whole.batch_sampler else None
            samples = self._group.gather(facts.epoch_samples if own is None else len(own) * own.batch_size)
            sites, own_amp = self._group.gather(origin.key), optimizers.precision
            modes = tuple(mode for mode in facts.amp_modes if mode != "fp16")  # which needs a scaler of the script's
            facts = replace(
                facts,
                fingerprint=run.fingerprint(facts.fingerprint),
                epoch_samples=sum(count or 0 for count in samples) if all(samples) else None,
                amp_modes=modes if own_amp == "off" else ("off", own_amp),
                loader_call=origin.call if is_fed else None,
                loader_site=origin.key if is_fed else None,
                loop=run.source.loop,
                other_loader_calls=tuple(each.call for each in beside),
                other_loader_sites=tuple(each.key for each in beside),
                sites_of_ranks=tuple(sites) if len(set(sites)) > 1 else (),
                shared_lines=loaders.shared_lines,
                autocast_call=optimizers.autocast_call,
                optimizer=class_of(optimizers.known.values()),
            )
        return asdict(replace(facts, other_devices=others or facts.other_devices, batch_samples=self._batch_samples))

    @cached_property
    def _batch_samples(self) -> int | None:
        return samples_of_batches(self._whole, self._num_workers)

    def script(self) -> dict[str, Any] | None:
        """Describe the script that trains; ``None`` without a script."""
        if self._script is None:
            return None
        loaders, run = self._script.loaders, self._script.run
        way = run.hold.means if run.hold else None
        existing = loaders.existing()
        origins = (loaders.origin, *loaders.origins_beside) if loaders.counted is None else ()
        own = {} if self._batch_samples is None else {"batch_size": self._batch_samples}
        facts = ScriptFacts(
            present=Config(**{**existing.present, **own, "amp": self._script.optimizers.precision}),
            is_batch_fixed=bool(own or existing.fixed or loaders.beside),
            sites=tuple(self._group.gather(loaders.own_site.key)),
            origins=tuple(each.key for each in origins),
            device=str(self._device.torch_device),
            batches=loaders.batches,
            missing=loaders.missing,
            earlier=loaders.earlier,
            beside=tuple(loaders.beside.items()),
            told=tuple(run.source.told(loaders.loop, loaders.kept, way, None if origins else loaders.own_site.text)),
            holds=way,
            counted=loaders.counted,
        )
        return to_json(facts)

    def measure(self, config: Config, request: Request, room: Sequence[int] = ()) -> Attempt:
        """Measure one configuration, or one part of it; a failure becomes an outcome.

        ``room`` is the most device memory that each rank could have so far, in bytes: where there is much less now, the
        want of it is others' doing.

        Raises ``ScriptEndsError``. Every rank returns the result of all. A rank that fails ends its part there and then
        (``RankFailedError``), since it cannot meet the others any more.
        """
        config.apply_threads()
        kills = oom_kills() or 0
        try:
            attempt = self._measure(config, request)
        except ScriptEndsError:
            raise
        except Exception as error:
            outcome, message, details = classify(error, (oom_kills() or 0) - kills)
            if outcome is Outcome.DEVICE_OOM and (taken := self._taken_of(room)) > FOREIGN_GROWTH:
                outcome = Outcome.SUSPECT  # a smaller batch is not needed once they are gone
                message = f"others have taken {format_size(taken)} of the card's memory: {message}"
            attempt = Attempt(outcome=outcome, message=message, details=details)
            if self._group.size == 1:
                return attempt
            remedy = f"; {UNUSED}" if "find_unused_parameters" in str(error) else ""
            message = f"rank {self._group.rank} of {self._group.size}: {message}{remedy}"
            raise_failure(to_json(replace(attempt, message=message)), error)
        found = self._group.gather(attempt)
        if any(each.outcome is Outcome.SUSPECT for each in found):
            self._key = None  # the next one warms up again, in every rank, for a ceiling to be trusted
        return as_one(found) if len(found) > 1 else found[0]

    def _taken_of(self, room: Sequence[int]) -> int:
        """Return the bytes of this rank's ``room`` that cannot be had any more."""
        with suppress(RuntimeError):  # a device in a bad state answers every question with an error
            return sum(room[self._group.rank :][:1]) - self._device.memory_limit
        return 0

    def _measure(self, config: Config, request: Request) -> Attempt:
        looks = {
            "loader": self._look_at_loader,
            "compute": self._look_at_step,
            "numerics": self._look_at_losses,
            "noise": self._look_at_gradients,
            "anatomy": self._look_inside,
            "store": self._store,
        }
        return looks.get(request.part, self._train)(config, request)

    def _look_at_loader(self, config: Config, request: Request) -> Attempt:
        place = begin_anywhere(request.seed or 0)
        trace = look_at_loader(self._workload, config, self._device, request.seconds, place)
        message = f"others took {percent(trace.taken_share)} of the CPUs meanwhile" if trace.taken_share else ""
        return Attempt(outcome=Outcome.SUSPECT if message else Outcome.OK, payload=trace, message=message)

    def _look_at_step(self, config: Config, request: Request) -> Attempt:
        warm = self._open_step(config)
        outcome = Outcome.SUSPECT if warm.disturbances else Outcome.OK
        return Attempt(outcome=outcome, payload=warm.compute, message="; ".join(warm.disturbances))

    def _look_at_losses(self, config: Config, request: Request) -> Attempt:
        if config.options:
            self._require_options(())  # plain fp32 comes first
        self._drop_step()  # its optimizer needs memory that is wanted here
        self._options = config.options
        check = check_numerics(self._workload, config, self._device, request.seconds)
        return Attempt(outcome=Outcome.OK, payload=check)

    def _look_at_gradients(self, config: Config, request: Request) -> Attempt:
        self._take_options(config)
        self._drop_step()
        noise = measure_noise(self._workload, config, self._device, request.seconds)
        return Attempt(outcome=Outcome.OK, payload=noise)

    def _look_inside(self, config: Config, request: Request) -> Attempt:
        self._take_options(config)
        self._drop_step()  # for its memory, and because the look trains with another optimizer
        anatomy = look_inside(
            self._workload, config, self._device, request.seconds, self._script_step(config), self._group
        )
        return Attempt(outcome=Outcome.OK, payload=anatomy)

    def _store(self, config: Config, request: Request) -> Attempt:
        assert request.store
        return Attempt(outcome=Outcome.OK, payload=store_items(self._workload, request.store, request.seconds))

    def _drop_step(self) -> None:
        if self._warm is not None:
            self._warm.step.close()
        self._key = self._warm = None
        gc.collect()  # a step holds itself through its optimizer

    def _train(self, config: Config, request: Request) -> Attempt:
        if request.remedy:  # in a session of its own
            self._workload = with_remedy(self._workload, request, self._device.torch_device)
        warm = self._open_step(config, needs_ceiling=request.needs_ceiling)
        measurement = measure(self._workload, config, warm, self._device, request, self._group)
        reason = _reason_against(measurement, inspect_host().for_rank(self._group.size).memory_bytes)
        if reason is not None:
            return Attempt(outcome=reason[0], message=reason[1])
        is_disturbed = bool(measurement.conditions.disturbances or warm.disturbances)
        outcome = Outcome.SUSPECT if is_disturbed else Outcome.OK
        notes = dict.fromkeys((*measurement.notes, *warm.disturbances))
        return Attempt(outcome=outcome, payload=measurement, message="; ".join(notes))

    def _open_step(self, config: Config, *, needs_ceiling: bool = True) -> Any:
        if config.step_key != self._key:
            self._take_options(config)
            self._drop_step()
            # in the user's own way, once: a model cannot be wrapped again, nor taken out
            if self._group.size > 1 and self._workload.parallelize is not None and not self._is_parallel:
                model = self._workload.parallelize(self._workload.model.to(self._device.torch_device))
                self._workload, self._is_parallel = replace(self._workload, model=model), True
            self._device.forget_peaks()
            script = self._script_step(config)
            self._warm = open_step(self._workload, config, self._device, self._group, script, needs_ceiling)
            self._key = config.step_key
        return self._warm

    def _script_step(self, config: Config) -> ScriptStep | None:
        return ScriptStep(self._script, self._device, config.amp) if self._script else None

    def _take_options(self, config: Config) -> None:
        self._require_options((), config.options)
        self._options = config.options

    def _require_options(self, *allowed: tuple[str, ...]) -> None:
        if self._options not in allowed:
            raise UsageError(f"this session's model has {', '.join(self._options)}: open another session")


def _reason_against(measurement: Measurement, limit: int) -> tuple[Outcome, str] | None:
    if measurement.loss is not None and not math.isfinite(measurement.loss):
        return Outcome.NUMERICS, f"the loss became {measurement.loss}"
    needed = measurement.epoch_host_memory_bytes
    if needed is not None and needed > limit:
        return Outcome.HOST_OOM, (
            f"loader workers copy the dataset as they read it: an epoch would need {needed / 2**30:.1f} of "
            f"{limit / 2**30:.1f} GiB; keep large data in arrays or tensors, which they share"
        )
    return None
