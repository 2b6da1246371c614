"""Hugging Face Accelerate: the file of ``accelerate launch``, and arguments of ``Accelerator`` and the DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autotune.config import Config
from autotune.exports.target import BY_LOADER, Target, Written, call, on_cpu

PRECISION = {"off": "no", "bf16": "bf16", "fp16": "fp16"}
TORCHS_THREADS = '$(python -c "import torch; print(torch.get_num_threads())")'
"""Shell code for torch's own choice; without a number ``accelerate launch`` sets its own, mostly 1."""


def accelerator_arguments(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of ``accelerate.Accelerator``."""
    arguments: dict[str, Any] = {
        "mixed_precision": PRECISION[config.amp],
        "gradient_accumulation_steps": config.accumulation_steps,
    }
    if "compile" in config.options:
        arguments["dynamo_backend"] = "inductor"
    return arguments


def launch_file(config: Config) -> dict[str, Any]:
    """Return the keys of the file that ``accelerate launch --config_file`` reads; it refuses any other."""
    starts_ranks = config.ranks > 1 and not on_cpu(config)  # on CPUs it can do so through MPI alone
    keys: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if starts_ranks else "NO",
        "num_machines": 1,
        "num_processes": config.ranks if starts_ranks else 1,
        "mixed_precision": PRECISION[config.amp],
        "use_cpu": on_cpu(config),
    }
    if "compile" in config.options:
        keys["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    return keys


def _notes(config: Config) -> Iterator[str]:
    if config.ranks > 1 and on_cpu(config):
        yield f"On a CPU accelerate launch starts one process: use torchrun --nproc-per-node {config.ranks}."
    if config.amp == "fp16" and on_cpu(config):
        yield "On a CPU Accelerate trains in fp32 where fp16 is asked for."
    if config.amp == "off" and "compile" in config.options and "tf32" not in config.options:
        yield 'dynamo_backend allows TF32: torch.set_float32_matmul_precision("highest") after Accelerator(...).'


def _write(config: Config, remarks: Sequence[str]) -> Written:
    import yaml

    file, arguments, loader = launch_file(config), accelerator_arguments(config), config.dataloader_kwargs()
    threads = config.intra_op_threads
    flags = {} if threads is None else {"num_cpu_threads_per_process": threads}
    transfer = {"non_blocking": True} if config.pin_memory else {}  # without it pinning gains nothing
    first = [call("dataloader_config=DataLoaderConfiguration", **transfer)] if transfer else []
    lines = [
        f"# accelerate launch --config_file FILE --num_cpu_threads_per_process {threads or TORCHS_THREADS} train.py",
        "# In the script:",
        *(f"#     {line}" for line in _script(call("accelerator = Accelerator", *first, **arguments), loader)),
        *remarks,
        yaml.safe_dump(file, sort_keys=False).rstrip(),
    ]
    values = {"Accelerator": arguments, "DataLoaderConfiguration": transfer, "DataLoader": loader}
    return {**values, "config_file": file, "launch": flags}, lines


def _script(accelerator: str, loader: dict[str, Any]) -> Iterator[str]:
    yield "from accelerate import Accelerator, DataLoaderConfiguration"
    yield "from torch.utils.data import DataLoader"
    yield from accelerator.splitlines()
    yield from call("loader = DataLoader", "dataset", "shuffle=True", **loader).splitlines()
    yield "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
    yield "for batch in loader:"
    yield "    with accelerator.accumulate(model), accelerator.autocast():"
    yield "        loss = training_step(model, batch)"
    yield "        accelerator.backward(loss)"
    yield "        optimizer.step()"
    yield "        optimizer.zero_grad()"


ACCELERATE = Target(
    name="accelerate",
    title="Accelerate",
    knows={
        **BY_LOADER,
        "amp": "`mixed_precision`",
        "accumulation_steps": "`gradient_accumulation_steps`",
        "ranks": "`num_processes`",
        "intra_op_threads": "`launch --num_cpu_threads_per_process`",
        "compile": "`dynamo_backend`",
    },
    notes=_notes,
    write=_write,
)
