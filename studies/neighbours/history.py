"""Print every look and trial of one run beside the truth.

python -m studies.neighbours.history neighbours 23
"""

from __future__ import annotations

import sys

from autotune.config import Config
from autotune.messages import Progress
from autotune.records import Attempt
from studies.neighbours.machines import Place, place
from studies.neighbours.neighbours import budget_of, machine_of
from tests.simulated import SimulatedMachine, tuner_of


def line(machine: SimulatedMachine, place: Place, kind: str, config: Config, attempt: Attempt) -> str:
    """Return a look or a trial in words: the rate over the true one, and the CPUs that others took."""
    text = f"{machine.time:6.1f} s  {kind:8} {config.batch_size:4} x {config.num_workers} workers, "
    text += "persistent, " if config.persistent_workers else ""
    text += f"{config.intra_op_threads or place.job.cpus} threads  {attempt.outcome:8}"
    if compute := attempt.compute:
        true = config.samples_per_step / place.job.cost(config).compute
        return f"{text} step at {compute.samples_per_second / true:.2f} of the truth"
    if measured := attempt.measurement:
        rate, base = place.job.rate(config), place.job.rate(place.space.base)
        text += f" {measured.samples_per_second / rate:.2f} of the true {rate / base:.3f}"
        return f"{text}, others on {measured.conditions.foreign_cpus:.1f} CPUs"
    return text


def main(part: str, seed: int) -> None:
    """Run it again, and print."""
    there = place(seed)
    machine = machine_of(part, seed, there)

    def tell(progress: Progress) -> None:
        if (looked := progress.looked) is not None:
            print(line(machine, there, looked.part, looked.config, looked.attempt))
        if (trial := progress.finished) is not None:
            print(line(machine, there, trial.kind, trial.config, trial.attempt))

    result = tuner_of(machine, there.space, there.facts, there.host, budget_of(seed), tell, seed=seed).result()
    print(result.sentence, result.stop_reason, *result.notes, f"best {1 + there.gain:.3f}", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
