"""The settings of a configuration, one record each: allowed values, words for files and tables, part in the search.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from autotune.errors import UsageError, shown

Amp = Literal["off", "bf16", "fp16"]
AMP_MODES: tuple[Amp, ...] = get_args(Amp)
Integers = int | str | Iterable[int] | None
Switches = bool | str | Iterable[bool] | None
Names = str | Iterable[str] | None

SWITCH = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
"""The values of a switch, by their texts."""
LARGEST = 2**63
"""No setting is as large."""
FAR_OFF = -3.0
"""Coordinate of a loader without workers: far off the doublings of their number, because it works in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A field of ``Config``: one value that a user, a file or the search gives."""

    field: str
    """Its field of ``Config``."""
    called: str = ""
    """Its name for users, where that is not the field's."""
    section: Literal["dataloader", "training", "threads"] = "dataloader"
    """Its section in the config file."""
    short: str = ""
    """Its key there, where that is not the field's name."""
    meaning: str
    """What it says, for the file's schema and for tables."""
    unit: str = ""
    heading: str = ""
    """Heading of its column in the report; without one the report has no such column."""
    least: int | None = None
    """Least whole number; ``None`` where it is no number."""
    choices: Mapping[str, Any] | None = None
    """The value of each text, where it is no number."""
    is_optional: bool = False
    """Whether it may be left to torch, as ``None``."""
    of_workers: bool = False
    """Whether it needs loader workers."""
    is_left_out: bool = False
    """Whether files, studies and tables leave it out at its default."""
    transformers: str = ""
    """Its argument of ``transformers.TrainingArguments``."""
    otherwise: str = ""
    """Advice for a script, where a tool has no argument for it."""

    @property
    def name(self) -> str:
        """Its name for users."""
        return self.called or self.field

    @property
    def key(self) -> str:
        """Its key in the config file."""
        return self.short or self.field

    @property
    def words(self) -> str:
        """The allowed values, in words."""
        return f"whole numbers from {self.least}" if self.choices is None else ", ".join(self.choices)

    def require(self, value: object) -> None:
        """Raise ``UsageError`` for a value that the field cannot have."""
        if self.choices is None:
            is_number = isinstance(value, int) and not isinstance(value, bool)
            is_right = is_number and (self.least or 0) <= value < LARGEST  # type: ignore[operator]  # a number
        else:
            is_right = isinstance(value, (bool, str)) and value in self.choices.values()
        if not is_right and not (self.is_optional and value is None):
            words = "True, False" if self.choices is SWITCH else self.words
            raise UsageError(f"{self.field} is {shown(value)}; allowed: {words}")

    def value(self, given: Any, said: str, example: str = "") -> Any:
        """Return the value of a text or of a value. Raises ``UsageError``, which begins with ``said``."""
        if self.choices:
            if (text := str(given).lower()) in self.choices:
                return self.choices[text]
            raise UsageError(f"{said} allowed: {self.words}")
        try:
            number = None if isinstance(given, (bool, float)) else int(given)
        except (TypeError, ValueError):
            number = None
        if number is None or number < (self.least or 0):
            raise UsageError(f"{said} allowed: {self.words}{example and f', for example {example}'}")
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob(Setting):
    """A setting that the search varies."""

    placeholder: str
    """The word for its values in the help."""
    help: str
    """The help of its flag."""
    example: str
    """Several values, as a user may write them."""
    coordinate: Callable[[Any, int], float]
    """Its coordinate in the Gaussian process, from a value and torch's own number of threads."""
    scales: Mapping[Literal["step", "loader"], float]
    """How far errors of the prediction resemble each other along that coordinate, for steps and for loaders;
    empty where values are taken to be equally fast."""
    cost: Callable[[Any, Any], float] = lambda value, base: value != base
    """What a value costs beside the baseline's: of equally fast configurations the cheaper ones come first."""

    @property
    def flag(self) -> str:
        """Its flag of the command line."""
        return "--" + self.name.replace("_", "-")


