"""Configurations that would not fit the machine, or would fail as others did, and why. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.config import Config
from autotune.limits import format_size
from autotune.outcome import Outcome
from autotune.records import Measurement, workers_with_data
from autotune.search.loader_model import LoaderModel
from autotune.search.observations import Observations
from autotune.search.step_model import LARGEST_STEP, MemoryModel

NO_DATA = "it has more loader workers than get data"
"""The reason not to try a configuration that is no faster than with fewer workers."""
LEAST_OWN = 0.5
"""Least share of a measured peak that is the training process's own, however much its workers are said to take."""


class Fitting:
    """Memory over batch size for device and host, and the room that there is."""

    def __init__(self, observations: Observations, loader: LoaderModel) -> None:
        self._observations = observations
        self._loader = loader
        self._limits: dict[str, int] = {}
        peaks: dict[tuple[str, str, tuple[str, ...]], dict[int, int]] = defaultdict(dict)
        for kind, config, peak, limit in self._peaks():
            self._limits[kind] = limit
            known = peaks[kind, config.amp, config.options]
            known[config.batch_size] = max(peak, known.get(config.batch_size, 0))
        if observations.device_limit is not None:
            self._limits["device"] = observations.device_limit
        self._measured = {key: MemoryModel(dict(sorted(known.items()))) for key, known in peaks.items()}
        self._models: dict[tuple[str, str, tuple[str, ...]], MemoryModel | None] = {}
        self._refusals: dict[tuple[object, ...], str | None] = {}

    def refusal(self, config: Config) -> str | None:
        """Return the reason why a configuration would not fit, or ``None``."""
        key = (config.batch_size, config.amp, config.options, config.num_workers, config.prefetch_factor)
        if key not in self._refusals:
            self._refusals[key] = self.refusal_in_flight(config) or self._refusal_of_memory(config)
        return self._refusals[key]

    def refusal_in_flight(self, config: Config) -> str | None:
        """Return the resource that batches in flight would lack, time included, or ``None``."""
        seconds = max(self._loader.trace(config.batch_size).build_seconds)
        timeout = self._observations.facts.loader_timeout
        if config.num_workers and timeout is not None and seconds > timeout:
            return f"a worker would take {seconds:.2g} s for a batch, but the loader's timeout is {timeout:.2g} s"
        files, most = self._loader.open_files(config), self._observations.host.open_files
        if config.num_workers and most is not None and files > most:
            return f"its batches in flight would need {files} open files; {most} are allowed (ulimit -n)"
        shared, shm = self._loader.shared_memory(config), self._observations.host.shm_bytes
        if shm is not None and shared > self._observations.memory_limit.beside(shm):
            needed, there = format_size(shared), format_size(shm)
            return f"its batches in flight would need {needed} of shared memory; /dev/shm has {there}"
        return None

    def _refusal_of_memory(self, config: Config) -> str | None:
        observations, memory_limit = self._observations, self._observations.memory_limit
        for kind, limit in self._limits.items():
            step = kind, config.amp, config.options
            if step not in self._models:
                self._models[step] = self._model(*step)
            if (model := self._models[step]) is None:
                continue
            own = self._measured.get(step, model)
            largest = LARGEST_STEP * max((own if config.amp == "off" else model).peaks)  # half precision takes less
            if config.batch_size > largest:
                return f"batches beyond {largest} are too far above the largest measured to predict their memory"
            bytes_needed = model.at(config.batch_size)
            is_limiting = kind == ("host" if observations.on_cpu else "device")
            may_use = memory_limit.of(limit) if is_limiting else memory_limit.beside(limit)
            if kind == "host":  # others, this process too, hold some of it while a trial runs
                bytes_needed += self._loader.memory(config)
                may_use = min(may_use, memory_limit.beside(observations.facts.obtainable_host_bytes or limit))
            if bytes_needed > may_use:
                needed, most, whole = map(format_size, (bytes_needed, may_use, limit))
                return f"it would need {needed} of {kind} memory; {most} of {whole} may be used"
        return None

    def _model(self, kind: str, amp: str, options: tuple[str, ...]) -> MemoryModel | None:
        """Return the model of precision and options, which borrows from the best known; unmeasured ones take that."""
        known = {(of_amp, own): model for (of, of_amp, own), model in self._measured.items() if of == kind}
        fewest = min((own for _, own in known), key=len, default=())
        plain = {of_amp: model for (of_amp, own), model in known.items() if own == fewest}
        most = max(plain.values(), key=lambda model: len(model.peaks), default=None)
        if most is None:
            return None
        usual = plain[amp].moved(most, never_more=most is plain.get("off")) if amp in plain else most
        own_model = known.get((amp, options))
        return usual if own_model is None else own_model.moved(usual)

    def _peaks(self) -> Iterator[tuple[str, Config, int, int]]:
        memory_limit = self._observations.host.memory_bytes
        looks = ((probe.config, probe.attempt.compute, 0) for probe in self._observations.step_probes)
        trials = (
            (each.config, each.measurement, self._loader.memory(each.config)) for each in self._observations.trials
        )
        for config, measured, of_loader in (*looks, *trials):
            if measured is not None:
                host = measured.host_memory_bytes
                yield "host", config, max(host - of_loader, round(LEAST_OWN * host)), memory_limit
                if measured.memory == "device":
                    yield "device", config, measured.peak_memory_bytes, measured.memory_limit_bytes


