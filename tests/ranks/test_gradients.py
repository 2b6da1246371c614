"""Gradients of several ranks are those of one process with all their samples, however they are accumulated."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from autotune.config import Config
from autotune.measure.rank_group import RankGroup
from tests.ranks.in_ranks import in_ranks

SAMPLES, BATCH, RANKS = 24, 4, 2


class Recording(torch.optim.SGD):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.seen: list[list[float]] = []

    def step(self, *given: Any, **more: Any) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        self.seen.append(torch.cat([gradient.flatten() for gradient in gradients]).tolist())
        return super().step(*given, **more)


def trained(config: Config, batches: Iterable[torch.Tensor], reduction: Literal["mean", "sum"]) -> list[list[float]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = Recording(model)
    replicas: nn.Module = DistributedDataParallel(model) if config.ranks > 1 else model
    accumulator = config.accumulator(optimizer, "cpu", reduction=reduction)
    for batch in batches:
        with accumulator.accumulate(replicas):
            loss = functional.mse_loss(replicas(batch), batch.sum(dim=1, keepdim=True), reduction=reduction)
            accumulator.backward(loss, len(batch))
        accumulator.step()
    accumulator.flush()
    return optimizer.seen


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("accumulation_steps", [1, 2, 3])
def test_gradients_are_those_of_one_process_with_all_samples(
    tmp_path: Path, reduction: Literal["mean", "sum"], accumulation_steps: int
) -> None:
    config = Config(batch_size=BATCH, accumulation_steps=accumulation_steps, ranks=RANKS)
    inputs = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(0))

    def work(group: RankGroup) -> Any:
        return trained(config, inputs[group.rank :: RANKS].split(BATCH), reduction)

    found, in_a_step = in_ranks(RANKS, tmp_path, work), BATCH * RANKS * accumulation_steps
    whole = trained(Config(batch_size=in_a_step), inputs.split(in_a_step), reduction)
    assert len(found[0]) == -(-SAMPLES // in_a_step)
    for mine in found:
        assert mine == [pytest.approx(gradients, rel=1e-4, abs=1e-5) for gradients in whole]


def test_ranks_with_other_numbers_of_samples_step_alike_and_as_one_process_would(tmp_path: Path) -> None:
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    config, batches = Config(batch_size=4, accumulation_steps=2, ranks=RANKS), inputs.split((4, 1, 4, 3))

    def work(group: RankGroup) -> Any:
        return trained(config, batches[2 * group.rank : 2 * group.rank + 2], "mean")

    first, second = in_ranks(RANKS, tmp_path, work)
    assert first == second
    assert first == [pytest.approx(trained(Config(batch_size=12), [inputs], "mean")[0], rel=1e-4, abs=1e-6)]


def test_ranks_synchronise_only_in_the_last_batch_before_a_step(tmp_path: Path) -> None:
    config = Config(batch_size=BATCH, accumulation_steps=3, ranks=RANKS)

    def work(group: RankGroup) -> Any:
        replicas, batch = DistributedDataParallel(nn.Linear(3, 1)), torch.full((4, 3), float(group.rank))
        accumulator = config.accumulator(torch.optim.SGD(replicas.parameters(), lr=0.0), "cpu")
        same = []
        for _ in range(3):
            with accumulator.accumulate(replicas):
                accumulator.backward(replicas(batch).mean(), 4)
            gradients = group.gather([p.grad.tolist() for p in replicas.parameters() if p.grad is not None])
            same.append(gradients[0] == gradients[1])
        return same

    assert in_ranks(RANKS, tmp_path, work) == [[False, False, True]] * 2


def test_a_model_that_is_no_replica_needs_no_context() -> None:
    accumulator = Config(batch_size=2, accumulation_steps=2).accumulator(Recording(model := nn.Linear(3, 1)), "cpu")
    assert not accumulator.is_last
    with accumulator.accumulate(model):
        accumulator.backward(model(torch.ones(2, 3)).mean())
    assert accumulator.is_last
    assert not accumulator.step()
