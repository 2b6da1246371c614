from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import autotune
from autotune.config import AMP_MODES, Config
from autotune.errors import UsageError
from autotune.exporting import TARGETS, coverage, export
from autotune.exporting.target import KNOBS, OTHERWISE, settings
from autotune.flags import EXPORTS
from autotune.options import OPTIONS

README = Path(__file__).resolve().parents[2] / "README.md"
PLAIN = Config(batch_size=64)
FULL = Config(
    batch_size=512,
    num_workers=4,
    prefetch_factor=3,
    pin_memory=True,
    persistent_workers=True,
    amp="fp16",
    accumulation_steps=2,
    options=tuple(OPTIONS),
    intra_op_threads=3,
    inter_op_threads=2,
    measured={"samples_per_second": 1234.5, "speedup": 2.0, "verdict": "faster", "memory": "device"},
    made_on={"device": "Example"},
)
PYTHON = ("lightning", "transformers", "python")

CONFIGS = st.builds(
    Config,
    batch_size=st.integers(1, 4096),
    num_workers=st.integers(0, 16),
    amp=st.sampled_from(AMP_MODES),
    pin_memory=st.booleans(),
    accumulation_steps=st.integers(1, 8),
    options=st.sets(st.sampled_from(list(OPTIONS))),
    intra_op_threads=st.none() | st.integers(1, 64),
    inter_op_threads=st.none() | st.integers(1, 64),
)


