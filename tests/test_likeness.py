from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.host import Gpu
from autotune.likeness import MEMORY_TOLERANCE, Described, difference, largest_group
from autotune.records import WorkloadFacts
from tests import examples

GIB = 2**30
H200 = Gpu(uuid="GPU-1", name="NVIDIA H200", memory_bytes=141 * GIB, driver="570.1")


def described(name: str = "a", facts: WorkloadFacts | None = None, **changes: Any) -> Described:
    return Described(name=name, host=examples.host(**changes), facts=facts or examples.facts())


def on_gpu(name: str, *gpus: Gpu) -> Described:
    return described(name, facts=examples.facts(device="cuda:0", device_name="NVIDIA H200"), gpus=gpus)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cpu_model": "another CPU"}, "CPU another CPU, b has "),
        ({"cpus": 63}, "CPUs 63, b has "),
        ({"memory_bytes": 7 * GIB}, "memory 7.0 GiB, b has "),
        ({"shm_bytes": GIB // 16}, "shared memory 64 MiB, b has "),
        ({"versions": {**examples.host().versions, "autotune": "9.9"}}, "autotune 9.9, b has "),
    ],
)
def test_a_difference_is_said_with_both_sides(changes: dict[str, Any], said: str) -> None:
    assert said in str(difference(described(**changes), described("b", memory_bytes=8 * GIB)))


def test_another_workload_is_a_difference() -> None:
    other = described("b", facts=examples.facts(fingerprint="another"))
    assert difference(described(), other) == "its model, dataset or training code is not that of b"


def test_another_number_of_threads_by_default_is_a_difference() -> None:
    other = described("b", facts=examples.facts(intra_op_threads=1))
    assert str(difference(described(), other)).startswith("torch's own threads ")


def test_gpus_count_by_name_and_memory_and_only_where_training_uses_them() -> None:
    one, other = on_gpu("a", H200), on_gpu("b", replace(H200, uuid="GPU-2"))
    assert difference(one, other) is None
    assert "GPUs none, b has NVIDIA H200 141 GiB" in str(difference(on_gpu("a"), other))
    assert difference(described(gpus=(H200,)), described("b")) is None


@given(memory=st.integers(GIB, 2**45), share=st.floats(0.0, 0.1))
def test_memory_is_alike_within_its_tolerance(memory: int, share: float) -> None:
    one, other = described(memory_bytes=memory), described("b", memory_bytes=int(memory * (1 - share)))
    gap = (memory - other.host.memory_bytes) / memory
    assert (difference(one, other) is None) == (gap <= MEMORY_TOLERANCE)


@given(cpus=st.lists(st.integers(1, 4), min_size=1, max_size=12), own=st.integers(0, 11))
def test_the_largest_group_is_used_and_all_others_are_named(cpus: list[int], own: int) -> None:
    hosts = [described(str(number), cpus=count) for number, count in enumerate(cpus)]
    group, others = largest_group(hosts, str(own))
    assert {host.name for host in group} | set(others) == {host.name for host in hosts}
    assert len(group) == max(cpus.count(count) for count in cpus)
    assert {host.host.cpus for host in group} == {group[0].host.cpus}
    assert all(others.values())
    is_tied = own < len(cpus) and cpus.count(cpus[own]) == len(group)
    assert not is_tied or str(own) in {host.name for host in group}
