"""The knobs of a search: the values that a user admits for each, and the baseline that a user names.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from autotune.config import AMP_MODES, Config
from autotune.errors import UsageError
from autotune.records import WorkloadFacts

_SWITCH = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting that the search varies."""

    name: str
    field: str
    """Its field in ``Config``."""
    example: str
    """Several values, as a user may write them."""
    least: int = 0
    """Least whole number."""
    choices: Mapping[str, Any] | None = None
    """The value of each text, where it is no number."""

    @property
    def flag(self) -> str:
        """Its flag of the command line."""
        return "--" + self.name.replace("_", "-")

    def parse(self, text: str) -> list[Any]:
        """Return the values of a text: one value, ``a..b`` or ``a,b,c``. Raises ``UsageError``."""
        low, dots, high = text.partition("..")
        if not dots:
            return [self.value(part.strip()) for part in text.split(",")]
        said = f"{self.flag} {text}: "
        if self.choices:
            raise UsageError(f"{said}a range needs whole numbers; list the values, for example {self.example}")
        first, last = self.value(low.strip()), self.value(high.strip())
        if first > last:
            raise UsageError(f"{said}the range is empty; write the smaller end first")
        if self.name == "batch_size":
            return sorted({first, last} | {2**k for k in range(31) if first <= 2**k <= last})
        return list(range(first, last + 1))

    def value(self, given: Any) -> Any:
        """Return a single value. Raises ``UsageError`` with what is allowed."""
        if self.choices:
            if (text := str(given).lower()) in self.choices:
                return self.choices[text]
            raise UsageError(f"{self.flag} {given}: allowed: {', '.join(self.choices)}")
        try:
            number = None if isinstance(given, (bool, float)) else int(given)
        except (TypeError, ValueError):
            number = None
        if number is None or number < self.least:
            allowed = f"whole numbers from {self.least}, for example {self.example}"
            raise UsageError(f"{self.flag} {given}: allowed: {allowed}")
        return number


KNOBS: Mapping[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("batch_size", "batch_size", "32..512", least=1),
        Knob("num_workers", "num_workers", "0..8", least=0),
        Knob("prefetch_factor", "prefetch_factor", "2,4", least=1),
        Knob("pin_memory", "pin_memory", "true,false", choices=_SWITCH),
        Knob("persistent_workers", "persistent_workers", "true,false", choices=_SWITCH),
        Knob("amp", "amp", "off,bf16", choices={mode: mode for mode in AMP_MODES}),
        Knob("threads", "intra_op_threads", "1..4", least=1),
    )
}
"""Every knob that the search varies, by its name, in order."""


def parse_knob(name: str, given: Any, facts: WorkloadFacts | None = None) -> tuple[Any, ...]:
    """Return the values a user admits for a knob, in order; empty when nothing was given.

    ``given`` is a value, a sequence of values, or text: one value, ``a..b`` or ``a,b,c``. A range of batch
    sizes holds its ends and the powers of two between them. Raises ``UsageError`` naming the flag.
    """
    if given is None:
        return ()
    knob, several = KNOBS[name], isinstance(given, (list, tuple, range, set, frozenset))
    values = (
        knob.parse(given) if isinstance(given, str) else [knob.value(each) for each in (given if several else [given])]
    )
    if not values:
        raise UsageError(f"{knob.flag}: no value given")
    if facts is not None:
        _refuse_impossible(knob, values, facts)
    return tuple(dict.fromkeys(values))


def _refuse_impossible(knob: Knob, values: list[Any], facts: WorkloadFacts) -> None:
    slow = [mode for mode in values if knob.name == "amp" and mode not in facts.amp_modes]
    if slow:
        has_none = f"{facts.device_name} ({facts.device}) has no fast {slow[0]} arithmetic"
        of_script = "the script enters no autocast of it" if facts.autocast_call else "a script needs a scaler for it"
        why = of_script if facts.loader_site and (facts.autocast_call or slow[0] == "fp16") else has_none
        raise UsageError(f"{knob.flag} {slow[0]}: {why}; allowed here: {', '.join(facts.amp_modes)}")
    if knob.name == "pin_memory" and True in values and facts.device == "cpu":
        raise UsageError(f"{knob.flag} true: pinning needs an accelerator; training runs on the CPU here")
    if knob.name == "batch_size" and facts.epoch_samples and max(values) > facts.epoch_samples:
        raise UsageError(f"{knob.flag} {max(values)}: an epoch has only {facts.epoch_samples} samples")


def require_free(given: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for a knob that is given another value than the training's loader fixes."""
    for name, value in fixed.items():
        if (wanted := given.get(name)) is not None and str(wanted) != str(value):
            raise UsageError(
                f"{name}={wanted}: it stays {value} in this training, whose batches a batch sampler or the dataset "
                "makes, or several loaders together"
            )


def as_baseline(
    given: Config | Mapping[str, Any] | None, global_batch_size: int | None = None, ranks: int | None = None
) -> Config:
    """Return the baseline as a configuration; batch size 32, no workers and fp32 where nothing is said.

    With a ``global_batch_size`` the baseline accumulates as many batches as it takes; without a batch size of its own
    it gets the largest divisor up to 32. Raises ``UsageError`` for an unknown field, for a batch size that is no
    divisor, and for other ``ranks`` than are measured.
    """
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
    fields = {"intra_op_threads" if name == "threads" else name: value for name, value in (given or {}).items()}
    try:
        return Config(**fields)
    except TypeError:
        known = [name for name in asdict(Config()) if name not in ("measured", "made_on", "alternatives", "unknown")]
        unknown = ", ".join(name for name in fields if name not in known)
        raise UsageError(f"--baseline {unknown}: unknown; allowed: {', '.join([*known, 'threads'])}") from None


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
