"""How often is a gain claimed, where there is none and where there is one?

    python studies/confirmation/simulate.py [--runs 1000] [--jobs 2]

Whole runs of autotune, search and confirmation, on a simulated machine whose true rates are known and whose time
passes on a clock of its own: steady but for the noise of each measurement, drifting, disturbed by a neighbour that
comes and goes, or both. Writes ``recorded/runs.csv`` beside this script, one line a run.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import optuna

from autotune.config import Config
from autotune.limits import Budget
from autotune.machine.host import Host
from autotune.messages import Messages
from autotune.outcome import Outcome
from autotune.probes import ComputeProbe, LoaderTrace, NumericsCheck
from autotune.records import Attempt, Conditions, Measurement, Request, StepTime, WorkloadFacts
from autotune.search.setup import Setup
from autotune.search.space import build_space
from autotune.search.tuner import Tuner
from autotune.settings import parse_knobs

HERE = Path(os.path.relpath(Path(__file__).resolve().parent))
CELLS = (
    *(("steady", gain, 600.0) for gain in (0.0, 0.05, 0.1, 0.3)),
    *((machine, gain, 600.0) for machine in ("drifting", "disturbed", "both") for gain in (0.0, 0.05)),
    ("steady", 0.0, 300.0),
)
"""What the machine does, the true gain of loader workers over none (nothing else matters), and seconds of budget."""
NOISE = 0.03
"""Standard deviation of the logarithm of a rate, from process to process."""
DRIFT = 0.05
"""Amplitude of the logarithm of a wave in the machine's speed."""
WAVE_SECONDS = 300.0
BURST_SECONDS, PAUSE_SECONDS = 5.0, 20.0
"""How long the neighbour takes CPUs, and how long it does not, on average (exponentially distributed)."""
BURST_LOSS = 0.1
"""What its CPUs take from the rate's logarithm meanwhile."""
BASE_RATE = 1000.0
CELL_SECONDS, WINDOW_SECONDS, PROCESS_SECONDS = 1.0, 2.0, 2.0
"""What warming a step, a window, and starting a process take."""
GIB = 2**30
BOUNDS = {"batch_size": "32,64,128", "num_workers": "0,2,4,8", "prefetch_factor": 2, "threads": 1}
"""A space of a few dozen configurations: how the gain is confirmed does not depend on its size."""
FIELDS = (
    *("machine", "gain", "budget", "seed", "verdict", "most_gain", "speedup", "low", "high", "rounds", "finalists"),
    *("next_low", "next_high", "next", "seconds"),
)


