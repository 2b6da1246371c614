"""What a configuration becomes for another tool: its own arguments, and what it has none for. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.config import Config
from autotune.options import OPTIONS

__all__ = [
    "KNOBS",
    "Export",
    "Gap",
    "Target",
    "Written",
    "beyond_preamble",
    "call",
    "headline",
    "preamble",
    "remarks",
    "settings",
]

KNOBS = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "amp",
    "accumulation_steps",
    "intra_op_threads",
    "inter_op_threads",
    *OPTIONS,
)
"""Everything that a configuration may set."""

OTHERWISE = {
    "batch_size": "give it to the DataLoader",
    "num_workers": "give it to the DataLoader",
    "prefetch_factor": "give it to the DataLoader",
    "pin_memory": "give it to the DataLoader",
    "persistent_workers": "give it to the DataLoader",
    "amp": "run forward and loss in torch.autocast; fp16 needs torch.amp.GradScaler, too",
    "accumulation_steps": "step the optimizer after so many batches, with the loss divided by as many",
    "intra_op_threads": "set OMP_NUM_THREADS before Python starts, or torch.set_num_threads()",
    "inter_op_threads": "torch.set_num_interop_threads() before the first operator",
    "channels_last": "model.to(memory_format=torch.channels_last) once the model is on its device",
    "tf32": 'torch.set_float32_matmul_precision("high") and torch.backends.cudnn.allow_tf32 = True',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    "fused_optimizer": "build the optimizer with fused=True",
    "checkpointing": "model.gradient_checkpointing_enable(), or torch.utils.checkpoint around its repeated blocks",
    "compile": "model.compile() before the first step",
}
"""What to do in a script about a knob for which a tool has no argument."""
_PROCESS = {
    "intra_op_threads": "torch.set_num_threads({config.intra_op_threads})",
    "inter_op_threads": "torch.set_num_interop_threads({config.inter_op_threads})",
    "tf32": 'torch.set_float32_matmul_precision("high")\ntorch.backends.cudnn.allow_tf32 = True',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
}
"""Python that sets what holds for the whole process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that a tool has no argument for."""

    knob: str
    value: Any
    """What the configuration sets it to."""
    otherwise: str
    """What to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A configuration as another tool takes it."""

    target: str
    values: Mapping[str, Mapping[str, Any]]
    """Arguments by what takes them, such as ``{"Trainer": {"precision": "bf16-mixed"}}``."""
    text: str
    """The same as a file: Python, YAML, JSON or shell."""
    gaps: tuple[Gap, ...]
    """What the tool has no argument for."""

    @property
    def says_gaps(self) -> bool:
        """Whether the text says them, too; JSON has no comments."""
        return self.text.startswith("#")


Written = tuple[Mapping[str, Mapping[str, Any]], str]
"""The values and the text of an export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tool, and how it is told."""

    name: str
    title: str
    """What people call it."""
    knows: Mapping[str, str]
    """What it calls the knobs that it has an argument for."""
    write: Callable[[Config, tuple[Gap, ...]], Written]
    advice: Mapping[str, str]
    """What to do about others, where that is not what one does elsewhere."""

    def export(self, config: Config) -> Export:
        """Return the configuration as this tool takes it."""
        gaps = tuple(
            Gap(knob=knob, value=value, otherwise=self.advice.get(knob, OTHERWISE[knob]))
            for knob, value in settings(config).items()
            if knob not in self.knows
        )
        values, text = self.write(config, gaps)
        return Export(target=self.name, values=values, text=text, gaps=gaps)


def settings(config: Config) -> dict[str, Any]:
    """Return what a configuration sets, by knob; what it leaves to torch is not there."""
    found: dict[str, Any] = {**config.dataloader_kwargs(), "amp": config.amp}
    found["accumulation_steps"] = config.accumulation_steps
    found |= {"intra_op_threads": config.intra_op_threads, "inter_op_threads": config.inter_op_threads}
    found |= dict.fromkeys(config.options, True)
    unset = {"amp": "off", "accumulation_steps": 1, "intra_op_threads": None, "inter_op_threads": None}
    return {knob: found[knob] for knob in KNOBS if knob in found and not (knob in unset and found[knob] == unset[knob])}


def headline(config: Config) -> str:
    """Say in one line what was measured for a configuration."""
    measured = config.measured or {}
    if "samples_per_second" not in measured:
        return "Exported by autotune."
    rate = f"{measured['samples_per_second']:,.0f} samples/s"
    gain = f", {measured['speedup']:.2f} times the baseline" if measured.get("verdict") == "faster" else ""
    place = f" on {made_on['device']}" if (made_on := config.made_on or {}).get("device") else ""
    return f"Exported by autotune: {rate}{gain}{_on_one_line(place)}."


def preamble(config: Config, *imports: str) -> Iterator[str]:
    """Yield the lines of Python that import torch and more, and set what holds for the whole process."""
    if variables := config.thread_environment():
        yield "import os"
        yield ""
        yield "os.environ |= {  # before torch is imported"
        yield from (f'    "{name}": "{value}",' for name, value in variables.items())
        yield "}"
    yield from ("import torch", *imports, "")
    if chosen := [line for knob, line in _PROCESS.items() if knob in settings(config)]:
        yield from (line.format(config=config) for line in chosen)
        yield ""


def remarks(gaps: Iterable[Gap], title: str) -> Iterator[str]:
    """Yield comment lines about what a tool has no argument for; Python, YAML and shell have the same comments."""
    by_advice: dict[str, list[str]] = defaultdict(list)
    for gap in gaps:
        by_advice[gap.otherwise].append(f"{gap.knob} ({gap.value})")
    if by_advice:
        yield f"# {title} has no argument for:"
        yield from (f"# - {', '.join(knobs)}: {advice}" for advice, knobs in by_advice.items())


def beyond_preamble(gaps: Iterable[Gap]) -> Iterator[Gap]:
    """Yield those about which ``preamble`` does nothing."""
    return (gap for gap in gaps if gap.knob not in _PROCESS)


def call(name: str, *first: str, **arguments: Any) -> str:
    """Return a call as a line of Python, or as several where it is long."""
    parts = [*first, *(f"{key}={value!r}".replace("'", '"') for key, value in arguments.items())]
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def _on_one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
