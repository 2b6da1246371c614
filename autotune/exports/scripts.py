"""Scripts: plain Python that needs no autotune, torchrun's command line, and an environment for the shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.config import Config
from autotune.exports.target import EVERY, Target, Written, call, preamble, settings

ON_MODEL = {"channels_last": "model = model.to(memory_format=torch.channels_last)", "compile": "model.compile()"}
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
NAMES = {knob: f"AUTOTUNE_{knob.upper()}" for knob in EVERY}


RANKS = """\
torch.distributed.init_process_group()  # start it with: torchrun --standalone --nproc-per-node {} train.py
if torch.cuda.is_available():
    torch.cuda.set_device(torch.distributed.get_node_local_rank())  # each rank has its own
sampler = torch.utils.data.DistributedSampler(dataset)  # not where the dataset is iterable, or has one"""
WRAPPED = "model = torch.nn.parallel.DistributedDataParallel(model)"
"""Lines of a script of several ranks."""


def _notes(config: Config) -> Iterator[str]:
    if config.pin_memory:
        yield "Copy batches to the device with non_blocking=True: else pinned memory gains nothing."
    if config.ranks > 1:
        yield f"Where the loss is a sum over the samples, multiply it by {config.ranks}: ranks average their gradients."
        if config.accumulation_steps > 1:
            yield "Ranks synchronise in each batch: put model.no_sync() around those after which there is no update."


def _write(config: Config, remarks: Sequence[str]) -> Written:
    loader, has_ranks = config.dataloader_kwargs(), config.ranks > 1
    lines = [
        "# device, dataset, model, optimizer, epochs, training_step(model, batch) and the loader's other arguments are",
        "# yours; leave shuffle out where the dataset is iterable.",
        *preamble(config, "from torch.utils.data import DataLoader"),
        *([RANKS.format(config.ranks)] if has_ranks else []),
        call("loader = DataLoader", "dataset", "sampler=sampler" if has_ranks else "shuffle=True", **loader),
        *(line for option, line in ON_MODEL.items() if option in config.options),
        *([WRAPPED] if has_ranks else []),
        *remarks,
        *_update(config),
        *_loop(config),
    ]
    return {"DataLoader": loader}, lines


def _update(config: Config) -> Iterator[str]:
    is_scaled, steps = config.amp == "fp16", config.accumulation_steps
    if is_scaled:
        yield "scaler = torch.amp.GradScaler(torch.device(device).type)"
    yield from ("", "")
    yield "def update(samples):" if steps > 1 else "def update():"
    if is_scaled:
        yield "    scaler.unscale_(optimizer)"
    if steps > 1:
        yield "    for each in model.parameters():  # not where the loss is a sum over the samples"
        yield "        if each.grad is not None:"
        yield f"            each.grad *= {config.batch_size * steps} / samples  # the last may be fewer"
    yield "    # clip here, if you do: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
    yield from ("    scaler.step(optimizer)", "    scaler.update()") if is_scaled else ("    optimizer.step()",)
    yield from ("    optimizer.zero_grad(set_to_none=True)", "", "")


def _loop(config: Config) -> Iterator[str]:
    steps, is_scaled = config.accumulation_steps, config.amp == "fp16"
    yield "for epoch in range(epochs):"
    if config.ranks > 1:
        yield "    sampler.set_epoch(epoch)"
    yield from (
        ("    samples = 0", "    for number, batch in enumerate(loader, start=1):")
        if steps > 1
        else ("    for batch in loader:",)
    )
    if config.amp == "off":
        yield "        loss = training_step(model, batch)"
    else:
        yield f"        with torch.autocast(torch.device(device).type, dtype={DTYPES[config.amp]}):"
        yield "            loss = training_step(model, batch)"
    if steps > 1:
        whole = config.batch_size * steps
        yield f"        loss = loss * len(batch[0]) / {whole}  # not where it is a sum over the samples"
    yield "        scaler.scale(loss).backward()" if is_scaled else "        loss.backward()"
    if steps == 1:
        yield "        update()"
        return
    yield from ("        samples += len(batch[0])", f"        if number % {steps} == 0:")
    yield from ("            update(samples)", "            samples = 0")
    yield from ("    if samples:  # what is left at the end of an epoch", "        update(samples)")


PYTHON = Target(
    name="python",
    title="plain Python",
    knows={knob: "yes" for knob in EVERY if knob not in ("fused_optimizer", "checkpointing")},
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
        *_exports(variables),
        *remarks,
        f"# torchrun --standalone --nproc-per-node {config.ranks} train.py",
    ]
    return {"environment": variables, "torchrun": {"nproc_per_node": config.ranks}}, lines


def _write_shell(config: Config, remarks: Sequence[str]) -> Written:
    chosen = settings(config) | {"amp": config.amp, "accumulation_steps": config.accumulation_steps}
    variables = {name: _text(chosen[knob]) for knob, name in NAMES.items() if knob in chosen}
    unset = [name for name in NAMES.values() if name not in variables]
    variables |= config.thread_environment()
    lines = [
        '# Take it over with eval "$(...)", and read it in the script.',
        *_exports(variables),
        *remarks,
        *([f"unset {' '.join(unset)}"] if unset else []),
    ]
    return {"environment": variables}, lines


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
