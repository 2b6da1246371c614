"""Plain Python that needs no autotune."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.config import Config
from autotune.exporting.target import KNOBS, Target, Written, call, headline, preamble

__all__ = ["PYTHON"]

ON_MODEL = {
    "channels_last": "model = model.to(memory_format=torch.channels_last)",
    "compile": "model.compile()",
}
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


def _notes(config: Config) -> Iterator[str]:
    if config.pin_memory:
        yield "Copy batches to the device with non_blocking=True: else pinned memory gains nothing."


def _write(config: Config, remarks: Sequence[str]) -> Written:
    loader = config.dataloader_kwargs()
    lines = [
        f"# {headline(config)}",
        "# device, dataset, model, optimizer and training_step(model, batch) are yours; leave shuffle out where the",
        "# dataset is iterable.",
        *preamble(config, "from torch.utils.data import DataLoader"),
        call("loader = DataLoader", "dataset", "shuffle=True", **loader),
        *(line for option, line in ON_MODEL.items() if option in config.options),
        *remarks,
        *_loop(config),
    ]
    return {"DataLoader": loader}, "\n".join(lines) + "\n"


def _loop(config: Config) -> Iterator[str]:
    """Yield the lines of a training loop."""
    steps, is_scaled = config.accumulation_steps, config.amp == "fp16"
    if is_scaled:
        yield "scaler = torch.amp.GradScaler(torch.device(device).type)"
    yield "for number, batch in enumerate(loader, start=1):" if steps > 1 else "for batch in loader:"
    if config.amp == "off":
        yield "    loss = training_step(model, batch)"
    else:
        yield f"    with torch.autocast(torch.device(device).type, dtype={DTYPES[config.amp]}):"
        yield "        loss = training_step(model, batch)"
    if steps > 1:
        yield f"    loss = loss / {steps}  # where it is a mean over the samples; not where it is their sum"
    yield "    scaler.scale(loss).backward()" if is_scaled else "    loss.backward()"
    update = ["scaler.step(optimizer)", "scaler.update()"] if is_scaled else ["optimizer.step()"]
    update.append("optimizer.zero_grad(set_to_none=True)")
    if steps == 1:
        yield from (f"    {line}" for line in update)
        return
    yield f"    if number % {steps} == 0:"
    yield from (f"        {line}" for line in update)
    yield f"if number % {steps}:  # what is left at the end of an epoch"
    yield from (f"    {line}" for line in update)


PYTHON = Target(
    name="python",
    title="plain Python",
    knows={knob: "yes" for knob in KNOBS if knob not in ("ranks", "fused_optimizer", "checkpointing")},
    advice={},
    notes=_notes,
    write=_write,
    sets_process=True,
)
