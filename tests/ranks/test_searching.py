"""Configurations of several ranks: settings and memory are those of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.config import Config
from autotune.errors import UsageError
from autotune.knobs import as_baseline, fitted
from autotune.records import RankShare
from autotune.report.text import TIMES, config_text, one_configuration
from tests import examples
from tests.simulated import SimulatedMachine, few_of, gpu_facts, host, loader_bound, tuner_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 10, 4), "--global-batch-size 10: no multiple of --ranks 4"),
        (({"batch_size": 3}, 8, 2), "in each of 2 ranks; pass --baseline batch_size=N with a divisor of 4"),
        ((None, None, 0), "--ranks 0: allowed: whole numbers from 1"),
        ((None, None, True), "--ranks True: allowed"),
        ((Config(ranks=2), None, 4), "--ranks 4: the baseline has 2"),
    ],
)
def test_what_cannot_be_divided_is_refused_and_a_baseline_brings_its_ranks(
    arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        as_baseline(*arguments)
    assert message in str(caught.value)
    given: list[tuple[Any, ...]] = [(Config(ranks=2),), ({"ranks": 3},), (Config(ranks=2), None, 2)]
    assert [as_baseline(*each).ranks for each in given] == [2, 3, 2]


def test_a_dataset_that_the_ranks_cannot_share_is_refused() -> None:
    baseline = Config(batch_size=32, ranks=4)
    assert fitted(baseline, gpu_facts(epoch_samples=40), None).batch_size == 10
    with pytest.raises(UsageError, match="--ranks 4: an epoch has only 3 samples"):
        fitted(baseline, gpu_facts(epoch_samples=3), None)


def test_a_rank_has_its_share_of_the_host() -> None:
    whole = examples.host(cpus=8, affinity_cpus=8, quota_cpus=6.0, memory_bytes=2**34, shm_bytes=2**30)
    assert whole.for_rank(1) is whole
    share = whole.for_rank(4)
    assert (share.cpus, share.affinity_cpus, share.quota_cpus) == (2, 2, 1.5)
    assert (share.memory_bytes, share.shm_bytes) == (2**32, 2**28)
    assert whole.for_rank(16).cpus == 1


@pytest.mark.parametrize(("ranks", "workers", "threads"), [(1, 6, 4), (2, 3, 2), (3, 2, 1), (8, 1, 1)])
def test_a_file_for_other_ranks_keeps_workers_and_threads_of_all(
    ranks: int, workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(batch_size=8, num_workers=3, intra_op_threads=2, ranks=2)
    found = config.for_rank(ranks)
    assert (found.ranks, found.batch_size, found.num_workers, found.intra_op_threads) == (ranks, 8, workers, threads)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert config.for_rank() is config


def test_a_file_keeps_the_number_of_ranks(tmp_path: Path) -> None:
    Config(batch_size=8, ranks=2).save(tmp_path / "two.yaml")
    assert autotune.load_config(tmp_path / "two.yaml").ranks == 2
    Config(batch_size=8).save(tmp_path / "one.yaml")
    assert "ranks" not in (tmp_path / "one.yaml").read_text(encoding="utf-8")


def test_ranks_and_the_slowest_of_them_are_named_where_there_are_several() -> None:
    share = {"data_wait_seconds": 0.0, "peak_memory_bytes": 1}
    ranks = (RankShare(rank=0, own_seconds=0.08, **share), RankShare(rank=1, own_seconds=0.1, **share))
    several, one = Config(batch_size=8, ranks=2), Config(batch_size=8)
    assert config_text(several).startswith(f"2 ranks{TIMES}batch 8 · ")
    assert config_text(one).startswith("batch 8 · ")
    rows = {row.name: row.cells for row in one_configuration(several, examples.measurement(ranks=ranks)).rows}
    assert (rows["ranks"], rows["slowest rank"]) == (("2",), ("1 of 2, spread 20 %",))
    assert not {"ranks", "slowest rank"} & {row.name for row in one_configuration(one, examples.measurement()).rows}


@pytest.mark.parametrize(
    ("devices", "ranks", "advice"),
    [(2, 1, ["pass --ranks 2, and train with torchrun"]), (1, 1, ["take it out"]), (None, 1, []), (2, 2, [])],
)
def test_a_run_says_what_to_do_about_data_parallel(devices: int | None, ranks: int, advice: list[str]) -> None:
    facts = gpu_facts(data_parallel_devices=devices)
    space = few_of(facts, 8, Config(ranks=ranks))
    result = tuner_of(SimulatedMachine(cost=loader_bound), space, facts, host(16), max_trials=1).result()
    found = [note for note in result.notes if "nn.DataParallel" in note]
    assert len(found) == len(advice)
    assert all(map(str.endswith, found, advice))