@dataclass(kw_only=True)
class Machine:
    """A runner on which workers gain so much, and nothing else does."""

    gain: float
    seed: int
    drifts: bool = False
    is_disturbed: bool = False
    time: float = 0.0
    busy: list[tuple[float, float]] = field(default_factory=list)
    """When the neighbour began and ended, in seconds."""
    cell: tuple[object, ...] | None = None
    generator: random.Random = field(init=False)
    bursts: random.Random = field(init=False)
    phase: float = field(init=False)

    def __post_init__(self) -> None:
        self.generator = random.Random(self.seed)
        self.bursts = random.Random(-self.seed - 1)
        self.phase = self.generator.uniform(0, 2 * math.pi)

    def now(self) -> float:
        return self.time

    def measure(self, config: Config, request: Request) -> Attempt:
        begin = self.time
        cell = (config.batch_size, config.amp, config.intra_op_threads)
        if request.fresh:
            self.time += PROCESS_SECONDS
        if request.fresh or cell != self.cell:
            self.time += CELL_SECONDS
        self.cell = None if request.fresh else cell
        if request.part != "compute":  # a look at the step is what warms it
            self.time += min(WINDOW_SECONDS, request.seconds)
        found = {"training": self.train, "compute": self.step, "loader": self.load, "numerics": self.check}
        if request.part not in found:
            return Attempt(outcome=Outcome.TIMEOUT, message="this machine has no gradients", seconds=self.time - begin)
        return found[request.part](config, self.time - begin)

    def factor(self) -> float:
        wave = math.sin(self.phase + 2 * math.pi * self.time / WAVE_SECONDS) if self.drifts else 0.0
        return math.exp(DRIFT * wave - BURST_LOSS * self.busy_share() + self.generator.gauss(0, NOISE))

    def busy_share(self) -> float:
        """Return for which share of the window that ends now the neighbour has used its CPUs."""
        if not self.is_disturbed:
            return 0.0
        while not self.busy or self.busy[-1][1] < self.time:
            begin = (self.busy[-1][1] if self.busy else 0.0) + self.bursts.expovariate(1 / PAUSE_SECONDS)
            self.busy.append((begin, begin + self.bursts.expovariate(1 / BURST_SECONDS)))
        first = self.time - WINDOW_SECONDS
        return sum(max(0.0, min(self.time, end) - max(first, begin)) for begin, end in self.busy) / WINDOW_SECONDS

    def train(self, config: Config, seconds: float) -> Attempt:
        true = BASE_RATE * (1 + self.gain if config.num_workers else 1.0)
        rate, factor = true * (now := self.factor()), now
        step = config.batch_size / (BASE_RATE * (1 + self.gain) * factor)
        wait = config.batch_size / rate - step
        measured = Measurement(
            samples_per_second=rate,
            ci95=(0.98 * rate, 1.02 * rate),
            steady_samples_per_second=rate,
            ceiling_samples_per_second=BASE_RATE * (1 + self.gain) * factor,
            steps=100,
            settling_steps=10,
            samples=100 * config.batch_size,
            seconds=WINDOW_SECONDS,
            step_time=StepTime(
                data_wait=wait, host_to_device=0.0, forward=step / 3, backward=2 * step / 3, optimizer=0.0, other=0.0
            ),
            device_idle_share=None,
            first_batch_seconds=0.1,
            restart_seconds=None,
            persistence_gain=None,
            epoch_samples=None,
            peak_memory_bytes=GIB,
            memory="host",
            memory_limit_bytes=16 * GIB,
            peak_allocated_bytes=None,
            host_memory_bytes=GIB,
            shared_memory_bytes=0,
            worker_growth_bytes_per_sample=None,
            epoch_host_memory_bytes=None,
            ready_batches=0.0,
            conditions=QUIET,
            loss=1.0,
        )
        if (share := self.busy_share()) > 0:
            foreign = 0.9 * HOST.cpus * share  # they take nearly all that there is
            conditions = replace(QUIET, is_crowded=True, foreign_cpus=foreign)
            return Attempt(outcome=Outcome.SUSPECT, payload=replace(measured, conditions=conditions), seconds=seconds)
        return Attempt(outcome=Outcome.OK, payload=measured, seconds=seconds)

    def step(self, config: Config, seconds: float) -> Attempt:
        rate = BASE_RATE * (1 + self.gain) * self.factor()
        probe = ComputeProbe(
            samples_per_second=rate,
            first_step_seconds=config.batch_size / rate,
            host_seconds=config.batch_size / rate,
            cpu_seconds=config.batch_size / rate,
            peak_memory_bytes=GIB,
            memory="host",
            memory_limit_bytes=16 * GIB,
            host_memory_bytes=GIB,
        )
        return Attempt(outcome=Outcome.OK, payload=probe, seconds=seconds)

    def load(self, config: Config, seconds: float) -> Attempt:
        build = self.gain * config.batch_size / (BASE_RATE * (1 + self.gain)) + 1e-6
        trace = LoaderTrace(
            batch_size=config.batch_size,
            build_seconds=(build,) * 20,
            receive_seconds=0.0,
            pin_seconds=0.0,
            transfer_seconds=0.0,
            cpu_seconds=0.01 * build,
            batch_bytes=2**20,
            start_seconds=0.02,
            worker_memory_bytes=2**24,
            storage_share=0.0,
        )
        return Attempt(outcome=Outcome.OK, payload=trace, seconds=seconds)

    def check(self, config: Config, seconds: float) -> Attempt:
        same = (1.0,) * 20
        check = NumericsCheck(
            reference_losses=same, other_losses=same, losses=same, overflows=(), settles=True, seconds=0.0
        )
        return Attempt(outcome=Outcome.OK, payload=check, seconds=seconds)


