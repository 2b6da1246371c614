"""The result of a run with its evidence: a record for reports, plots and exports.

All are frozen and made of plain values, so that a study keeps them as JSON (``autotune.encoding``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from autotune.batch_cost import NoiseScale
from autotune.config import Config
from autotune.configfile import Objective
from autotune.diagnosis.findings import Finding
from autotune.limits import percent_up
from autotune.machine.host import Host
from autotune.outcome import Outcome
from autotune.records import Interval, Measurement, Trial, WorkloadFacts

DEFAULT_PATH = "autotune.yaml"
"""Where the command line writes its answer unless it is told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedOption:
    """One option of the training step, measured beside the step without it."""

    option: str
    """Its name in ``Config.options``."""
    kept: bool
    """Whether the step alone is faster with it, and trains like plain fp32; confirmation may still leave it out."""
    gain: float | None = None
    """Gain in the rate of the step alone, as a share; ``None`` where it could not be timed."""
    memory_change_bytes: int | None = None
    """Bytes that it adds to the peak memory; negative where it saves memory."""
    start_seconds: float | None = None
    """Seconds by which the first step is longer than without it."""
    message: str = ""
    """Why it was left out, in one line."""
    seconds: float = 0.0
    """Wall time that trying it cost."""

    @property
    def repaid_seconds(self) -> float | None:
        """Seconds of training after which the longer first step is repaid; ``None`` where it never is."""
        if not self.gain or self.gain < 0 or self.start_seconds is None:
            return None
        return self.start_seconds / self.gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A configuration that was measured side by side with the baseline in fresh processes."""

    config: Config
    speedup: float
    """Mean of its rates over that of the baseline's, in the same rounds."""
    interval: Interval | None
    """Interval of it, which holds after every round; those of all finalists together hold with 95 %. ``None`` below
    three rounds."""
    ratios: tuple[float, ...]
    """The ratio of each round, in order."""
    has_failed: bool
    """Whether it failed in a fresh process, and so cannot be the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForecast:
    """Expected rates of a batch size in a precision, with the best number of threads."""

    batch_size: int
    amp: str
    """``off``, ``bf16`` or ``fp16``."""
    ceiling: float
    """Samples per second of the step alone."""
    rate: float
    """Samples per second with the best loader that fits."""
    refusal: str | None
    """Why nothing with this batch size and precision fits or may be used; ``None`` where something does."""
    is_disturbed: bool = False
    """Whether its step was looked at only while others took CPUs or the GPU: it may be faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderForecast:
    """Expected rate of one setting of the loader with the answer's step."""

    num_workers: int
    prefetch_factor: int | None
    """Batches asked ahead of each; ``None`` without workers."""
    rate: float
    """Samples per second, by the model and all measurements."""
    low: float
    """One standard deviation below that."""
    high: float
    """One standard deviation above it."""
    refusal: str | None
    """Why it does not fit; ``None`` where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """The space as the search sees it at its end."""

    steps: tuple[StepForecast, ...]
    """One for each batch size and precision, in order."""
    loaders: tuple[LoaderForecast, ...]
    """One for each number of workers and prefetch factor, in order."""
    memory_bytes: int
    """How much of the memory that limits the run may be used, headroom left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a run of autotune, with its evidence."""

    config: Config
    """The answer: proven to be faster; where undecided, faster by odds of 20 to 1 in three undisturbed rounds; else the
    baseline."""
    baseline: Config
    """The settings that the user trains with today."""
    samples_per_second: float
    """Confirmed rate of the answer."""
    ci95: Interval | None
    """95 % interval of that rate, over processes."""
    baseline_samples_per_second: float
    """Confirmed rate of the baseline."""
    baseline_ci95: Interval | None
    """95 % interval of that rate, over processes."""
    rounds: int
    """Complete rounds in which answer and baseline were confirmed side by side."""
    speedup: float
    """Mean rate of the answer over that of the baseline, in the same rounds; 1 where the baseline is the answer."""
    speedup_ci95: Interval | None
    """95 % interval of that ratio, which holds after every round; ``None`` below three rounds."""
    verdict: Verdict
    stop_reason: str
    remaining_gain: float
    """Gain of a perfect data loader with the fastest step that fits, as a share: bounded by the step's ceiling and,
    where step and loader share the CPUs, by these."""
    facts: WorkloadFacts
    host: Host
    measurement: Measurement
    """The typical one of the answer's confirmed measurements."""
    baseline_measurement: Measurement
    """The typical one of the baseline's confirmed measurements."""
    history: tuple[Trial, ...]
    """Every trial in order, confirmation included."""
    seconds: float
    """Wall time of the whole run."""
    tried: tuple[TriedOption, ...] = ()
    """Each further option, in order."""
    notes: tuple[str, ...] = ()
    finalists: tuple[Finalist, ...] = ()
    """Finalists measured beside the baseline, cheapest first."""
    landscape: Landscape | None = None
    """Expected rates over the whole space; ``None`` without a search."""
    findings: tuple[Finding, ...] = ()
    """Limits of the answer's rate, by the time they take, then further observations."""
    most_gain: float | None = None
    """Without a gain: the largest gain that was not excluded, as a share."""
    next_run_95: Interval | None = None
    """95 % interval for the rate of one further run with the answer; ``None`` below three rounds."""
    likeliest: Finalist | None = None
    """The finalist most likely to be faster than the baseline; ``None`` where nothing was compared with it."""
    missing: tuple[str, ...] = ()
    """Things that would decide an undecided verdict."""
    interrupted: bool = False
    """Whether the user stopped the run before its end."""
    objective: Objective = "samples"
    """Whether the answer may have any batch, or keeps the samples of an optimizer step."""
    alternative: Answer | None = None
    """Answer for the other objective, which may be this one."""
    no_alternative: str = ""
    """Why there is none; empty where there is one, or none was asked for."""
    noise: NoiseScale | None = None
    """Noise scale of the gradients, where the answer's batch is another."""
    no_noise: str = ""
    """Why it is not known; empty where it is, or the batch stays."""

    @property
    def bottleneck(self) -> str | None:
        """Main limit of the answer's rate, by its name in ``Cause``; ``None`` where none was found."""
        return str(self.findings[0].cause) if self.findings else None

    @property
    def same_loss_speedup(self) -> Interval | None:
        """Interval of how many times as fast the same loss is reached; ``None`` where it is not known.

        Samples per second over the samples that the other batch needs more, each with its interval.
        """
        if self.noise is None:
            return None
        low, high = self.speedup_ci95 or (self.speedup, self.speedup)
        least, most = self.noise.overheads(self.baseline.samples_per_update, self.config.samples_per_update)
        return low / most, high / least


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A study as it was kept."""

    location: str
    """The file or URL, without a password."""
    name: str
    others: tuple[str, ...]
    """The names of autotune's other studies there."""
    made_on: Mapping[str, str]
    """Its machine, versions and workload."""
    history: tuple[Trial, ...]
    """Every trial, confirmations last."""
    result: Answer | None
    """Result of the last run that ended; ``None`` where none has."""
    since: int = 0
    """Measurements that the result does not know, because the study has gone on."""
    path: str = DEFAULT_PATH
    """The config file that the answer was written to."""

    @classmethod
    def of(cls, result: Answer, path: str = DEFAULT_PATH) -> StudyRecord:
        """Return a result as a study that is kept nowhere."""
        return cls(location="", name="", others=(), made_on={}, history=result.history, result=result, path=path)


