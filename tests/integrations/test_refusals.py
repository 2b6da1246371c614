"""What cannot be tuned from where a trainer is says so, with the way out, before anything is measured."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import autotune
from autotune.config import Config
from autotune.errors import UsageError, UserCodeError
from tests.datasets import Squares

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the packages say of themselves on import
    accelerate = pytest.importorskip("accelerate")
    lightning = pytest.importorskip("lightning")
    transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
LOADER = DataLoader(Squares(8))
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class WithoutStep(lightning.LightningModule):  # type: ignore[misc, name-defined]
    configure_optimizers = Module.configure_optimizers


class WithoutOptimizer(lightning.LightningModule):  # type: ignore[misc, name-defined]
    training_step = Module.training_step


class ByHand(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class TakesAnIterator(Module):
    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        return next(dataloader_iter)


class WithTwoLoaders(Module):
    def train_dataloader(self) -> Any:
        return [LOADER, LOADER]


def trainer(**options: Any) -> Any:
    return lightning.Trainer(accelerator="cpu", **(QUIET | options))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: ("trainer", Module(), LOADER), "trainer is str; allowed: a lightning Trainer"),
        (lambda: (trainer(), nn.Linear(1, 1), LOADER), "module is Linear; allowed: a LightningModule"),
        (lambda: (trainer(), torch.compile(Module()), LOADER), "not compiled and not wrapped"),
        (lambda: (trainer(), WithoutStep(), LOADER), "WithoutStep has no training_step"),
        (lambda: (trainer(), WithoutOptimizer(), LOADER), "WithoutOptimizer has no configure_optimizers"),
        (lambda: (trainer(), ByHand(), LOADER), "ByHand optimizes by itself"),
        (lambda: (trainer(), TakesAnIterator(), LOADER), "TakesAnIterator.training_step takes dataloader_iter"),
        (lambda: (trainer(devices=2), Module(), LOADER), "DDPStrategy on 2 x 1 devices; allowed: one device"),
        (lambda: (trainer(precision="bf16-true"), Module(), LOADER), "precision is bf16-true; allowed: 32-true"),
        (lambda: (trainer(), Module(), [LOADER, LOADER]), "the training loader is list; allowed: one torch DataLoader"),
        (lambda: (trainer(), Module(), Squares(8)), "the training loader is Squares; allowed: one torch DataLoader"),
        (lambda: (trainer(), WithTwoLoaders()), "the training loader is list; allowed: one torch DataLoader"),
        (lambda: (trainer(), Module()), "there is no training loader: pass a DataLoader or a LightningDataModule"),
    ],
)
def test_what_lightning_trains_and_cannot_be_tuned_is_refused(given: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        autotune.lightning.tune(*given())
    assert message in str(caught.value)


def hugging(**options: Any) -> Any:
    arguments = transformers.TrainingArguments(output_dir="/nonexistent", use_cpu=True, report_to=[])
    return transformers.Trainer(
        **({"model": nn.Linear(1, 1), "args": arguments, "train_dataset": Squares(8)} | options)
    )


def wrapped() -> Any:
    found = hugging()
    found.model_wrapped = nn.Sequential(found.model)
    return found


class Listing(transformers.Trainer):  # type: ignore[misc, name-defined]
    def get_train_dataloader(self) -> Any:
        return [LOADER]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: trainer(), "trainer is Trainer; allowed: a transformers.Trainer"),
        (lambda: hugging(train_dataset=None), "the Trainer has no train_dataset"),
        (wrapped, "the Trainer has trained its model already"),
        (
            lambda: Listing(model=nn.Linear(1, 1), args=hugging().args, train_dataset=Squares(8)),
            "the training loader is",
        ),
    ],
)
def test_what_transformers_trains_and_cannot_be_tuned_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        autotune.transformers.tune(make())
    assert message in str(caught.value)


def test_what_is_prepared_already_is_refused() -> None:
    accelerator, model = accelerate.Accelerator(cpu=True), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared = accelerator.prepare(model, optimizer, LOADER)
    for position, name in ((1, "AcceleratedOptimizer"), (2, "DataLoaderShard")):
        given = [model, optimizer, LOADER]
        given[position] = prepared[position]
        with pytest.raises(UsageError, match=f"{name} is prepared already: tune before accelerator.prepare"):
            autotune.accelerate.tune(accelerator, *given)
    with pytest.raises(UsageError, match=r"accelerator is str; allowed: an accelerate\.Accelerator"):
        autotune.accelerate.tune("accelerator", model, optimizer, LOADER)
    with pytest.raises(UsageError, match="the loader is list; allowed: one torch DataLoader"):
        autotune.accelerate.tune(accelerator, model, optimizer, [LOADER])


class TwoOptimizers(Module):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]


class SkipsBatches(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class AsksTheTrainer(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.trainer.fit_loop.epoch_progress


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (TwoOptimizers, "configure_optimizers made SGD, SGD; allowed: one optimizer"),
        (SkipsBatches, "training_step returned NoneType; allowed: the loss"),
        (AsksTheTrainer, "trainer.fit_loop is not there while autotune measures"),
    ],
)
def test_what_shows_only_when_the_module_runs_is_the_users_error(kind: type[Module], message: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        autotune.lightning.tune(trainer(), kind(), LOADER, budget=30)
    assert message in str(caught.value)


class Augmenting(Module):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


def test_what_is_not_measured_is_said() -> None:
    clipping = trainer(gradient_clip_val=0.5, gradient_clip_algorithm="value")
    expected = "not part of what is measured: Augmenting.on_before_batch_transfer, clipping gradients by value"
    with pytest.warns(UserWarning, match=expected), pytest.raises(UsageError):
        autotune.lightning.tune(clipping, Augmenting(), LOADER, budget="none")


def test_updated_arguments_are_a_copy_with_the_configurations_settings(tmp_path: Path) -> None:
    given = transformers.TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to=[], learning_rate=math.pi, optim="sgd"
    )
    config = Config(batch_size=3, num_workers=2, prefetch_factor=4, amp="bf16", accumulation_steps=5, pin_memory=True)
    found = autotune.transformers.updated(given, config)
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps, found.bf16) == (3, 5, True)
    assert (found.dataloader_num_workers, found.dataloader_prefetch_factor) == (2, 4)
    assert found.accelerator_config.non_blocking is True
    assert (found.learning_rate, found.optim) == (math.pi, "sgd")
    assert (given.per_device_train_batch_size, given.bf16) == (8, False)
    assert given.accelerator_config.non_blocking is False


def test_options_that_were_explored_are_set_too(tmp_path: Path) -> None:
    given = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    found = autotune.transformers.updated(given, Config(options=("fused_optimizer", "checkpointing")))
    assert (found.optim, found.gradient_checkpointing) == ("adamw_torch_fused", True)
    assert autotune.transformers.updated(given, Config()).optim == given.optim
