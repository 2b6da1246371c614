"""How workers are started: kept as a loader has it, searched where values are named, and in file and exports."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autotune import export, load_config
from autotune.config import Config
from autotune.existing_loader import take_apart
from autotune.records import Request
from autotune.report.text import config_text
from autotune.runner.local import ProcessRunner
from autotune.sites import changed
from autotune.workload import Workload, describe
from tests.simulated import gpu_facts, space_of


class Started(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([2.0 if type(multiprocessing.current_process()).__name__ == "SpawnProcess" else 1.0])


def started() -> Workload:
    """A workload whose loss tells how its workers were started."""
    step = nn.Linear(1, 1)
    return Workload(step, Started(), training_step=lambda model, batch: batch.mean() + 0 * model(batch).sum())


SPAWN = Config(batch_size=8, num_workers=2, multiprocessing_context="spawn")
DATASET = TensorDataset(torch.zeros(8, 1))


def test_a_loader_keeps_its_start_and_the_others_have_none() -> None:
    loader = DataLoader(DATASET, num_workers=2, multiprocessing_context="spawn")
    existing = take_apart(loader)
    assert existing.present["multiprocessing_context"] == "spawn"
    assert existing.data["loader_options"] is None
    assert "multiprocessing_context" not in take_apart(DataLoader(DATASET, num_workers=2)).present
    assert Config(**existing.present).dataloader(DATASET).multiprocessing_context.get_start_method() == "spawn"  # type: ignore[union-attr]


def test_it_varies_only_where_values_are_named_and_needs_workers() -> None:
    plain, named = space_of(gpu_facts()), space_of(gpu_facts(), multiprocessing_context="fork,spawn")
    assert {config.multiprocessing_context for config in plain.configs} == {None}
    assert {(config.num_workers > 0, config.multiprocessing_context) for config in named.configs} == {
        (False, None),
        (True, "fork"),
        (True, "spawn"),
    }
    kept = space_of(gpu_facts(), baseline=SPAWN)
    assert {config.multiprocessing_context for config in kept.configs if config.num_workers} == {"spawn"}


def test_it_is_in_file_and_exports_and_a_configuration_without_it_reads_as_before(tmp_path: Path) -> None:
    SPAWN.save(tmp_path / "a.yaml")
    assert load_config(tmp_path / "a.yaml") == SPAWN
    assert 'multiprocessing_context="spawn"' in export(SPAWN, "python").text
    assert [gap.knob for gap in export(SPAWN, "transformers").gaps] == ["multiprocessing_context"]
    assert "multiprocessing_context" not in repr(Config()) + str(Config(num_workers=2).to_document())
    assert "multiprocessing_context='spawn'" in repr(SPAWN)
    assert config_text(SPAWN).endswith(" · not persistent · spawn · fp32")


@pytest.mark.parametrize(
    ("config", "own", "start"),
    [(SPAWN, None, "spawn"), (SPAWN, "fork", "spawn"), (Config(num_workers=1), "fork", "fork")],
)
def test_apply_gives_a_scripts_loader_the_answers_start_or_leaves_its_own(
    config: Config, own: str | None, start: str
) -> None:
    given = {"dataset": DATASET, "num_workers": 1, **({"multiprocessing_context": own} if own else {})}
    assert changed(given, config)["multiprocessing_context"] == start
    assert "multiprocessing_context" not in changed(given, Config())


@pytest.mark.machine
def test_workers_are_measured_as_they_are_started() -> None:
    with ProcessRunner(describe("tests.test_multiprocessing_context:started")) as runner:
        runner.inspect(SPAWN)
        for context, loss in (("spawn", 2.0), ("fork", 1.0)):
            config = Config(batch_size=8, num_workers=1, multiprocessing_context=context)  # type: ignore[arg-type]
            attempt = runner.measure(config, Request(seconds=0.2))
            assert attempt.measurement is not None, attempt.message
            assert attempt.measurement.loss == loss
