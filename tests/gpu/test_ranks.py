"""Ranks on accelerators: one each, gradients by NCCL."""

from __future__ import annotations

import pytest
import torch

from autotune.config import Config
from autotune.errors import UsageError
from autotune.outcome import Outcome
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe

CONFIG = Config(batch_size=8, num_workers=1, ranks=2)

needs_two = pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two accelerators")


def kind() -> str:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator.type


@needs_two
@pytest.mark.parametrize("workload", ["equal", "shards"])
def test_every_rank_has_a_device_of_its_own(workload: str) -> None:
    with ProcessRunner(describe(f"tests.ranks.workloads:{workload}"), kind()) as runner:
        facts = runner.inspect(CONFIG)
        attempt = runner.measure(CONFIG, Request(seconds=2.0))
    assert len({facts.device_uuid, *facts.other_devices}) == 2
    assert attempt.outcome in (Outcome.OK, Outcome.SUSPECT), attempt
    assert attempt.measurement.memory == "device"
    assert len(attempt.measurement.ranks) == 2


def assert_refused(device: str, ranks: int, message: str) -> None:
    source = describe("tests.ranks.workloads:equal")
    with pytest.raises(UsageError, match=message), ProcessRunner(source, device) as runner:
        runner.inspect(Config(batch_size=8, num_workers=1, ranks=ranks))


def test_more_ranks_than_devices_and_a_device_by_number_for_several_are_refused() -> None:
    count = torch.accelerator.device_count()
    assert_refused(kind(), count + 1, f"--ranks {count + 1}: this machine has {count} accelerators")
    assert_refused(f"{kind()}:0", 2, "each of 2 ranks has a device of its own")