class KnobOptions(TypedDict, total=False):
    """The knobs as keywords of ``tune``, which says what they take."""

    batch_size: Integers
    num_workers: Integers
    prefetch_factor: Integers
    pin_memory: Switches
    persistent_workers: Switches
    amp: Names
    threads: Integers


def _doublings(value: int | None, own_threads: int) -> float:
    return math.log2(value or 1)


SETTINGS: dict[str, Setting] = {
    setting.field: setting
    for setting in (
        Knob(
            field="batch_size",
            meaning="Samples of a batch, in each process.",
            unit="samples",
            heading="batch",
            least=1,
            transformers="per_device_train_batch_size",
            placeholder="SIZES",
            help="samples per step, such as 32..512",
            example="32..512",
            coordinate=_doublings,
            scales={"step": 2.0, "loader": 1.5},
            cost=lambda value, base: abs(math.log2(value / base)),
        ),
        Knob(
            field="num_workers",
            meaning="Processes that load; 0 loads in the training process.",
            unit="processes",
            heading="workers",
            least=0,
            transformers="dataloader_num_workers",
            placeholder="COUNTS",
            help="DataLoader workers, such as 0..8; 0 loads in the training process",
            example="0..8",
            coordinate=lambda value, own_threads: math.log2(value + 0.5) if value else FAR_OFF,
            scales={"loader": 2.0},
            cost=lambda value, base: value,
        ),
        Knob(
            field="prefetch_factor",
            meaning="Batches requested ahead per worker; only with workers.",
            unit="batches",
            heading="prefetch",
            least=1,
            is_optional=True,
            of_workers=True,
            transformers="dataloader_prefetch_factor",
            placeholder="COUNTS",
            help="batches requested ahead per worker, such as 2,4",
            example="2,4",
            coordinate=_doublings,
            scales={"loader": 4.0},
            cost=lambda value, base: value or 0,
        ),
        Knob(
            field="pin_memory",
            meaning="Whether batches are copied into page-locked memory.",
            heading="pin",
            choices=SWITCH,
            transformers="dataloader_pin_memory",
            placeholder="CHOICES",
            help="copy batches into page-locked memory, such as true or true,false",
            example="true,false",
            coordinate=lambda value, own_threads: float(value),
            scales={"loader": 0.5},
            cost=lambda value, base: value,
        ),
        Knob(
            field="persistent_workers",
            meaning="Whether workers live on between epochs; only with workers.",
            heading="persistent",
            choices=SWITCH,
            of_workers=True,
            transformers="dataloader_persistent_workers",
            placeholder="CHOICES",
            help="keep workers alive between epochs, such as true or true,false",
            example="true,false",
            coordinate=lambda value, own_threads: float(value),
            scales={},  # decided after the search, from measured starts
        ),
        Knob(
            field="amp",
            section="training",
            meaning="Automatic mixed precision: off is fp32, fp16 needs loss scaling.",
            heading="amp",
            choices={mode: mode for mode in AMP_MODES},
            placeholder="MODES",
            help="automatic mixed precision: off, bf16, fp16, such as off,bf16",
            example="off,bf16",
            coordinate=lambda value, own_threads: 2.0 * AMP_MODES.index(value),
            scales={"step": 1.5},
            cost=lambda value, base: value != "off",
        ),
        Setting(
            field="accumulation_steps",
            section="training",
            meaning="Batches for each step of the optimizer.",
            unit="batches",
            heading="accumulate",
            least=1,
        ),
        Setting(
            field="ranks",
            section="training",
            meaning="Processes that train together on one host; everything else is for each of them.",
            unit="processes",
            least=1,
            is_left_out=True,
            otherwise="torchrun --nproc-per-node, DistributedDataParallel(model) and DistributedSampler(dataset)",
        ),
        Setting(
            field="options",
            section="training",
            meaning="Options that are applied to the model and its optimizer before the first step.",
            heading="options",
            is_left_out=True,
        ),
        Knob(
            field="intra_op_threads",
            section="threads",
            short="intra_op",
            meaning="Threads inside an operator.",
            unit="threads",
            heading="threads",
            least=1,
            is_optional=True,
            otherwise="set OMP_NUM_THREADS before Python starts, or torch.set_num_threads()",
            called="threads",
            placeholder="COUNTS",
            help="torch's threads inside one operator, such as 1,2,4",
            example="1..4",
            coordinate=lambda value, own_threads: math.log2(value or own_threads),
            scales={"step": 1.0},
        ),
        Setting(
            field="inter_op_threads",
            section="threads",
            short="inter_op",
            meaning="Threads between operators.",
            unit="threads",
            least=1,
            is_optional=True,
            otherwise="torch.set_num_interop_threads() before the first operator",
        ),
    )
}
"""Every setting by its field of ``Config``, in the order of tables."""

