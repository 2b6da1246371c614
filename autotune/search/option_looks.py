"""Further options of the step: looks at each beside the step without it, and those that may be used. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.config import Config
from autotune.limits import format_size, percent
from autotune.outcome import Outcome
from autotune.probes import ComputeProbe
from autotune.records import Part
from autotune.result import TriedOption
from autotune.search.observations import GAIN, Observations
from autotune.search.space import Space

UNTRIED = "there was no time to try it; give a larger --budget"


def option_looks(observations: Observations, space: Space) -> Iterator[tuple[Part, Config | None]]:
    """Yield the probes of steps with further options, in order; those that were taken without a configuration.

    First each option alone, then all together that pay. Losses are compared only where the step pays.
    """
    for config, beside in _pairs(observations, space):
        yield "compute", None if observations.step_probe(config) else config
        is_unchecked = observations.is_unchecked(config.amp, config.options)
        yield "numerics", config if is_unchecked and not _reason_against_step(observations, config, beside) else None


def usable_step(observations: Observations, space: Space) -> Config | None:
    """Return the fastest step with further options that pay, fit and train like fp32; ``None`` without any."""
    usable = [each for each, beside in _pairs(observations, space) if not _reason(observations, each, beside)]
    return max(usable, key=lambda config: _look(observations, config).samples_per_second, default=None)


def tried_options(observations: Observations, space: Space) -> tuple[TriedOption, ...]:
    """Return the outcome of each further option, in order."""
    pairs = list(_pairs(observations, space))[: len(space.options)]
    if not pairs:  # no step was timed
        return tuple(TriedOption(option=option, kept=False, message=UNTRIED) for option in space.options)
    return tuple(_tried(observations, option, *pair) for option, pair in zip(space.options, pairs, strict=True))


def _pairs(observations: Observations, space: Space) -> Iterator[tuple[Config, Config]]:
    """Yield steps with further options, each beside the step that it must beat: without it, or with one alone."""
    plain = _plain(observations, space) if space.options else None
    if plain is None:
        return
    alone = [replace(plain, options=(*plain.options, option)) for option in space.options]
    yield from ((config, plain) for config in alone)
    paying = [config for config in alone if _reason(observations, config, plain) is None]
    if len(paying) > 1:
        options = tuple(option for config in paying for option in config.options)
        fastest = max(paying, key=lambda each: _look(observations, each).samples_per_second)
        yield replace(plain, options=options), fastest


def _plain(observations: Observations, space: Space) -> Config | None:
    """Return the step that options are added to: the first that was, else the fastest that may be used."""
    within, base = observations.looks_within(space), space.base.options
    rates = {step: look.samples_per_second for step, look in within if not observations.distrust(step.amp)}
    probed = (probe.config for probe in observations.step_probes if probe.config.options != base)
    begun = (replace(config, options=base) for config in probed)
    return next((step for step in begun if step in rates), max(rates, key=rates.__getitem__, default=None))


def _reason(observations: Observations, config: Config, beside: Config) -> str | None:
    return _reason_against_step(observations, config, beside) or observations.distrust(config.amp, config.options)


def _reason_against_step(observations: Observations, config: Config, beside: Config) -> str | None:
    probe = observations.step_probe(config)
    if probe is None:
        return UNTRIED
    attempt, look = probe.attempt, probe.attempt.compute
    if look is None:
        more = "; give a larger --budget" if attempt.outcome is Outcome.TIMEOUT else ""
        return f"{attempt.message or attempt.outcome}{more}"
    if look.samples_per_second < (1 + GAIN) * _look(observations, beside).samples_per_second:
        return f"the step is not {percent(GAIN)} faster with it"
    most = observations.may_take(look)
    if look.peak_memory_bytes > most:
        needed = format_size(look.peak_memory_bytes)
        return f"training would take {needed} of memory with it; {format_size(most)} may be used"
    return None


def _look(observations: Observations, config: Config) -> ComputeProbe:
    key = observations.step_key(config)
    return next(look for own, look in reversed(observations.looks) if observations.step_key(own) == key)


def _tried(observations: Observations, option: str, config: Config, beside: Config) -> TriedOption:
    reason = _reason(observations, config, beside)
    seconds = sum(probe.attempt.seconds for probe in observations.probes if probe.config.options == config.options)
    tried = TriedOption(option=option, kept=reason is None, message=reason or "", seconds=seconds)
    probe, before = observations.step_probe(config), _look(observations, beside)
    if probe is None or (look := probe.attempt.compute) is None:
        return tried
    return replace(
        tried,
        gain=look.samples_per_second / before.samples_per_second - 1,
        memory_change_bytes=look.peak_memory_bytes - before.peak_memory_bytes,
        start_seconds=max(0.0, look.first_step_seconds - before.first_step_seconds),
    )
