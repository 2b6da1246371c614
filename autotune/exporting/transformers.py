"""Hugging Face Transformers: arguments of ``TrainingArguments``."""

from __future__ import annotations

from typing import Any

from autotune.config import Config
from autotune.exporting.target import Gap, Target, Written, beyond_preamble, call, headline, preamble, remarks

__all__ = ["TRANSFORMERS", "training_arguments"]


def training_arguments(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of ``transformers.TrainingArguments``."""
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.accumulation_steps,
        "bf16": config.amp == "bf16",
        "fp16": config.amp == "fp16",
        "dataloader_num_workers": config.num_workers,
        "dataloader_prefetch_factor": config.prefetch_factor,
        "dataloader_pin_memory": config.pin_memory,
        "dataloader_persistent_workers": config.persistent_workers,
    }
    options: dict[str, dict[str, Any]] = {
        "tf32": {"tf32": True},
        "fused_optimizer": {"optim": "adamw_torch_fused"},
        "checkpointing": {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
        },
        "compile": {"torch_compile": True},
    }
    for option in config.options:
        arguments |= options.get(option, {})
    return arguments


def _write(config: Config, gaps: tuple[Gap, ...]) -> Written:
    arguments = training_arguments(config)
    lines = [
        f"# {headline(config)}",
        *preamble(config, "from transformers import Trainer, TrainingArguments"),
        call("arguments = TrainingArguments", 'output_dir="output"', **arguments),
        *remarks(beyond_preamble(gaps), "TrainingArguments"),
        "trainer = Trainer(model=model, args=arguments, train_dataset=dataset)",
        "trainer.train()",
    ]
    return {"TrainingArguments": arguments}, "\n".join(lines) + "\n"


TRANSFORMERS = Target(
    name="transformers",
    title="Transformers",
    knows={
        "batch_size": "`per_device_train_batch_size`",
        "num_workers": "`dataloader_num_workers`",
        "prefetch_factor": "`dataloader_prefetch_factor`",
        "pin_memory": "`dataloader_pin_memory`",
        "persistent_workers": "`dataloader_persistent_workers`",
        "amp": "`bf16`, `fp16`",
        "accumulation_steps": "`gradient_accumulation_steps`",
        "tf32": "`tf32`",
        "fused_optimizer": '`optim="adamw_torch_fused"`',
        "checkpointing": "`gradient_checkpointing`",
        "compile": "`torch_compile`",
    },
    advice={},
    write=_write,
)
