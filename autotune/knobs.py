"""The baseline and the bounds that a user gives, held against the workload.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.config import OBJECTIVES, Config, Objective
from autotune.errors import UsageError
from autotune.records import WorkloadFacts
from autotune.settings import KNOBS, SETTINGS, Bounds, parse_knobs, parse_settings
from autotune.step_options import parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The search that a user asks for, from the options of ``tune``."""

    baseline: Config
    knobs: Mapping[str, Bounds]
    """The admitted values of knobs, by name."""
    global_batch_size: int | None
    objective: Objective | None
    options: tuple[str, ...]
    """Further options of the step that may be tried."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Asked:
        """Return the search of the options of ``tune``. Raises ``UsageError`` naming a wrong one."""
        whole, objective, explore = (given.get(name) for name in ("global_batch_size", "objective", "explore"))
        trials = given.get("trials")
        knobs = parse_knobs({name: given.get(name) for name in KNOBS})
        if trials is not None and trials < 1:
            raise UsageError(f"--trials {trials}: allowed: whole numbers from 1")
        if objective not in (None, *OBJECTIVES):
            raise UsageError(f"--objective {objective}: allowed: {', '.join(OBJECTIVES)}")
        if objective == "samples" and whole is not None:
            raise UsageError("--objective samples: --global-batch-size keeps the samples of a step; leave out one")
        baseline = as_baseline(given.get("baseline"), whole, given.get("ranks"))
        options = () if explore is None else parse_options(explore)
        return cls(baseline=baseline, knobs=knobs, global_batch_size=whole, objective=objective, options=options)

    def of_script(self, present: Config) -> Asked:
        """Return the search for a script, whose settings are the baseline; its batch stays unless it is asked for."""
        baseline = replace(present, ranks=self.baseline.ranks)
        stays = "batch_size" not in self.knobs and self.objective != "samples"
        own = parse_knobs({"batch_size": baseline.batch_size}) if stays else {}
        return replace(self, baseline=baseline, knobs={**self.knobs, **own})

    def held_against(self, facts: WorkloadFacts, fixed: Mapping[str, Any]) -> Asked:
        """Return the search with the knobs that the training's loader fixes, and a baseline that fits an epoch.

        Raises ``UsageError`` where a knob is given another value.
        """
        require_free(self.knobs, fixed)
        baseline = fitted(self.baseline, facts, self.global_batch_size)
        return replace(self, baseline=baseline, knobs={**self.knobs, **parse_knobs(fixed)})


def require_possible(asked: Mapping[str, Bounds], facts: WorkloadFacts) -> None:
    """Raise ``UsageError`` for values that this workload cannot have on this machine."""
    values = {name: each.values for name, each in asked.items()}
    slow = [mode for mode in values.get("amp", ()) if mode not in facts.amp_modes]
    if slow:
        has_none = f"{facts.device_name} ({facts.device}) has no fast {slow[0]} arithmetic"
        of_script = "the script enters no autocast of it" if facts.autocast_call else "a script needs a scaler for it"
        why = of_script if facts.loader_site and (facts.autocast_call or slow[0] == "fp16") else has_none
        raise UsageError(f"--amp {slow[0]}: {why}; allowed here: {', '.join(facts.amp_modes)}")
    if True in values.get("pin_memory", ()) and facts.device == "cpu":
        raise UsageError("--pin-memory true: pinning needs an accelerator; training runs on the CPU here")
    largest = max(values.get("batch_size", (0,)))
    if facts.epoch_samples and largest > facts.epoch_samples:
        raise UsageError(f"--batch-size {largest}: an epoch has only {facts.epoch_samples} samples")


def require_free(asked: Mapping[str, Bounds], fixed: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for a knob that is given another value than the training's loader fixes."""
    for name, value in fixed.items():
        if name in asked and asked[name].values != (value,):
            raise UsageError(
                f"{name}={asked[name].given}: it stays {value} in this training, whose batches a batch sampler or the "
                "dataset makes, or several loaders together"
            )