@pytest.mark.parametrize("name", TARGETS)
@given(config=CONFIGS)
def test_whatever_is_set_is_exported_or_said(name: str, config: Config) -> None:
    found = export(config, name)
    said = {gap.knob for gap in found.gaps}
    assert said | set(TARGETS[name].knows) >= settings(config).keys()
    assert not said & set(TARGETS[name].knows)
    assert found.says_gaps == (name != "deepspeed")
    if name in PYTHON:
        compile(found.text, name, "exec")


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "deepspeed"])
def test_the_text_says_every_gap_that_it_does_not_fill(name: str) -> None:
    found = export(FULL, name)
    filled = {
        "intra_op_threads": "torch.set_num_threads(3)",
        "inter_op_threads": "torch.set_num_interop_threads(2)",
        "tf32": 'torch.set_float32_matmul_precision("high")',
        "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    }
    for gap in found.gaps:
        is_filled = name in PYTHON and gap.knob in filled
        assert (filled[gap.knob] if is_filled else gap.otherwise) in found.text, gap


def test_what_is_left_to_torch_is_not_exported() -> None:
    assert settings(PLAIN) == {"batch_size": 64, "num_workers": 0, "pin_memory": False}
    assert set(settings(FULL)) == set(KNOBS) == set(OTHERWISE)


def test_lightning() -> None:
    found = export(FULL, "lightning")
    assert found.values["Trainer"] == {"precision": "16-mixed", "accumulate_grad_batches": 2, "benchmark": True}
    assert found.values["DataLoader"] == FULL.dataloader_kwargs()
    assert export(PLAIN, "lightning").values["Trainer"] == {"precision": "32-true", "accumulate_grad_batches": 1}


def test_transformers() -> None:
    assert export(FULL, "transformers").values["TrainingArguments"] == {
        "per_device_train_batch_size": 512,
        "gradient_accumulation_steps": 2,
        "bf16": False,
        "fp16": True,
        "dataloader_num_workers": 4,
        "dataloader_prefetch_factor": 3,
        "dataloader_pin_memory": True,
        "dataloader_persistent_workers": True,
        "tf32": True,
        "optim": "adamw_torch_fused",
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "torch_compile": True,
    }


def test_accelerate() -> None:
    found = export(FULL, "accelerate")
    assert found.values["Accelerator"] == {
        "mixed_precision": "fp16",
        "gradient_accumulation_steps": 2,
        "dynamo_backend": "inductor",
    }
    assert yaml.safe_load(found.text) == found.values["config_file"]
    assert found.values["config_file"]["use_cpu"] is False
    assert " --num_cpu_threads_per_process 3 train.py" in found.text


def test_accelerates_one_thread_is_not_taken_where_torch_chose() -> None:
    assert export(PLAIN, "accelerate").values["launch"] == {}
    elsewhere = Config(made_on={"cpus": 16})
    assert export(elsewhere, "accelerate").values["launch"] == {"num_cpu_threads_per_process": 16}


def test_deepspeed() -> None:
    found = export(FULL, "deepspeed")
    assert json.loads(found.text) == found.values["config"] == {
        "train_micro_batch_size_per_gpu": 512,
        "gradient_accumulation_steps": 2,
        "torch_autocast": {"enabled": True, "dtype": "float16"},
    }  # fmt: skip
    assert "torch_autocast" not in export(PLAIN, "deepspeed").values["config"]


def environment(text: str, *, beside: str = "") -> dict[str, str]:
    """What a shell's environment holds after a text."""
    done = subprocess.run(["sh", "-euc", f"{beside}\n{text}\nenv"], capture_output=True, text=True, env={}, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_the_shells_environment_holds_every_setting() -> None:
    found = environment(export(FULL, "shell").text)
    assert found.items() >= export(FULL, "shell").values["environment"].items()
    assert (found["AUTOTUNE_BATCH_SIZE"], found["AUTOTUNE_AMP"]) == ("512", "fp16")
    assert (found["AUTOTUNE_PIN_MEMORY"], found["AUTOTUNE_COMPILE"], found["OMP_NUM_THREADS"]) == ("1", "1", "3")


def test_the_shells_environment_keeps_nothing_of_an_earlier_file() -> None:
    found = environment(export(PLAIN, "shell").text, beside=export(FULL, "shell").text)
    assert {name for name in found if name.startswith("AUTOTUNE_")} == {
        "AUTOTUNE_BATCH_SIZE",
        "AUTOTUNE_NUM_WORKERS",
        "AUTOTUNE_PIN_MEMORY",
        "AUTOTUNE_AMP",
        "AUTOTUNE_ACCUMULATION_STEPS",
    }


def test_torchrun_gets_its_threads() -> None:
    assert environment(export(FULL, "torchrun").text)["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in environment(export(PLAIN, "torchrun").text)


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "deepspeed"])
def test_a_name_from_a_file_stays_inside_its_comment(name: str) -> None:
    made_on = {"device": "x\nimport os\r\x1b[2J\u2028touch hacked"}
    text = export(Config(measured=FULL.measured, made_on=made_on), name).text
    assert text.splitlines()[0].startswith("# ")
    assert "hacked" in text.splitlines()[0]
    assert "hacked" not in "".join(text.splitlines()[1:])


def test_a_tool_that_is_not_known_is_an_error_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="--to keras: allowed: lightning, transformers, "):
        autotune.export(PLAIN, "keras")


def test_the_command_line_knows_the_same_tools() -> None:
    assert tuple(TARGETS) == EXPORTS


def test_the_readme_holds_the_table_of_knobs_and_tools() -> None:
    assert coverage() in README.read_text(encoding="utf-8")


class Losses:
    """Stands for a model, an optimizer and what a training loop does with them."""

    def __init__(self) -> None:
        self.did: list[Any] = []

    def step(self) -> None:
        self.did.append("step")

    def zero_grad(self, set_to_none: bool) -> None:
        self.did.append("zero")


@pytest.mark.parametrize(("batches", "steps"), [(4, 1), (4, 2), (5, 2)])
def test_the_plain_loop_steps_as_it_says(batches: int, steps: int) -> None:
    import torch

    made = Losses()
    weight = torch.nn.Parameter(torch.zeros(1))
    names = {
        "dataset": list(torch.zeros(2 * batches, 1)),
        "model": None,
        "device": "cpu",
        "optimizer": made,
        "training_step": lambda model, batch: (weight * 1.0).sum(),
    }
    exec(export(Config(batch_size=2, accumulation_steps=steps), "python").text, names)
    assert made.did.count("step") == made.did.count("zero") == -(-batches // steps)
    assert float(weight.grad) == pytest.approx(batches / steps)  # type: ignore[arg-type]