@dataclass(frozen=True, slots=True)
class _Failure:
    config: Config
    outcome: Outcome
    """The outcome that it came to, or would have."""
    text: str


def refusals_of(
    configs: Sequence[Config], unfit: Sequence[str | None], observations: Observations
) -> Iterator[str | None]:
    """Yield the reason not to try each configuration: it is ``unfit``, or a similar one has failed."""
    failures, of_workers = tuple(_failures(observations)), observations.worker_failures
    beyond = beyond_data(configs, observations)
    for config, refusal, is_beyond in zip(configs, unfit, beyond, strict=True):
        refusal = refusal or (NO_DATA if is_beyond else None)
        alike = (failure.text for failure in failures if _also_fails(config, failure))
        if len(of_workers) > 1 and config.num_workers:
            refusal = refusal or f"loader workers have failed {len(of_workers)} times: {of_workers[-1]}"
        yield refusal or next(alike, None)


def beyond_data(configs: Sequence[Config], observations: Observations) -> list[bool]:
    """Return whether each configuration has more workers than get data, and fewer that may be had are enough."""
    measured = [(trial.config, trial.measurement) for trial in observations.trials if trial.measurement]
    counts, most = {config.num_workers for config in configs}, dict[int, int]()
    for batch_size in {config.batch_size for config in configs}:
        if (got := workers_with_data(measured, batch_size)) is not None:
            most[batch_size] = min((count for count in counts if count >= got), default=got)
    return [config.num_workers > most.get(config.batch_size, config.num_workers) for config in configs]


def _failures(observations: Observations) -> Iterator[_Failure]:
    for trial in observations.trials:
        measured, ran = trial.measurement, _in_words(trial.config)
        if measured is None:
            yield _Failure(trial.config, trial.outcome, f"{ran} ended as {trial.outcome}")
        elif exceeds(measured, observations):
            outcome = Outcome.DEVICE_OOM if measured.memory == "device" else Outcome.HOST_OOM
            yield _Failure(trial.config, outcome, f"{ran} takes more memory than allowed")
    for probe in observations.probes:
        closes = probe.part == "compute" or not probe.attempt.outcome.is_chance  # other workers may work
        if probe.part in ("compute", "loader") and closes and not probe.attempt.found:
            text = f"{_in_words(probe.config)} ended as {probe.attempt.outcome} in a probe"
            yield _Failure(probe.config, probe.attempt.outcome, text)


def _in_words(config: Config) -> str:
    count = config.num_workers
    workers = "1 worker" if count == 1 else f"{count or 'no'} workers"
    return f"batch {config.batch_size} in {config.precision} with {workers}"


def _also_fails(config: Config, failure: _Failure) -> bool:
    """Return whether a configuration is to be expected to fail where another one did.

    It is where it needs more of the same memory; another failure may have been chance, so only its like is.
    """
    failed = failure.config
    if not set(failed.options) <= set(config.options):
        return False
    same_step = (config.amp, config.options) == (failed.amp, failed.options)
    same_batch, larger = config.batch_size == failed.batch_size, config.batch_size >= failed.batch_size
    more_workers = config.num_workers >= failed.num_workers
    more_in_flight = _in_flight(config) >= _in_flight(failed)
    by_chance = larger and more_workers if failed.num_workers else same_step and same_batch
    alike = {
        Outcome.SUSPECT: False,
        Outcome.UNPICKLABLE: config.num_workers > 0,
        Outcome.DEVICE_OOM: same_step and larger,
        Outcome.HOST_OOM: larger and more_workers and more_in_flight,
        Outcome.SHM: more_in_flight if failed.num_workers else by_chance,
        Outcome.NUMERICS: same_step and (same_batch or failed.amp != "off"),  # in fp32 it was the samples, or chance
    }
    return alike.get(failure.outcome, by_chance)


def _in_flight(config: Config) -> int:
    return config.batch_size * config.num_workers * (config.prefetch_factor or 0)


def exceeds(measured: Measurement, observations: Observations) -> bool:
    """Return whether a measured configuration used more memory than it may, or will by the end of an epoch."""
    return measured.epoch_peak_bytes > observations.may_take(measured)
