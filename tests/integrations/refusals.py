"""What cannot be tuned from where a trainer is says so, with the way out, before anything is measured.

``test_integrations`` runs these tests in a process of their own: the packages take half a gibibyte when imported.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import autotune
from autotune.config import Config
from autotune.errors import UsageError
from autotune.measure.session import Session
from autotune.outcome import Outcome
from autotune.records import Request
from autotune.workload import Workload, describe, load
from tests.datasets import Squares

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the packages say of themselves on import
    accelerate = pytest.importorskip("accelerate")
    lightning = pytest.importorskip("lightning")
    transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.machine, pytest.mark.filterwarnings("default")]
LOADER = DataLoader(Squares(8))
ONE, PREPARED = "allowed: one torch DataLoader", "is prepared already: tune before accelerator.prepare"
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Trainer makes its output folder when it is made."""
    monkeypatch.chdir(tmp_path)


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


def compiled() -> Module:
    found = Module()
    found.compile()
    return found


def trainer(**options: Any) -> Any:
    return lightning.Trainer(accelerator="cpu", **(QUIET | options))


def arguments(folder: Path, **options: Any) -> Any:
    return transformers.TrainingArguments(output_dir=str(folder), report_to=[], **options)


def hugging(kind: Any = transformers.Trainer, **options: Any) -> Any:
    args = arguments(Path("output"), use_cpu=True, remove_unused_columns=False)
    return kind(**({"model": nn.Linear(1, 1), "args": args, "train_dataset": Squares(8)} | options))


def trained() -> Any:
    found = hugging()
    found.state.global_step = 1
    return found


class Listing(transformers.Trainer):  # type: ignore[misc, name-defined]
    def get_train_dataloader(self) -> Any:
        return [LOADER]


Handed = Callable[..., Workload]


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Handed:
    """Returns the workload that Lightning's trainer, module and loader become, as a measuring process gets it.

    That it goes through processes is in ``test_integrations``; each would import the packages for six seconds.
    """
    given: list[Workload] = []
    monkeypatch.setattr("autotune.integrations.dataloader.tune", lambda workload, **options: given.append(workload))

    def hand(*given_to: Any) -> Workload:
        autotune.lightning.tune(*given_to)
        return load(describe(given.pop()))

    return hand


def assert_refused(tune: Callable[..., Any], given: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        tune(*given)
    assert message in str(caught.value)


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
        (lambda: (trainer(), compiled(), LOADER), "Module is compiled in place: pass it before that"),
        (
            lambda: (trainer(devices=2, num_nodes=2), Module(), LOADER),
            "DDPStrategy on 2 x 2 devices; allowed: one device",
        ),
        (lambda: (trainer(precision="bf16-true"), Module(), LOADER), "precision is bf16-true; allowed: 32-true"),
        (lambda: (trainer(), Module(), [LOADER, LOADER]), f"the training loader is list; {ONE}"),
        (lambda: (trainer(), Module(), Squares(8)), f"the training loader is Squares; {ONE}"),
        (lambda: (trainer(), WithTwoLoaders()), f"the training loader is list; {ONE}"),
        (lambda: (trainer(), Module()), "there is no training loader: pass a DataLoader or a LightningDataModule"),
        (trainer, "trainer is Trainer; allowed: a transformers.Trainer"),
        (lambda: hugging(train_dataset=None), "the Trainer has no train_dataset"),
        (trained, "the Trainer has trained its model already"),
        (lambda: hugging(Listing), "the training loader is"),
    ],
)
def test_what_a_trainer_trains_and_cannot_be_tuned_is_refused(given: Callable[[], Any], message: str) -> None:
    made = given()
    package = autotune.lightning if isinstance(made, tuple) else autotune.transformers
    assert_refused(package.tune, made if isinstance(made, tuple) else [made], message)


def test_devices_are_measured_as_ranks_and_the_ranks_of_a_launcher_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr("autotune.integrations.dataloader.tune", lambda workload, **options: given.append(options))
    both = trainer(devices=2, strategy="ddp"), Module(), LOADER
    autotune.lightning.tune(*both)
    assert [(each["ranks"], each["device"], each["baseline"].intra_op_threads) for each in given] == [(2, "cpu", None)]
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    assert_refused(
        autotune.lightning.tune, both, "a launcher has started 2 of these: start one, with tune(..., ranks=2)"
    )


def test_what_is_prepared_already_is_refused() -> None:
    accelerator, model = accelerate.Accelerator(cpu=True), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared = accelerator.prepare(model, optimizer, LOADER)
    for given, message in (
        ((accelerator, model, prepared[1], LOADER), f"AcceleratedOptimizer {PREPARED}"),
        ((accelerator, model, optimizer, prepared[2]), f"DataLoaderShard {PREPARED}"),
        (("accelerator", model, optimizer, LOADER), "accelerator is str; allowed: an accelerate.Accelerator"),
        ((accelerator, model, optimizer, [LOADER]), f"the loader is list; {ONE}"),
    ):
        assert_refused(autotune.accelerate.tune, given, message)