def pareto_front(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Return the measured trials that no other beats in both rate and peak memory, fastest first."""
    sound = [(trial, each) for trial in trials if (each := trial.measurement) and trial.outcome is Outcome.OK]
    front, least = list[Trial](), math.inf
    for trial, each in sorted(sound, key=lambda pair: (-pair[1].samples_per_second, pair[1].epoch_peak_bytes)):
        if each.epoch_peak_bytes < least:
            front.append(trial)
            least = each.epoch_peak_bytes
    return tuple(front)


class Verdict(StrEnum):
    """Whether a configuration is faster than the baseline."""

    FASTER = "faster"
    """Proven: by 2 % at least, and its interval excludes equality."""
    NO_GAIN = "no gain"
    """No finalist is faster by more than a few percent, and the search expects no more of the rest."""
    UNDECIDED = "undecided"
    """Neither is known."""


def verdict_text(verdict: Verdict, most_gain: float | None) -> str:
    """Return a verdict as a file has it: ``faster``, ``no gain above 3 %`` or ``undecided``.

    ``most_gain`` is the largest gain that was not excluded, as a share.
    """
    if verdict is not Verdict.NO_GAIN:
        return str(verdict)
    return f"no gain above {percent_up(most_gain or 0.0)}"


def parse_verdict(text: object) -> Verdict | None:
    """Return the verdict that a file's text stands for; ``None`` where it is none."""
    if isinstance(text, str) and re.fullmatch(r"no gain above \d+ %", text):
        return Verdict.NO_GAIN
    return next((verdict for verdict in (Verdict.FASTER, Verdict.UNDECIDED) if text == verdict), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise, and the measurements of now."""

    config: Config
    """The file's configuration; the promise is its ``measured``."""
    baseline: Config
    """The configuration that it is compared with."""
    verdict: Literal["holds", "broken", "undecided"]
    """``holds`` where the configuration is faster than the baseline and the speed-up is not sure to lie below the
    promised interval; ``undecided`` where the measurements do not tell."""
    samples_per_second: float
    speedup: float
    """That rate over the baseline's now: ratio of the means in paired rounds."""
    speedup_ci95: Interval | None
    """95 % interval of it; ``None`` below three rounds."""
    rounds: int
    """Complete rounds of fresh processes."""
    notes: tuple[str, ...]
    """Differences from when the file was made, and what the measurements do not tell."""
    beginning_samples: int | None = None
    """Samples at the beginning of an epoch that were measured; ``None`` where whole epochs were."""
    is_uneven: bool = False
    """Whether the rest of an epoch may run at other rates, since workers get different amounts of a stream."""
