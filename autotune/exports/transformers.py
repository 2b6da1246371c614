"""Hugging Face Transformers: arguments of ``TrainingArguments``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autotune.config import Config
from autotune.exports.target import Target, Written, call, on_cpu, preamble
from autotune.settings import SETTINGS

OF_TRAINER = {field: each.transformers for field, each in SETTINGS.items() if each.transformers}
"""Names of a DataLoader's settings as arguments of ``transformers.TrainingArguments``."""
OPTIONS: dict[str, dict[str, Any]] = {
    "tf32": {"tf32": True},
    "checkpointing": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    "compile": {"torch_compile": True},
}


def training_arguments(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of ``transformers.TrainingArguments``.

    ``optim`` is always there, since the default is the fused kernel, whether or not it was measured.
    """
    arguments: dict[str, Any] = {"use_cpu": True} if on_cpu(config) else {}
    arguments |= {
        OF_TRAINER["batch_size"]: config.batch_size,
        "gradient_accumulation_steps": config.accumulation_steps,
        "bf16": config.amp == "bf16",
        "fp16": config.amp == "fp16",
        "optim": "adamw_torch_fused" if "fused_optimizer" in config.options else "adamw_torch",
        **{name: getattr(config, field) for field, name in OF_TRAINER.items() if field != "batch_size"},
    }
    if config.pin_memory:
        arguments["accelerator_config"] = {"non_blocking": True}  # else pinning gains nothing
    for option in config.options:
        arguments |= OPTIONS.get(option, {})
    return arguments


def _notes(config: Config) -> Iterator[str]:
    yield "Trainer builds AdamW unless given optimizers=(optimizer, None), and clips gradients unless max_grad_norm=0."
    if not on_cpu(config) and config.ranks == 1:
        yield "Of several GPUs it takes all in one process: set CUDA_VISIBLE_DEVICES, or start it with torchrun."
    if "compile" in config.options and "tf32" not in config.options:
        yield 'With torch_compile it allows TF32: torch.set_float32_matmul_precision("highest") after Trainer(...).'


def _write(config: Config, remarks: Sequence[str]) -> Written:
    arguments = training_arguments(config)
    return {"TrainingArguments": arguments}, [
        *preamble(config, "from transformers import Trainer, TrainingArguments", but=KNOWS),
        call("arguments = TrainingArguments", 'output_dir="output"', **arguments),
        *remarks,
        "trainer = Trainer(model=model, args=arguments, train_dataset=dataset)",
        "trainer.train()",
    ]


KNOWS = {
    **{knob: f"`{name}`" for knob, name in OF_TRAINER.items()},
    "amp": "`bf16`, `fp16`",
    "accumulation_steps": "`gradient_accumulation_steps`",
    "tf32": "`tf32`",
    "fused_optimizer": "`optim`",
    "checkpointing": "`gradient_checkpointing`",
    "compile": "`torch_compile`",
}

TRANSFORMERS = Target(
    name="transformers",
    title="Transformers",
    knows=KNOWS,
    advice={"ranks": "start the script with torchrun --nproc-per-node"},
    notes=_notes,
    write=_write,
    sets_process=True,
)
