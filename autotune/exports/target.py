"""Configurations as arguments of other tools, and the knobs without an argument. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.config import DEFAULTS, Config, learning_rate_advice
from autotune.output import EXPORTED
from autotune.settings import SETTINGS
from autotune.step_options import OPTIONS

LOADER = tuple(field for field, each in SETTINGS.items() if each.section == "dataloader")
"""Settings of the DataLoader."""
BY_LOADER = {field: f"`DataLoader({field})`" for field in LOADER}
"""Their names for tools that are given a DataLoader."""
EVERY = (*(field for field in SETTINGS if field != "options"), *OPTIONS)
"""All settings of a configuration, each option of the step as one."""
OTHERWISE = {
    **{field: each.otherwise for field, each in SETTINGS.items() if each.otherwise},
    "channels_last": "model.to(memory_format=torch.channels_last) once the model is on its device",
    "tf32": 'torch.set_float32_matmul_precision("high") and torch.backends.cudnn.allow_tf32 = True',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    "fused_optimizer": "build the optimizer with fused=True",
    "checkpointing": "model.gradient_checkpointing_enable(), or torch.utils.checkpoint around its repeated blocks",
    "compile": "model.compile() before the first step",
}
"""Advice for a script about a knob for which a tool has no argument."""
PROCESS = {
    "intra_op_threads": "torch.set_num_threads({config.intra_op_threads})",
    "inter_op_threads": "torch.set_num_interop_threads({config.inter_op_threads})",
    "tf32": 'torch.set_float32_matmul_precision("high")\ntorch.backends.cudnn.allow_tf32 = True',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
}
"""Python that sets process-wide settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A knob for which a tool has no argument."""

    knob: str
    value: Any
    otherwise: str
    """The advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A configuration as another tool takes it."""

    target: str
    values: Mapping[str, Mapping[str, Any]]
    """Arguments by their receiver, such as ``{"Trainer": {"precision": "bf16-mixed"}}``."""
    text: str
    """The same arguments as a file: Python, YAML, JSON or shell."""
    gaps: tuple[Gap, ...]
    """The knobs for which the tool has no argument."""
    notes: tuple[str, ...]
    """Differences from the measurement, unless the script avoids them."""
    has_comments: bool
    """Whether the text says gaps and notes, too; JSON has no comments."""


Written = tuple[Mapping[str, Mapping[str, Any]], list[str]]
"""The values and the lines of an export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tool, and how its export is made."""

    name: str
    title: str
    """The tool's usual name."""
    knows: Mapping[str, str]
    """Its names of the knobs that it has an argument for."""
    advice: Mapping[str, str] = field(default_factory=dict)
    """Its own advice for other knobs, in place of the general advice."""
    notes: Callable[[Config], Iterable[str]]
    """Differences from the measurement."""
    write: Callable[[Config, Sequence[str]], Written]
    """Makes values and lines; takes the lines for comments."""
    has_comments: bool = True
    """Whether the text can hold comments."""
    sets_process: bool = False
    """Whether the text is Python that begins with ``preamble``."""

    def export(self, config: Config) -> Export:
        """Return the configuration as this tool takes it."""
        gaps = tuple(
            Gap(knob=knob, value=value, otherwise=self.advice.get(knob) or OTHERWISE[knob])
            for knob, value in settings(config).items()
            if knob not in self.knows
        )
        advice = learning_rate_advice(config)
        notes = (*self.notes(config), *([f"The batch is another: {advice}."] if advice else ()))
        is_done = PROCESS if self.sets_process else {}
        remarks = remarks_on([gap for gap in gaps if gap.knob not in is_done], notes, self.title)
        values, lines = self.write(config, [f"# {remark}" for remark in remarks])
        said = self.has_comments
        text = "\n".join([*([f"# {headline(config)}"] if said else []), *lines, ""])
        return Export(target=self.name, values=values, text=text, gaps=gaps, notes=notes, has_comments=said)


def settings(config: Config) -> dict[str, Any]:
    """Return the set values of a configuration, by knob, without those left to torch."""
    found = {**config.plain(), **dict.fromkeys(config.options, True)}
    unset = {field: default for field, default in DEFAULTS.items() if field not in LOADER}
    return {field: found[field] for field in EVERY if field in found and (field, found[field]) not in unset.items()}


def headline(config: Config) -> str:
    """Return the measurement of a configuration in one line."""
    measured = config.measured or {}
    if "samples_per_second" not in measured:
        return f"{EXPORTED}."
    rate = f"{measured['samples_per_second']:,.0f} samples/s"
    is_faster = measured.get("verdict") == "faster" and "speedup" in measured
    gain = f", {measured['speedup']:.2f} times the baseline" if is_faster else ""
    return f"{EXPORTED}: {rate}{gain}."  # no text of the file's: Python reads some comments


def on_cpu(config: Config) -> bool:
    """Return whether a configuration was measured without an accelerator."""
    return (config.measured or {}).get("memory") == "host"


def preamble(config: Config, *imports: str, but: Container[str] = ()) -> Iterator[str]:
    """Yield the lines of Python that import torch and more, and set process-wide settings.

    ``but`` are knobs that are set elsewhere.
    """
    if variables := config.thread_environment():
        yield "import os"
        yield ""
        yield "os.environ |= {  # before torch is imported"
        yield from (f'    "{name}": "{value}",' for name, value in variables.items())
        yield "}"
    yield from ("import torch", *imports, "")
    if chosen := [line for knob, line in PROCESS.items() if knob in settings(config) and knob not in but]:
        yield from (line.format(config=config) for line in chosen)
        yield ""


def remarks_on(gaps: Iterable[Gap], notes: Iterable[str], title: str) -> Iterator[str]:
    """Yield the knobs without an argument, those with the same advice together, and the differences there."""
    by_advice: dict[str, list[str]] = defaultdict(list)
    for gap in gaps:
        by_advice[gap.otherwise].append(f"{gap.knob} ({gap.value})")
    if by_advice:
        yield f"{title} has no argument for:"
        yield from (f"- {', '.join(knobs)}: {advice}" for advice, knobs in by_advice.items())
    yield from notes


def call(name: str, *first: str, **arguments: Any) -> str:
    """Return a call as a line of Python, or as several where it is long."""
    parts = [*first, *(f"{key}={value!r}".replace("'", '"') for key, value in arguments.items())]
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"
