"""Lightning: arguments of ``Trainer`` and of the DataLoader."""

from __future__ import annotations

from typing import Any

from autotune.config import Config
from autotune.exporting.target import Gap, Target, Written, beyond_preamble, call, headline, preamble, remarks

__all__ = ["LIGHTNING", "trainer_arguments"]

PRECISION = {"off": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def trainer_arguments(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of ``lightning.Trainer``."""
    arguments: dict[str, Any] = {
        "precision": PRECISION[config.amp],
        "accumulate_grad_batches": config.accumulation_steps,
    }
    if "cudnn_benchmark" in config.options:
        arguments["benchmark"] = True
    return arguments


def _write(config: Config, gaps: tuple[Gap, ...]) -> Written:
    trainer, loader = trainer_arguments(config), config.dataloader_kwargs()
    lines = [
        f"# {headline(config)}",
        *preamble(config, "import lightning", "from torch.utils.data import DataLoader"),
        call("loader = DataLoader", "dataset", "shuffle=True", **loader),
        call("trainer = lightning.Trainer", **trainer),
        *remarks(beyond_preamble(gaps), "Lightning"),
        "trainer.fit(module, loader)  # or return the loader from your DataModule's train_dataloader()",
    ]
    return {"Trainer": trainer, "DataLoader": loader}, "\n".join(lines) + "\n"


LIGHTNING = Target(
    name="lightning",
    title="Lightning",
    knows={
        "batch_size": "`DataLoader(batch_size)`",
        "num_workers": "`DataLoader(num_workers)`",
        "prefetch_factor": "`DataLoader(prefetch_factor)`",
        "pin_memory": "`DataLoader(pin_memory)`",
        "persistent_workers": "`DataLoader(persistent_workers)`",
        "amp": "`Trainer(precision)`",
        "accumulation_steps": "`Trainer(accumulate_grad_batches)`",
        "cudnn_benchmark": "`Trainer(benchmark)`",
    },
    advice={
        "channels_last": "self.to(memory_format=torch.channels_last) in the module's configure_model()",
        "fused_optimizer": "fused=True in configure_optimizers()",
        "compile": "module.compile() before trainer.fit",
    },
    write=_write,
)