QUIET = Conditions(
    own_cpus=1.0,
    foreign_cpus=0.0,
    cpus=8,
    is_crowded=False,
    throttled_share=0.0,
    storage_share=0.0,
    worker_threads=1,
    gpu_utilisation=None,
    gpu_foreign_bytes=None,
    gpu_slowdowns=(),
    allocator_retries=0,
)
FACTS = WorkloadFacts(
    dataset_length=None,
    iterable=False,
    sets_epoch=False,
    parameters=1000,
    has_batch_norm=False,
    loss_reduction="mean",
    device="cpu",
    device_name="simulated",
    model_name="Simulated",
    dataset_name="Simulated",
    amp_modes=("off", "bf16"),
    intra_op_threads=8,
    inter_op_threads=8,
    fingerprint="simulated",
    versions={"python": "3.11", "torch": "2.13"},
)
HOST = Host(
    cpus=8,
    cpu_model="simulated",
    affinity_cpus=8,
    quota_cpus=None,
    memory_bytes=16 * GIB,
    shm_bytes=8 * GIB,
    gpus=(),
    versions={"autotune": "simulated"},
    platform="Linux",
)


def run(job: tuple[str, float, float, int]) -> dict[str, object]:
    """One whole run of autotune, and one further run of training with its answer a minute later."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    what, gain, budget, seed = job
    machine = Machine(
        gain=gain, seed=seed, drifts=what in ("drifting", "both"), is_disturbed=what in ("disturbed", "both")
    )
    space = build_space(FACTS, HOST.cpus, Config(), parse_knobs(BOUNDS))
    time = Budget(budget, machine.now)
    result = Tuner(machine, Setup(space=space, facts=FACTS, host=HOST), time, Messages(time)).result()
    low, high = result.speedup_ci95 or (math.nan, math.nan)
    next_low, next_high = result.next_run_95 or (math.nan, math.nan)
    confirmed = {trial.config for trial in result.history if trial.kind == "confirm"} - {Config()}
    seconds = machine.time
    machine.time += 60.0
    further = machine.measure(result.config, Request(seconds=WINDOW_SECONDS, fresh=True)).measurement
    assert further is not None
    return {
        "machine": what,
        "gain": gain,
        "budget": budget,
        "seed": seed,
        "verdict": str(result.verdict),
        "speedup": f"{result.speedup:.5g}",
        "low": f"{low:.5g}",
        "high": f"{high:.5g}",
        "most_gain": "" if result.most_gain is None else f"{result.most_gain:.4g}",
        "rounds": result.rounds,
        "finalists": len(confirmed),
        "next_low": f"{next_low:.5g}",
        "next_high": f"{next_high:.5g}",
        "next": f"{further.samples_per_second:.5g}",
        "seconds": f"{seconds:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate whole runs.")
    parser.add_argument("--runs", type=int, default=1000, help="of each kind")
    parser.add_argument("--first", type=int, default=1000, help="first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "recorded" / "runs.csv")
    options = parser.parse_args()
    jobs = [(*cell, options.first + index) for cell in CELLS for index in range(options.runs)]
    options.output.parent.mkdir(exist_ok=True)
    begin = time.time()
    with options.output.open("w", newline="", encoding="utf-8") as file, ProcessPoolExecutor(options.jobs) as pool:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(pool.map(run, jobs, chunksize=4))
    print(f"{len(jobs)} runs in {time.time() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
