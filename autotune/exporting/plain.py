"""Plain Python that needs no autotune."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.config import Config
from autotune.exporting.target import KNOBS, Gap, Target, Written, call, headline, preamble

__all__ = ["PYTHON"]

_ON_MODEL = {
    "channels_last": "model = model.to(memory_format=torch.channels_last)",
    "checkpointing": "model.gradient_checkpointing_enable()  # or torch.utils.checkpoint around its repeated blocks",
    "compile": "model.compile()",
}
_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


def _write(config: Config, gaps: tuple[Gap, ...]) -> Written:
    loader = config.dataloader_kwargs()
    lines = [
        f"# {headline(config)}",
        "# device, dataset, model, optimizer and training_step(model, batch) are yours.",
        *preamble(config, "from torch.utils.data import DataLoader"),
        call("loader = DataLoader", "dataset", "shuffle=True", **loader),
        *(line for option, line in _ON_MODEL.items() if option in config.options),
    ]
    if "fused_optimizer" in config.options:
        lines.append("# build the optimizer with fused=True")
    return {"DataLoader": loader}, "\n".join([*lines, *_loop(config)]) + "\n"


def _loop(config: Config) -> Iterator[str]:
    """Yield the lines of a training loop."""
    steps = config.accumulation_steps
    if config.amp == "fp16":
        yield "scaler = torch.amp.GradScaler(torch.device(device).type)"
    yield "for number, batch in enumerate(loader, start=1):" if steps > 1 else "for batch in loader:"
    if config.amp == "off":
        yield "    loss = training_step(model, batch)"
    else:
        yield f"    with torch.autocast(torch.device(device).type, dtype={_DTYPES[config.amp]}):"
        yield "        loss = training_step(model, batch)"
    if steps > 1:
        yield f"    loss = loss / {steps}"
    yield "    scaler.scale(loss).backward()" if config.amp == "fp16" else "    loss.backward()"
    if steps > 1:
        yield f"    if number % {steps} == 0 or number == len(loader):"
    indent = "        " if steps > 1 else "    "
    update = ["scaler.step(optimizer)", "scaler.update()"] if config.amp == "fp16" else ["optimizer.step()"]
    yield from (f"{indent}{line}" for line in (*update, "optimizer.zero_grad(set_to_none=True)"))


PYTHON = Target(
    name="python",
    title="plain Python",
    knows=dict.fromkeys(KNOBS, "yes"),
    advice={},
    write=_write,
)
