"""Lightning: arguments of ``Trainer`` and of the DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autotune.config import Config
from autotune.exports.target import BY_LOADER, Target, Written, call, on_cpu, preamble

PRECISION = {"off": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def trainer_arguments(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of ``lightning.Trainer``: one device for each rank, as was measured."""
    arguments: dict[str, Any] = {"accelerator": "cpu"} if on_cpu(config) else {}
    arguments["devices"] = config.ranks
    if config.ranks > 1:
        arguments["strategy"] = "ddp"
    arguments |= {"precision": PRECISION[config.amp], "accumulate_grad_batches": config.accumulation_steps}
    if "cudnn_benchmark" in config.options:
        arguments["benchmark"] = True
    return arguments


def _notes(config: Config) -> Iterator[str]:
    if config.amp == "fp16" and on_cpu(config):
        yield "On a CPU Lightning takes bf16 where fp16 is asked for."


def _write(config: Config, remarks: Sequence[str]) -> Written:
    trainer, loader = trainer_arguments(config), config.dataloader_kwargs()
    module = "torch.compile(module)" if "compile" in config.options else "module"
    return {"Trainer": trainer, "DataLoader": loader}, [
        *preamble(config, "import lightning", "from torch.utils.data import DataLoader", but=KNOWS),
        call("loader = DataLoader", "dataset", "shuffle=True", **loader),
        call("trainer = lightning.Trainer", **trainer),
        *remarks,
        f"trainer.fit({module}, loader)  # or return the loader from your DataModule's train_dataloader()",
    ]


KNOWS = {
    **BY_LOADER,
    "amp": "`Trainer(precision)`",
    "accumulation_steps": "`Trainer(accumulate_grad_batches)`",
    "ranks": "`Trainer(devices)`",
    "cudnn_benchmark": "`Trainer(benchmark)`",
    "compile": "`fit(torch.compile(module))`",
}

LIGHTNING = Target(
    name="lightning",
    title="Lightning",
    knows=KNOWS,
    advice={
        "channels_last": "self.to(memory_format=torch.channels_last) in the module's configure_model()",
        "fused_optimizer": "fused=True in configure_optimizers()",
    },
    notes=_notes,
    write=_write,
    sets_process=True,
)
