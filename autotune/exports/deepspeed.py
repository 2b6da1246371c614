"""DeepSpeed: keys of its JSON configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.config import Config
from autotune.exports.target import LOADER, Target, Written

DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def deepspeed_config(config: Config) -> dict[str, Any]:
    """Return the keys of DeepSpeed's configuration, by the source of its version 0.19.8.

    Precision is ``torch_autocast``, as measured: ``bf16`` and ``fp16`` would make the weights 16 bits.
    """
    keys: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config.batch_size,
        "gradient_accumulation_steps": config.accumulation_steps,
    }
    if config.amp != "off":
        keys["torch_autocast"] = {"enabled": True, "dtype": DTYPES[config.amp]}
    return keys


def _notes(config: Config) -> Iterator[str]:
    yield "DeepSpeed clips gradients, unless gradient_clipping is 0."
    if config.amp != "off":
        yield "torch_autocast covers the engine's forward alone, so compute the loss in there; older versions lack it."


def _write(config: Config, remarks: Sequence[str]) -> Written:
    keys = deepspeed_config(config)
    return {"config": keys, "DataLoader": config.dataloader_kwargs()}, [json.dumps(keys, indent=2)]


_BY_LOADER = "build the DataLoader yourself, and do not pass training_data to deepspeed.initialize()"
DEEPSPEED = Target(
    name="deepspeed",
    title="DeepSpeed",
    knows={
        "batch_size": "`train_micro_batch_size_per_gpu`",
        "amp": "`torch_autocast`",
        "accumulation_steps": "`gradient_accumulation_steps`",
    },
    advice={
        "ranks": "start the script with deepspeed --num_gpus",
        **dict.fromkeys(LOADER, _BY_LOADER),
        "compile": "engine.compile() after deepspeed.initialize()",
    },
    notes=_notes,
    write=_write,
    has_comments=False,
)
