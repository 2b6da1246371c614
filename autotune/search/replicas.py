"""A model in ``nn.DataParallel``: what the same samples give in ranks of ``DistributedDataParallel`` instead.

DataParallel copies the model to every device in every step, from one process whose interpreter lock its threads share.
Pure but for the runner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import geometric_mean

from autotune.config import Config
from autotune.host import Host
from autotune.records import Request, Runner, WorkloadFacts

__all__ = ["advice_on_data_parallel", "in_ranks"]

ROUNDS = 2
"""Measurements of both, in turn."""
MEASUREMENTS = 2 * ROUNDS
"""Of both together."""
WRAPPED = "the model is in nn.DataParallel, one process for all devices"
ADVICE = "take it out of that, pass --ranks {ranks}, and train with torchrun"


def in_ranks(config: Config, ranks: int) -> Config:
    """Return a configuration of one process as so many ranks, with as many samples in a step."""
    return replace(config.for_rank(ranks), batch_size=max(1, config.batch_size // ranks))


def advice_on_data_parallel(
    runner: Runner,
    answer: Config,
    facts: WorkloadFacts,
    host: Host,
    *,
    seconds: float,
    has_time: Callable[[int], bool],
) -> str | None:
    """Return what to do about a model in ``nn.DataParallel``, with the ranks that were measured beside it.

    ``has_time`` tells whether there is any for so many measurements of ``seconds``. ``None`` for any other model.
    """
    if facts.data_parallel_devices is None or answer.ranks > 1:
        return None
    ranks = min(2, host.cpus) if facts.device == "cpu" else facts.data_parallel_devices
    if ranks < 2:
        return f"{WRAPPED}, of which there is one here: it does nothing; take it out"
    advice = f"{WRAPPED}: {ADVICE.format(ranks=ranks)}"
    alternative = in_ranks(answer, ranks)
    ratios = []
    for _ in range(ROUNDS if has_time(MEASUREMENTS) else 0):
        found = [
            runner.measure(config, Request(seconds=seconds, fresh=True)).measurement for config in (answer, alternative)
        ]
        if found[0] is None or found[1] is None:
            return f"{advice}; {ranks} ranks could not be measured here"
        ratios.append(found[1].samples_per_second / found[0].samples_per_second)
    if not ratios:
        return f"{advice}; there was no time to measure that"
    return f"{advice}: {ranks} ranks gave {geometric_mean(ratios):.2f} times its rate, measured in turn {ROUNDS} times"
