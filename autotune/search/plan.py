"""The plan of a run: the seconds that its measurements take, and the budget that they ask for. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.config import Config
from autotune.limits import USUAL_BUDGETS, format_duration
from autotune.stats import LEAST_ROUNDS

LEAST_OPENING = 0.3
"""Seconds that a process forked from one with torch takes before it measures, at least."""
BURSTS, LONGEST = 5, 4
"""Bursts of batches in a window at least, and the windows that an epoch may last to be measured whole where its end
cuts one."""
LOOKS, LOOK_SECONDS, SESSIONS = 8, 1.5, 2
"""Looks of a usual search, the seconds of each, and the processes that they open."""
TRIALS, ROUNDS, FEW_TRIALS = 8, 8, 3
"""Trials of a usual search and rounds of a usual proof, and the trials of a short search."""
SECOND_ROUNDS, HALF_MINUTE = 2.0, 30.0
"""Rounds of the answer for the other objective that a chosen budget has time for, beside what the first answer leaves
of its own; and the seconds of which that is a multiple."""
SHORTEST, MOST = 120.0, 600.0
"""Seconds of the shortest and the longest budget that is chosen."""


def bursts(config: Config) -> int:
    """Return the samples of the shortest window: batches come in bursts of the workers' number."""
    return BURSTS * max(1, config.num_workers) * config.samples_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The seconds that the measurements of a run take."""

    start: float
    """Seconds until a process measures that has torch to import."""
    opening: float
    """Seconds until one measures that is forked from a process with torch, as for the proof."""
    window: float
    """Seconds of the longest window."""
    epoch_samples: int | None
    """Samples of an epoch; ``None`` where it has no known end."""
    base: Config
    base_rate: float
    """Its samples per second."""
    base_seconds: float
    """Seconds of its measurement in an open process."""

    def trial(self, config: Config, rate: float) -> float:
        """Return the seconds of a trial of a configuration with so many samples per second, about."""
        return self.base_seconds + self.excess(config, rate)

    def excess(self, config: Config, rate: float) -> float:
        """Return the seconds by which whole bursts and epochs make its window longer than usual.

        A window begins anywhere in an epoch. The end of a short epoch cuts it, and a whole epoch follows.
        """
        least, again = bursts(config) / rate, 0.0
        if self.epoch_samples and (epoch := self.epoch_samples / rate) <= LONGEST * self.window:
            again = min(1.0, max(self.window, least) / epoch) * 1.5 * epoch
        return max(0.0, least - self.window) + again

    def round(self, config: Config, rate: float) -> float:
        """Return the seconds of a round of the baseline and one finalist, each in a fresh process."""
        return self.fresh(self.base_seconds) + self.fresh(self.trial(config, rate))

    def fresh(self, seconds: float) -> float:
        """Return the seconds of a measurement in a fresh process, by those in an open one."""
        return max(LEAST_OPENING, self.opening) + seconds

    @property
    def base_round(self) -> float:
        """Seconds of a round of a finalist that takes as long as the baseline."""
        return self.round(self.base, self.base_rate)

    @property
    def looks(self) -> float:
        """Seconds of the looks of a usual search."""
        return LOOKS * LOOK_SECONDS + SESSIONS * self.start

    def budget(self, spent: float) -> float:
        """Return the budget of a usual search and proof after so many seconds: a usual one, from 2 to 10 minutes."""
        wanted = spent + self.looks + TRIALS * self.base_seconds + ROUNDS * self.base_round
        return next((usual for usual in USUAL_BUDGETS if max(SHORTEST, wanted) <= usual < MOST), MOST)

    def second(self, budget: float) -> float:
        """Return the seconds to add to a budget for the answer for the other objective, in whole half minutes."""
        return min(MOST - budget, HALF_MINUTE * math.ceil(SECOND_ROUNDS * self.base_round / HALF_MINUTE))

    def chosen(self, budget: float) -> str:
        """Return why a budget was chosen."""
        return (
            f"takes {format_duration(budget)} (--budget): a fresh process is ready after {self.opening:.2g} s, and a "
            f"round of the proof takes {self.base_round:.0f} s"
        )

    def shortage(self, budget: float, left: float, spent: float) -> str | None:
        """Return what a budget may be too short for; ``None`` where it has time for a search and its proof.

        It is a forecast: rounds may take less time than planned.
        """
        # of one candidate, after the looks and a few trials
        rounds = int((left - self.looks - FEW_TRIALS * self.base_seconds) / self.base_round)
        longer = max(self.budget(spent), budget)
        if rounds > LEAST_ROUNDS or longer <= budget:
            return None
        enough = (
            "time for three rounds of one candidate"
            if rounds == LEAST_ROUNDS
            else "too short for the three rounds of a proof"
        )
        return (
            f"a round of the proof takes {self.base_round:.0f} s here: {format_duration(budget)} may be {enough}; "
            f"--budget {format_duration(longer)} for a search"
        )