def test_an_accelerator_that_compiles_is_refused() -> None:
    accelerate.state.AcceleratorState._reset_state(True)  # it can be set up once in a process
    expected = r'the accelerator compiles .*; explore="compile" finds whether compiling pays'
    try:
        compiling, model = accelerate.Accelerator(cpu=True, dynamo_backend="inductor"), nn.Linear(1, 1)
        with pytest.raises(UsageError, match=expected):
            autotune.accelerate.tune(compiling, model, torch.optim.SGD(model.parameters(), lr=0.1), LOADER)
    finally:
        accelerate.state.AcceleratorState._reset_state(True)


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
def test_what_shows_only_when_the_module_runs_is_the_users_error(
    handed: Handed, kind: type[Module], message: str
) -> None:
    attempt = Session(handed(trainer(), kind(), LOADER), "cpu").measure(Config(batch_size=1), Request(seconds=0.2))
    assert attempt.outcome is Outcome.USER_ERROR
    assert message in attempt.message


class Augmenting(Module):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch  # that one is


def test_what_is_not_measured_is_said() -> None:
    freezing = lightning.pytorch.callbacks.BackboneFinetuning()
    given = trainer(gradient_clip_val=0.5, gradient_clip_algorithm="value", callbacks=[freezing])
    expected = (
        "measured: Augmenting.on_before_batch_transfer, the callback BackboneFinetuning, clipping gradients by value$"
    )
    with pytest.warns(UserWarning, match=expected), pytest.raises(UsageError):
        autotune.lightning.tune(given, Augmenting(), LOADER, budget="none")


class Stepping(transformers.Trainer):  # type: ignore[misc, name-defined]
    def training_step(self, *given: Any, **more: Any) -> Any:
        return super().training_step(*given, **more)


def test_what_is_not_measured_of_a_trainer_of_transformers_is_said() -> None:
    expected = "not measured: Stepping.training_step"
    with pytest.warns(UserWarning, match=expected), pytest.raises(UsageError):
        autotune.transformers.tune(hugging(Stepping), budget="none")


def test_updated_arguments_are_a_copy_with_the_configurations_settings_and_options(tmp_path: Path) -> None:
    given = arguments(tmp_path, learning_rate=math.pi)
    options = ("fused_optimizer", "checkpointing")
    config = Config(batch_size=3, num_workers=2, prefetch_factor=4, amp="bf16", accumulation_steps=5, pin_memory=True)
    found = autotune.transformers.updated(given, replace(config, options=options))
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps, found.bf16) == (3, 5, True)
    assert (found.dataloader_num_workers, found.dataloader_prefetch_factor) == (2, 4)
    assert found.accelerator_config.non_blocking is True
    assert (found.optim, found.gradient_checkpointing, found.learning_rate) == ("adamw_torch_fused", True, math.pi)
    assert (given.per_device_train_batch_size, given.bf16) == (8, False)
    assert given.accelerator_config.non_blocking is False
    assert autotune.transformers.updated(given, config).optim == given.optim


def test_an_option_without_an_argument_is_said_and_another_optimizer_stays(tmp_path: Path) -> None:
    given = arguments(tmp_path, use_cpu=True, optim="sgd")
    with pytest.warns(UserWarning, match="nothing for channels_last, fused_optimizer"):
        found = autotune.transformers.updated(given, Config(options=("channels_last", "fused_optimizer")))
    assert found.optim == "sgd"


class Asks(Module):
    """Asks for what such modules ask for, and fails where it gets nothing."""

    def setup(self, stage: str) -> None:
        self.classes = self.trainer.datamodule.classes

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        trainer = self.trainer
        assert trainer.datamodule.classes == self.classes == 1
        assert (len(trainer.train_dataloader), trainer.estimated_stepping_batches) == (2, 6)
        assert (trainer.max_epochs, trainer.model, trainer.state.fn) == (3, self, "fit")
        self.logger.experiment.add_scalar("loss", 1.0, batch_idx)
        self.log("rate", self.lr_schedulers().get_last_lr()[0])
        self.log("group", self.optimizers().param_groups[0]["lr"])
        self.print(trainer.log_dir)
        assert batch[0].shape[1] == 2  # as the data module's hook leaves it
        return super().training_step([batch[0][:, :1], batch[1]], batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
        return [optimizer], [{"scheduler": warm_up, "interval": "step"}]


class Data(lightning.LightningDataModule):  # type: ignore[misc, name-defined]
    classes = 1

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def setup(self, stage: str) -> None:
        self.data = torch.utils.data.random_split(Squares(20), [16, 4], generator=self.generator)[0]

    def train_dataloader(self) -> Any:
        return DataLoader(self.data, batch_size=8, shuffle=True)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [torch.cat([batch[0], batch[0]], dim=1), batch[1]]


def test_a_module_gets_what_it_asks_its_trainer_for_and_the_data_module_stays_as_it_is(handed: Handed) -> None:
    data = Data()
    before = data.generator.get_state()
    session = Session(handed(trainer(max_epochs=3), Asks(), data), "cpu")
    attempt = session.measure(Config(batch_size=8), Request(seconds=0.2))
    assert attempt.found, attempt.details
    assert torch.equal(data.generator.get_state(), before)
    assert not hasattr(data, "data")