def as_baseline(
    given: Config | Mapping[str, Any] | str | None, global_batch_size: int | None = None, ranks: int | None = None
) -> Config:
    """Return the baseline as a configuration; batch size 32, no workers and fp32 where nothing is said.

    With a ``global_batch_size`` the baseline accumulates as many batches as it takes; without a batch size of its own
    it gets the largest divisor up to 32. Raises ``UsageError`` for an unknown field, for a batch size that is no
    divisor, and for other ``ranks`` than are measured.
    """
    given = parse_settings(given) if isinstance(given, str) else given
    config = _in_ranks(given if isinstance(given, Config) else _config_of(given), ranks)
    if global_batch_size is None:
        return config
    whole = samples_of_rank(global_batch_size, config.ranks)
    if not isinstance(given, Config) and "batch_size" not in (given or {}):
        if whole % config.accumulation_steps == 0 and config.accumulation_steps > 1:
            return replace(config, batch_size=whole // config.accumulation_steps)
        divisors = (size for size in range(config.batch_size, 0, -1) if whole % size == 0)
        config = replace(config, batch_size=next(divisors))
    steps, rest = divmod(whole, config.batch_size)
    if rest or config.accumulation_steps not in (1, steps):
        of_ranks = f" in each of {config.ranks} ranks" if config.ranks > 1 else ""
        raise UsageError(
            f"--global-batch-size {global_batch_size}: the baseline takes {config.batch_size} samples times "
            f"{config.accumulation_steps}{of_ranks}; pass --baseline batch_size=N with a divisor of {whole}"
        )
    return replace(config, accumulation_steps=steps)


def samples_of_rank(global_batch_size: int, ranks: int) -> int:
    """Return each rank's samples of one step of the optimizer. Raises ``UsageError`` where they are not alike."""
    is_whole = isinstance(global_batch_size, int) and not isinstance(global_batch_size, bool)
    if not is_whole or global_batch_size < 1:
        raise UsageError(f"--global-batch-size {global_batch_size}: allowed: whole numbers from 1")
    samples, rest = divmod(global_batch_size, ranks)
    if rest:
        raise UsageError(f"--global-batch-size {global_batch_size}: no multiple of --ranks {ranks}")
    return samples


def _in_ranks(config: Config, ranks: int | None) -> Config:
    """Return the baseline in so many ranks; where nothing is said, in its own."""
    if ranks is None:
        return config
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"--ranks {ranks}: allowed: whole numbers from 1")
    if config.ranks not in (1, ranks):
        raise UsageError(f"--ranks {ranks}: the baseline has {config.ranks}; both train with as many processes")
    return replace(config, ranks=ranks)


def _config_of(given: Mapping[str, Any] | None) -> Config:
    names = {each.name: field for field, each in SETTINGS.items()}
    fields = {names.get(name, name): value for name, value in (given or {}).items()}
    try:
        return Config(**fields)
    except TypeError:
        unknown = ", ".join(name for name in fields if name not in SETTINGS)
        known = ", ".join(dict.fromkeys([*SETTINGS, *names]))
        raise UsageError(f"--baseline {unknown}: unknown; allowed: {known}") from None


def fitted(baseline: Config, facts: WorkloadFacts, global_batch_size: int | None) -> Config:
    """Return the baseline with a batch that an epoch can fill, or with batches as they come.

    Raises ``UsageError`` where neither leaves the samples of a step that are asked for.
    """
    if facts.batch_samples is not None:
        if global_batch_size:
            raise UsageError(
                f"--global-batch-size {global_batch_size}: the sampler or the dataset makes the batches, of about "
                f"{facts.batch_samples} samples; leave it out, and give the baseline its accumulation_steps"
            )
        return replace(baseline, batch_size=facts.batch_samples)
    if facts.epoch_samples is not None and facts.epoch_samples < baseline.ranks:
        raise UsageError(f"--ranks {baseline.ranks}: an epoch has only {facts.epoch_samples} samples")
    most = (facts.epoch_samples or 0) // baseline.ranks
    if not most or baseline.batch_size <= most:
        return baseline
    if not global_batch_size:
        return replace(baseline, batch_size=most)
    whole = samples_of_rank(global_batch_size, baseline.ranks)
    size = next(size for size in range(most, 0, -1) if whole % size == 0)
    return replace(baseline, batch_size=size, accumulation_steps=whole // size)
