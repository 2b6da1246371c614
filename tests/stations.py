"""Hosts of a cluster that are simulated, each a machine of its own, and the whole program on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.budget import Clock
from autotune.config import Config
from autotune.lanes import Lanes, Station
from autotune.likeness import Described
from autotune.records import Attempt, Outcome, Progress, Request, Trial
from autotune.result import Result
from autotune.room import DEFAULT_ROOM, MemoryRoom
from autotune.search.keeping import Keeper
from autotune.tuning import Run
from tests.simulated import SimulatedMachine, StepCost, host, space_of
from tests.tuner import FACTS, rough

BATCHES = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
SPACE = space_of(FACTS, amp="off", batch_size=BATCHES, num_workers="0..4", prefetch_factor="2,4", pin_memory=False)

LOST = Attempt(outcome=Outcome.LOST, message="lost with its host")
Loses = Callable[[int, Config, Request], bool]


def never(number: int, config: Config, request: Request) -> bool:
    return False


def at(*numbers: int) -> Loses:
    """What runs is lost in these measurements, counted from 1."""
    return lambda number, config, request: number in numbers


@dataclass(eq=False)
class SimulatedStation:
    """A host that takes some milliseconds for everything, and loses what it is told to lose."""

    name: str
    speed: float = 1.0
    """How fast it is, beside the others."""
    loses: Loses = never
    comes_back: bool = True
    """Whether it can be opened again after a loss."""
    seconds: float = 0.02
    opening: float = 1.0
    machine: SimulatedMachine = field(init=False)
    calls: list[tuple[Config, Request]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    reopened: int = 0
    dropped: int = 0
    is_up: bool = True
    is_disturbed: bool = False
    """Whether others use it while it searches."""
    interrupts_at: int | None = None
    """The measurement, counted from 1, in which the user presses Ctrl-C; it does not end by itself."""
    on_interrupt: Callable[[], None] = lambda: None
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        def cost(config: Config) -> StepCost:
            found = rough(replace(config, persistent_workers=False))  # which confirmation decides anew
            return StepCost(wait=found.wait / self.speed, compute=found.compute / self.speed)

        self.machine = SimulatedMachine(cost=cost, noise=0.005, seed=len(self.name))

    @property
    def described(self) -> Described:
        return Described(name=self.name, host=host(), facts=FACTS)

    def measure(self, config: Config, request: Request) -> Attempt:
        cancelled = self._cancelled
        self.calls.append((config, request))
        number = len(self.calls)
        time.sleep(0.0 if request.fresh else self.seconds)
        if number == self.interrupts_at:
            self.on_interrupt()
            assert cancelled.wait(60)
        if cancelled.is_set() or not self.is_up or self.loses(number, config, request):
            self.is_up = self.is_up and cancelled.is_set()
            attempt = LOST
        else:
            attempt = self.machine.measure(config, request)
            if self.is_disturbed and attempt.measurement and not request.fresh:
                attempt = replace(attempt, outcome=Outcome.SUSPECT)
        self.outcomes.append(attempt.outcome)
        return attempt

    def reopen(self) -> bool:
        self.reopened += 1
        self.is_up = self.comes_back
        return self.comes_back

    def drop(self) -> None:
        self.is_up = False
        self.dropped += 1

    def cancel(self) -> None:
        cancelled, self._cancelled = self._cancelled, threading.Event()
        cancelled.set()


@dataclass
class OnStations:
    """The whole program on simulated hosts."""

    stations: Sequence[SimulatedStation]
    storage: Path | None = None
    keeper: Keeper | None = None
    told: list[Progress] = field(default_factory=list)
    arrivals: Callable[[], Sequence[Station]] = tuple
    watch: Callable[[], None] = lambda: None

    def run(
        self,
        trials: int | None = 16,
        explore: tuple[str, ...] = (),
        budget: float = 600.0,
        room: MemoryRoom = DEFAULT_ROOM,
    ) -> Result:
        said: list[str] = []
        lanes = Lanes(self.stations, said.append, self.arrivals, self.watch)
        run = Run(lanes, SPACE, FACTS, host(), Clock(budget), self.told.append, explore, lanes)
        result = run.result(self.keeper or (str(self.storage) if self.storage else None), trials, room)
        self.searched = [trial for trial in result.history if trial.kind in ("baseline", "search")]
        self.confirmed = [trial for trial in result.history if trial.kind == "confirm"]
        assert set(said) <= set(result.notes)
        return result

    @property
    def lost(self) -> list[Trial]:
        return [trial for trial in self.searched if trial.outcome is Outcome.LOST]