KNOBS: dict[str, Knob] = {each.name: each for each in SETTINGS.values() if isinstance(each, Knob)}
"""The settings that the search varies, by their names for users, in order."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values that a user admits for a knob."""

    values: tuple[Any, ...]
    """The values, each once."""
    given: Any
    """The text or the values as they were given."""

    @property
    def is_range(self) -> bool:
        """Whether they were given as a range."""
        return isinstance(self.given, str) and ".." in self.given


def parse_knobs(given: Mapping[str, Any]) -> dict[str, Bounds]:
    """Return the values that a user admits for knobs, by name; knobs at ``None`` are left out.

    Each is a value, a sequence of values, or text: one value, ``a..b`` or ``a,b,c``. A range of batch sizes holds its
    ends and the powers of two between them. Raises ``UsageError`` naming the flag.
    """
    return {name: Bounds(_values(KNOBS[name], each), each) for name, each in given.items() if each is not None}


def _values(knob: Knob, given: Any) -> tuple[Any, ...]:
    parts = list(given) if isinstance(given, (list, tuple, range, set, frozenset)) else [given]
    if isinstance(given, str):
        low, dots, high = given.partition("..")
        if dots:
            return _range(knob, given, low, high)
        parts = [part.strip() for part in given.split(",")]
    if not parts:
        raise UsageError(f"{knob.flag}: no value given")
    return tuple(dict.fromkeys(knob.value(part, f"{knob.flag} {part}:", knob.example) for part in parts))


def _range(knob: Knob, text: str, low: str, high: str) -> tuple[int, ...]:
    said = f"{knob.flag} {text}: "
    if knob.choices:
        raise UsageError(f"{said}a range needs whole numbers; list the values, for example {knob.example}")
    first, last = (knob.value(end.strip(), f"{knob.flag} {end.strip()}:", knob.example) for end in (low, high))
    if first > last:
        raise UsageError(f"{said}the range is empty; write the smaller end first")
    if knob.field == "batch_size":
        return tuple(sorted({first, last} | {2**k for k in range(31) if first <= 2**k <= last}))
    return tuple(range(first, last + 1))


def parse_settings(text: str) -> dict[str, Any]:
    """Read settings such as ``batch_size=64,num_workers=2``, by field of ``Config``. Raises ``UsageError``."""
    known = {name: each for each in SETTINGS.values() for name in (each.name, each.field) if name != "options"}
    settings: dict[str, Any] = {}
    for name, _, value in (map(str.strip, part.partition("=")) for part in text.split(",")):
        if name not in known:
            raise UsageError(f"--baseline: unknown key {name!r}; allowed: {', '.join(known)}")
        setting = known[name]
        if setting.field in settings:
            raise UsageError(f"--baseline: {name} is given twice")
        settings[setting.field] = setting.value(value, f"--baseline: {name} is {value!r};")
    return settings
