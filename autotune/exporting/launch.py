"""The environment: for ``torchrun``, and for any script that reads its settings there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from autotune.config import Config
from autotune.exporting.target import KNOBS, Target, Written, headline, settings

__all__ = ["SHELL", "TORCHRUN"]

NAMES = {knob: f"AUTOTUNE_{knob.upper()}" for knob in KNOBS}


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
    advice=dict.fromkeys(KNOBS, "autotune.load_config(FILE) in the script"),
    notes=_torchrun_notes,
    write=_write_torchrun,
)

SHELL = Target(
    name="shell",
    title="shell",
    knows={knob: f"`{name}`" for knob, name in NAMES.items()},
    advice={},
    notes=lambda config: (),
    write=_write_shell,
)
