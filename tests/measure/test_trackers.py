"""Uploads of a script are switched off, whatever it asks its tracker or hub for."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.workload import Script
from tests.processes import run_python
from tests.scripts.holding import in_turn

WANDB = """
def init(project=None, entity=None, mode=None, **options):
    return project, mode
"""
ASKS = """
import json, sys
from autotune.measure.trackers import switch_off
switch_off(sys.argv[1])
import huggingface_hub, torch, wandb
from huggingface_hub import HfApi, create_repo
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, Logger
from torch.utils.data import DataLoader
from transformers import PretrainedConfig, TrainingArguments
from transformers import Trainer as OfTransformers

class Remote(Logger):
    name = version = "remote"
    def log_metrics(self, *given, **options):
        raise SystemExit("it was sent")
    log_hyperparams = log_metrics

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch):
        loss = self.layer(batch).sum()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

trainer = Trainer(
    logger=[Remote(), CSVLogger(sys.argv[1])], callbacks=[LearningRateMonitor()], max_epochs=1, log_every_n_steps=1,
    enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
)
trainer.fit(Module(), DataLoader([torch.ones(1)] * 4))
class Model(torch.nn.Linear):
    config = PretrainedConfig()
arguments = TrainingArguments(sys.argv[1], push_to_hub=True, hub_token="no", use_cpu=True)
OfTransformers(Model(1, 1), arguments)
print(json.dumps({
    "wandb": wandb.init("mine", mode="online"),
    "loggers": [type(each).__name__ for each in trainer.loggers],
    "callbacks": [type(each).__name__ for each in trainer.callbacks][:1],
    "pushes": arguments.push_to_hub,
    "repo": [create_repo("me/model").repo_id, HfApi().create_repo("me/other").repo_id],
    "uploads": [HfApi().upload_file(path_or_fileobj=b"1", path_in_repo="a", repo_id="me/model")],
}))
"""


@pytest.mark.machine
def test_trackers_hubs_and_loggers_send_nothing(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text(WANDB)
    (tmp_path / "asks.py").write_text(ASKS)
    done = run_python("-W", "ignore", "asks.py", tmp_path, folder=tmp_path, seconds=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "wandb": ["mine", "disabled"],
        "loggers": ["DummyLogger", "CSVLogger"],
        "callbacks": ["LearningRateMonitor"],
        "pushes": False,
        "repo": ["me/model", "me/other"],
        "uploads": [None],
    }


@pytest.mark.machine
def test_uploads_are_off_unless_they_are_asked_for_whether_or_not_writes_are_held(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text(WANDB)
    (tmp_path / "train.py").write_text("import wandb\nraise ValueError(wandb.init(mode='online')[1])\n")
    with in_turn(tmp_path) as runner:
        for allow_writes, allow_uploads in itertools.product((False, True), repeat=2):
            runner.turn_to(Script(path="train.py", allow_writes=allow_writes, allow_uploads=allow_uploads))
            with pytest.raises(UserCodeError, match="online" if allow_uploads else "disabled"):
                runner.inspect(Config())
