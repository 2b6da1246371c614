"""The environment: for ``torchrun``, and for any script that reads its settings there."""

from __future__ import annotations

import shlex
from typing import Any

from autotune.config import Config
from autotune.exporting.target import KNOBS, Gap, Target, Written, headline, remarks, settings

__all__ = ["SHELL", "TORCHRUN"]

PREFIX = "AUTOTUNE_"
_IN_SCRIPT = 'read it in the script: autotune.load_config("autotune.yaml")'


def _write_torchrun(config: Config, gaps: tuple[Gap, ...]) -> Written:
    variables = config.thread_environment()
    lines = [
        f"# {headline(config)}",
        "# torchrun gives each of several ranks one thread, unless OMP_NUM_THREADS is set. Ranks share a host's CPUs:",
        "# divide threads and workers by their number.",
        *_exports(variables),
        *remarks(gaps, "torchrun"),
        "# torchrun --standalone --nproc-per-node 1 train.py",
    ]
    return {"environment": variables}, "\n".join(lines) + "\n"


def _write_shell(config: Config, gaps: tuple[Gap, ...]) -> Written:
    chosen = settings(config) | {"amp": config.amp, "accumulation_steps": config.accumulation_steps}
    variables = {name: _text(chosen[knob]) for knob, name in _NAMES.items() if knob in chosen}
    variables |= config.thread_environment()
    unset = [name for name in _NAMES.values() if name not in variables]
    lines = [
        f"# {headline(config)}",
        '# eval "$(python -m autotune export autotune.yaml --to shell)", then read them in the script.',
        *_exports(variables),
        f"unset {' '.join(unset)}",
    ]
    return {"environment": variables}, "\n".join(lines) + "\n"


_NAMES = {knob: PREFIX + knob.upper() for knob in KNOBS}


def _exports(variables: dict[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


TORCHRUN = Target(
    name="torchrun",
    title="torchrun",
    knows={"intra_op_threads": "`OMP_NUM_THREADS`"},
    advice=dict.fromkeys(KNOBS, _IN_SCRIPT),
    write=_write_torchrun,
)

SHELL = Target(
    name="shell",
    title="shell",
    knows={knob: f"`{name}`" for knob, name in _NAMES.items()},
    advice={},
    write=_write_shell,
)
