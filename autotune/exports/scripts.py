"""Scripts: plain Python that needs no autotune, torchrun's command line, and an environment for the shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.config import Config
from autotune.exports.target import EVERY, Target, Written, call, headline, preamble, settings

ON_MODEL = {"channels_last": "model = model.to(memory_format=torch.channels_last)", "compile": "model.compile()"}
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
NAMES = {knob: f"AUTOTUNE_{knob.upper()}" for knob in EVERY}


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
    knows={knob: "yes" for knob in EVERY if knob not in ("ranks", "fused_optimizer", "checkpointing")},
    notes=_notes,
    write=_write,
    sets_process=True,
)


def _torchrun_notes(config: Config) -> Iterator[str]:
    if config.ranks == 1:
        yield "Each of several ranks has one thread unless OMP_NUM_THREADS is set, and they share the host's CPUs:"
        yield "config.for_rank() in the script divides workers and threads by their number."


def _write_torchrun(config: Config, remarks: Sequence[str]) -> Written:
    variables = config.thread_environment()
    lines = [
        f"# {headline(config)}",
        *_exports(variables),
        *remarks,
        f"# torchrun --standalone --nproc-per-node {config.ranks} train.py",
    ]
    return {"environment": variables, "torchrun": {"nproc_per_node": config.ranks}}, "\n".join(lines) + "\n"


def _write_shell(config: Config, remarks: Sequence[str]) -> Written:
    chosen = settings(config) | {"amp": config.amp, "accumulation_steps": config.accumulation_steps}
    variables = {name: _text(chosen[knob]) for knob, name in NAMES.items() if knob in chosen}
    unset = [name for name in NAMES.values() if name not in variables]
    variables |= config.thread_environment()
    lines = [
        f"# {headline(config)}",
        '# Take it over with eval "$(...)", and read it in the script.',
        *_exports(variables),
        *remarks,
        *([f"unset {' '.join(unset)}"] if unset else []),
    ]
    return {"environment": variables}, "\n".join(lines) + "\n"


def _exports(variables: dict[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


TORCHRUN = Target(
    name="torchrun",
    title="torchrun",
    knows={"ranks": "`--nproc-per-node`", "intra_op_threads": "`OMP_NUM_THREADS`"},
    advice=dict.fromkeys(EVERY, "autotune.load_config(FILE) in the script"),
    notes=_torchrun_notes,
    write=_write_torchrun,
)

SHELL = Target(
    name="shell",
    title="shell",
    knows={knob: f"`{name}`" for knob, name in NAMES.items()},
    notes=lambda config: (),
    write=_write_shell,
)
