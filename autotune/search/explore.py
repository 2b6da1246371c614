"""Options of the training step: each is probed beside the step without it, and kept where it pays.

Greedy: a kept option stays on for the next. Confirmation has the last word.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import geometric_mean

from autotune.config import Config
from autotune.limits import SHARE_GRACE, Budget, MemoryLimit, format_size
from autotune.probes import ComputeProbe
from autotune.records import Attempt, Outcome, Part, Probe, Request, Runner
from autotune.result import TriedOption
from autotune.runner.attempt import measure_once_more
from autotune.search.feasibility import reason_against
from autotune.search.forecast import GAIN
from autotune.search.probe_plan import LOOK_SECONDS, NUMERICS_SECONDS
from autotune.search.space import without_loader

EXPLORE_SHARE = 0.3
"""Share of the budget that is set aside for exploring; it may also take what the search leaves."""
HOPELESS = 0.95
"""Ratio of the rates below which an option is not probed a second time."""
LOOKS = 5
"""Most probes of an option: four of the step, one of the losses."""
FIRST_LOOK_COST = 5.0
"""Seconds of a probe with its process, about, until the first is timed."""
NO_TIME = "there was no time to try it; give a larger --budget"
NO_TIME_TO_CHECK = "there was no time to compare its losses with fp32; give a larger --budget"


class _LeftOutError(Exception):
    """Says why an option is left out."""


class _OutOfTimeError(_LeftOutError):
    """There is no time for a probe."""


@dataclass(slots=True, kw_only=True)
class Explorer:
    """Tries options one after the other, from one configuration on."""

    runner: Runner
    """Measures."""
    start: Config
    """The configuration that the options are added to."""
    options: tuple[str, ...]
    """The options to try, in order."""
    memory_limit: MemoryLimit
    """How much of the memory may be used."""
    budget: Budget
    """The time that is spent."""
    end: float
    """Seconds since the clock's start after which no probe begins."""
    look_cost: float = FIRST_LOOK_COST
    """Seconds of the latest probe."""
    tell_running: Callable[[Config], None] = lambda config: None
    """Hears of every probe that begins."""
    tell_looked: Callable[[Probe], None] = lambda probe: None
    """Hears of every probe that has ended."""
    tried: list[TriedOption] = field(default_factory=list, init=False)
    """The result of each option so far."""
    _plain: Config = field(init=False)
    """The step as it is so far."""
    _before: ComputeProbe | None = field(default=None, init=False)
    """The latest probe of it."""

    def __post_init__(self) -> None:
        self._plain = without_loader(self.start)

    @property
    def answer(self) -> Config | None:
        """The configuration with the kept options; ``None`` without any."""
        kept = tuple(tried.option for tried in self.tried if tried.kept)
        return replace(self.start, options=(*self.start.options, *kept)) if kept else None

    @property
    def start_seconds(self) -> float:
        """Additional seconds of the first step with the kept options, as for compiling."""
        return sum(tried.start_seconds or 0.0 for tried in self.tried if tried.kept)

    def run(self) -> None:
        """Try every option that is not on already; a ``KeyboardInterrupt`` keeps the results so far."""
        for option in self.options:
            if option not in self.start.options:
                self._try(option)

    def _try(self, option: str) -> None:
        begin, found = self.budget.spent, TriedOption(option=option, kept=False)
        config = replace(self._plain, options=(*self._plain.options, option))
        try:
            before, after = self._side_by_side(config)
            found = _compared(option, before, after)
            self._require_room(after)
            if found.gain is not None and found.gain < GAIN:
                raise _LeftOutError(f"the step is not {GAIN:.0%} faster with it")
            self._require_soundness(config, option)
            found, self._plain, self._before = replace(found, kept=True), config, None
        except _LeftOutError as reason:
            found = replace(found, message=str(reason))
        self.tried.append(replace(found, seconds=self.budget.spent - begin))

    def _side_by_side(self, config: Config) -> tuple[list[ComputeProbe], list[ComputeProbe]]:
        """Probe the step without, with, with and without one more option, so that drift cancels.

        An option that is far slower is probed once, and so is one without time for a second probe. The last probe
        without it is the first of the next option.
        """
        before = [self._before or self._step(self._plain)]
        self._before = before[0]
        after = [self._step(config)]
        if _rate(after) >= HOPELESS * _rate(before) and self._has_time(2):
            with suppress(_OutOfTimeError):  # looks may take longer than they did
                after.append(self._step(config))
                self._before = self._step(self._plain)
                before.append(self._before)
        return before, after

    def _step(self, config: Config) -> ComputeProbe:
        attempt = self._look("compute", config, LOOK_SECONDS)
        if attempt.compute is None:
            which = "" if config.options != self._plain.options else "the step without it could not be timed: "
            raise _LeftOutError(which + (attempt.message or attempt.outcome))
        return attempt.compute

    def _require_room(self, looks: list[ComputeProbe]) -> None:
        peak = max(look.peak_memory_bytes for look in looks)
        most = self.memory_limit.of(looks[0].memory_limit_bytes)
        if peak > most:
            raise _LeftOutError(
                f"training would take {format_size(peak)} of memory with it; {format_size(most)} may be used"
            )

    def _require_soundness(self, config: Config, option: str) -> None:
        """Compare losses with those in plain fp32, as before a precision is used."""
        if not self._has_time(1):
            raise _OutOfTimeError(NO_TIME_TO_CHECK)
        attempt = self._look("numerics", config, NUMERICS_SECONDS, option)
        if attempt.numerics is None:
            raise _LeftOutError(f"its effect on the losses could not be checked: {attempt.message}")
        if reason := reason_against(attempt.numerics, config.amp, option):
            raise _LeftOutError(reason)

    def _look(self, part: Part, config: Config, seconds: float, option: str = "") -> Attempt:
        """Take a probe in a process of its own: options stay on a model, and some hold for the whole process."""
        if not self._has_time(1):
            raise _OutOfTimeError(NO_TIME)
        self.tell_running(config)
        limit = max(0.0, self.end - self.budget.spent) + SHARE_GRACE
        request = Request(seconds=seconds, time_limit=limit, fresh=True, part=part)
        attempt = measure_once_more(self.runner, config, request, self._may_repeat, if_disturbed=True)
        self.look_cost = attempt.seconds
        if attempt.outcome is Outcome.TIMEOUT:
            attempt = replace(attempt, message=f"{attempt.message}, all that was left; give a larger --budget")
        self.tell_looked(_probe(part, config, attempt, option))
        return attempt

    def _may_repeat(self, disturbed: Attempt) -> bool:
        """Return whether a probe may be repeated: not at the cost of options that are still to be tried."""
        fits = self.budget.spent + disturbed.seconds <= self.end
        return fits and self._has_time(LOOKS * (len(self.options) - len(self.tried)))

    def _has_time(self, looks: int) -> bool:
        return self.budget.spent + looks * self.look_cost <= self.end


def _compared(option: str, before: list[ComputeProbe], after: list[ComputeProbe]) -> TriedOption:
    first, plain_first = (max(look.first_step_seconds for look in looks) for looks in (after, before))
    peak, plain_peak = (max(look.peak_memory_bytes for look in looks) for looks in (after, before))
    return TriedOption(
        option=option,
        kept=False,
        gain=_rate(after) / _rate(before) - 1,
        memory_change_bytes=peak - plain_peak,
        first_step_seconds=first,
        start_seconds=max(0.0, first - plain_first),
    )


def _rate(looks: list[ComputeProbe]) -> float:
    return geometric_mean(look.samples_per_second for look in looks)


def _probe(part: Part, config: Config, attempt: Attempt, option: str) -> Probe:
    message = attempt.message
    if attempt.numerics:
        message = reason_against(attempt.numerics, config.amp, option) or ""
    return Probe(part=part, config=config, attempt=replace(attempt, message=message))
