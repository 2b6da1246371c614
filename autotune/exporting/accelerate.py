"""Hugging Face Accelerate: the file of ``accelerate launch``, and arguments of ``Accelerator`` and the DataLoader."""

from __future__ import annotations

from typing import Any

from autotune.config import Config
from autotune.exporting.target import Gap, Target, Written, call, headline, remarks

__all__ = ["ACCELERATE", "accelerator_arguments", "launch_file", "launch_flags"]

PRECISION = {"off": "no", "bf16": "bf16", "fp16": "fp16"}


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
    keys: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO",
        "num_machines": 1,
        "num_processes": 1,
        "mixed_precision": PRECISION[config.amp],
        "use_cpu": (config.measured or {}).get("memory") == "host",
    }
    if "compile" in config.options:
        keys["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    return keys


def launch_flags(config: Config) -> dict[str, Any]:
    """Return the flags of ``accelerate launch`` for which its file has no key.

    Without one it gives each process a single thread; where the configuration leaves their number to torch, that is
    one for each CPU.
    """
    threads = config.intra_op_threads or (config.made_on or {}).get("cpus")
    return {"num_cpu_threads_per_process": threads} if threads else {}


def _write(config: Config, gaps: tuple[Gap, ...]) -> Written:
    import yaml

    file, flags = launch_file(config), launch_flags(config)
    arguments, loader = accelerator_arguments(config), config.dataloader_kwargs()
    script = "\n".join(
        [
            call("accelerator = Accelerator", **arguments),
            call("loader = DataLoader", "dataset", "shuffle=True", **loader),
            "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)",
            "for batch in loader:",
            "    with accelerator.accumulate(model):  # backward, step and zero_grad in here",
            "        ...",
        ]
    )
    options = "".join(f" --{name} {value}" for name, value in flags.items())
    lines = [
        f"# {headline(config)}",
        f"# Run it with: accelerate launch --config_file THIS_FILE{options} train.py",
        "# In the script:",
        *(f"#     {line}" for line in script.splitlines()),
        *remarks(gaps, "Accelerate"),
        yaml.safe_dump(file, sort_keys=False).rstrip(),
    ]
    values = {"Accelerator": arguments, "DataLoader": loader, "config_file": file, "launch": flags}
    return values, "\n".join(lines) + "\n"


ACCELERATE = Target(
    name="accelerate",
    title="Accelerate",
    knows={
        "batch_size": "`DataLoader(batch_size)`",
        "num_workers": "`DataLoader(num_workers)`",
        "prefetch_factor": "`DataLoader(prefetch_factor)`",
        "pin_memory": "`DataLoader(pin_memory)`",
        "persistent_workers": "`DataLoader(persistent_workers)`",
        "amp": "`mixed_precision`",
        "accumulation_steps": "`gradient_accumulation_steps`",
        "intra_op_threads": "`launch --num_cpu_threads_per_process`",
        "compile": "`dynamo_backend`",
    },
    advice={},
    write=_write,
)
