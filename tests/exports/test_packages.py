"""The packages themselves take what is exported for them, and do what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.config import Config
from autotune.exports import export
from tests.processes import printed

pytestmark = pytest.mark.machine

CONFIG = Config(
    batch_size=8, num_workers=1, prefetch_factor=3, persistent_workers=True, amp="bf16", accumulation_steps=2,
    intra_op_threads=3, measured={"samples_per_second": 100.0, "memory": "host"},
)  # fmt: skip


def told(folder: Path, script: str, *launcher: str) -> list[Any]:
    (folder / "script.py").write_text(script, encoding="utf-8")
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    lines = printed(*launcher, folder / "script.py", folder=folder, **quiet).splitlines()
    return [json.loads(line) for line in lines if re.match(r"\[\d+, ", line)]  # and not what packages say


MODULE = """
import torch, lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.batches, self.dtypes = torch.nn.Linear(1, 1), 0, set()
    def training_step(self, batch):
        output = self.layer(batch)
        self.batches += 1
        self.dtypes.add(str(output.dtype))
        return output.float().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Once(lightning.Trainer):  # the exported text leaves how long to train to the user
    def __init__(self, **arguments):
        super().__init__(max_epochs=1, logger=False, enable_checkpointing=False, **arguments)

lightning.Trainer, module, dataset = Once, Module(), torch.zeros(64, 1)
"""
SAYS = """
print(json.dumps([loader.num_workers, loader.prefetch_factor, module.batches, trainer.global_step, *module.dtypes]))
"""


TRAINER = """
import torch, transformers

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.sizes, self.dtypes = torch.nn.Linear(1, 1), [], set()
    def forward(self, x):
        output = self.layer(x)
        self.sizes.append(len(x))
        self.dtypes.add(str(output.dtype))
        return {"loss": output.float().mean()}

class Short(transformers.TrainingArguments):
    def __init__(self, **arguments):
        super().__init__(num_train_epochs=1, report_to=[], save_strategy="no", **arguments)

transformers.TrainingArguments = Short
model, dataset = Model(), [{"x": torch.zeros(1)} for _ in range(64)]
"""
TRAINED = """
loader = trainer.get_train_dataloader()
steps = [len(model.sizes), max(model.sizes), trainer.state.global_step]
print(json.dumps([loader.num_workers, loader.prefetch_factor, *steps, *model.dtypes]))
"""


PREPARED = """
import json, torch
sizes, dtypes, steps = [], set(), []
class Counting(torch.optim.SGD):
    def step(self, closure=None):
        steps.append(1)
        return super().step(closure)
def training_step(model, batch):
    output = model(batch)
    sizes.append(len(batch))
    dtypes.add(str(output.dtype))
    return output.float().mean()
model, dataset = torch.nn.Linear(1, 1), torch.zeros(64, 1)
optimizer = Counting(model.parameters(), lr=0.1)
"""
ACCELERATED = """
seen = [len(sizes), max(sizes), len(steps)]
print(json.dumps([loader.num_workers, loader.prefetch_factor, *seen, accelerator.mixed_precision]))
"""


def test_accelerate_trains_as_the_lines_for_the_script_say(tmp_path: Path) -> None:
    lines = export(CONFIG, "accelerate").text.splitlines()
    script = "\n".join(line.removeprefix("#     ") for line in lines if line.startswith("#     "))
    file = tmp_path / "accelerate.yaml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    launcher = ("-m", "accelerate.commands.launch", "--config_file", str(file))
    assert told(tmp_path, PREPARED + script + ACCELERATED, *launcher) == [[1, 3, 8, 8, 4, "bf16"]]


DEEPSPEED = """
import contextlib, sys
with contextlib.redirect_stdout(sys.stderr):  # it says there what it finds
    from deepspeed.runtime.config import DeepSpeedConfig
    found = DeepSpeedConfig(json.loads({text!r}))
sizes = [found.train_micro_batch_size_per_gpu, found.gradient_accumulation_steps, found.train_batch_size]
print(json.dumps([*sizes, found.torch_autocast_enabled, str(found.torch_autocast_dtype)]))
"""
EXPECTED = {
    "lightning": [1, 3, 8, 4, "torch.bfloat16"],
    "transformers": [1, 3, 8, 8, 4, "torch.bfloat16"],
    "deepspeed": [8, 2, 16, True, "torch.bfloat16"],
}


def test_packages_train_as_their_texts_say(tmp_path: Path) -> None:
    """In one process: importing them takes longer than all the rest."""
    texts = {name: export(CONFIG, name).text for name in EXPECTED}
    scripts = (
        MODULE + texts["lightning"] + SAYS,
        TRAINER + texts["transformers"] + TRAINED,
        DEEPSPEED.format(text=texts["deepspeed"]),
    )
    found = told(tmp_path, "\n".join(f"import json\nexec({script!r}, {{'json': json}})" for script in scripts))
    assert dict(zip(EXPECTED, found, strict=True)) == EXPECTED
