"""The places of a script that autotune changes: where its DataLoaders are made, and its autocast is entered."""

from __future__ import annotations

import dis
import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from autotune.config import OF_WORKERS, Config, without_advice
from autotune.source_location import is_foreign
from autotune.workload import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The place of a script that makes a DataLoader."""

    file: str
    """Path of the user's file, relative to the script's folder where it lies below."""
    line: int
    column: int | None = None
    """Column of the call, from 1, where the line has other calls beside it."""
    inside: tuple[str, ...]
    """Functions of packages between that line and the DataLoader, the outermost first."""
    dataset: str
    length: int | None
    """Samples in the dataset; ``None`` where it does not say."""
    ordinal: int = 0
    """Place of its dataset among those of that class and length for which the line makes loaders."""

    @property
    def text(self) -> str:
        """File and line, as editors read them, and the column where it matters."""
        return f"{self.file}:{self.line}" + (f":{self.column}" if self.column else "")

    @property
    def call(self) -> str:
        """File, line and name of the call: a DataLoader, or a function that makes it."""
        return f"{self.text}: {self.inside[0] if self.inside else 'DataLoader'}"

    @property
    def key(self) -> str:
        """The site in one line, as a config file keeps it."""
        length = "" if self.length is None else self.length
        number = [f"#{self.ordinal + 1}"] if self.ordinal else []
        return " ".join([self.text, *self.inside, f"{self.dataset}[{length}]", *number])


Maker = Callable[..., None]
"""``DataLoader.__init__``, and what stands in for it."""


def stand_in_for_loaders(script: Script, made: Callable[[Maker, Site, DataLoader[Any], dict[str, Any]], None]) -> None:
    """Have ``made(make, site, loader, arguments)`` make every DataLoader from now on, of this script."""
    make: Maker = DataLoader.__init__
    signature = inspect.signature(make)
    order = _Order()

    def init(loader: DataLoader[Any], *given: Any, **options: Any) -> None:
        arguments = signature.bind(loader, *given, **options).arguments
        del arguments["self"]
        site = site_of(dataset := arguments["dataset"], _caller(loader), script)
        made(make, replace(site, ordinal=order.of(site, dataset)), loader, arguments)

    init.__wrapped__ = make  # type: ignore[attr-defined]  # trainers ask for its signature
    DataLoader.__init__ = init  # type: ignore[method-assign, assignment]


def _caller(loader: DataLoader[Any]) -> FrameType | None:
    """Return the frame that makes a loader, outside of the constructors of its own class."""
    frame: FrameType | None = sys._getframe(2)
    while frame and frame.f_locals.get((*frame.f_code.co_varnames, "")[0]) is loader:
        frame = frame.f_back
    return frame


class _Order:
    """The order of the datasets that each site makes loaders of.

    Datasets that are new after the first step of an optimizer are those of another epoch: they come in the same order.
    Made where no gradients are wanted, they are for something that is no training.
    """

    def __init__(self) -> None:
        self._ordinals: dict[Site, dict[int, int]] = {}
        self._first: dict[Site, int] = {}
        """Datasets of a site before the first step."""
        self._later: dict[Site, int] = {}
        """Those of later epochs."""
        self._has_stepped = False
        register_optimizer_step_post_hook(self._step)

    def of(self, site: Site, dataset: Any) -> int:
        """Return the place of a dataset in the order of its site, from 0."""
        ordinals = self._ordinals.setdefault(site, {})
        if id(dataset) not in ordinals:
            ordinals[id(dataset)] = self._next(site, max(ordinals.values(), default=-1) + 1)
        return ordinals[id(dataset)]

    def _next(self, site: Site, unused: int) -> int:
        if not self._has_stepped:
            self._first[site] = unused + 1
        if not self._has_stepped or not torch.is_grad_enabled():
            return unused
        later = self._later[site] = self._later.get(site, -1) + 1
        return later % self._first.get(site, 1)

    def _step(self, *_: Any) -> None:
        self._has_stepped = True


def stand_in_for_autocast(is_wanted: Callable[[torch.autocast], bool]) -> None:
    """Have every autocast that is about to be entered, and is not disabled, take effect only where it is wanted."""
    enter = torch.autocast.__enter__

    def enter_where_wanted(context: torch.autocast) -> Any:
        if isinstance(context, _Added):
            return enter(context)  # type: ignore[no-untyped-call]
        own = context._enabled
        context._enabled = own and is_wanted(context)
        try:
            return enter(context)  # type: ignore[no-untyped-call]
        finally:
            context._enabled = own

    torch.autocast.__enter__ = enter_where_wanted  # type: ignore[method-assign]


class _Added(torch.autocast):
    """Autocast that the script does not have itself."""


def cast_forwards(dtype: Callable[[], torch.dtype | None]) -> None:
    """Have the modules that are trained compute in half precision wherever there is a ``dtype``, and return fp32.

    These are the outermost modules, called while gradients are wanted, with a parameter that an optimizer has.
    """
    call, add = nn.Module.__call__, torch.optim.Optimizer.add_param_group
    trained, depth = set[int](), [0]

    def note(optimizer: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
        add(optimizer, param_group)
        trained.update(id(each) for each in optimizer.param_groups[-1]["params"])

    def call_in_half(module: nn.Module, *given: Any, **options: Any) -> Any:
        half = dtype() if not depth[0] and torch.is_grad_enabled() else None
        own = next((each for each in module.parameters() if id(each) in trained), None) if half else None
        if half is None or own is None:
            return call(module, *given, **options)
        depth[0] += 1
        try:
            with _Added(own.device.type, dtype=half):
                found = call(module, *given, **options)
        finally:
            depth[0] -= 1
        return tree_map_only(torch.Tensor, lambda each: each.float() if each.dtype is half else each, found)

    torch.optim.Optimizer.add_param_group = note  # type: ignore[method-assign, assignment]
    nn.Module.__call__ = call_in_half  # type: ignore[method-assign]


def apply_answer(
    config: Config,
    sites: Sequence[str],
    script: Script,
    found: Callable[[Site, DataLoader[Any], bool], object],
    *,
    is_cast: bool = False,
) -> None:
    """Have the loaders of these places made with a configuration's settings.

    The first gets its batch size, where that is another one, and the call gives the present one: sizes that the script
    gives elsewhere, as in a later epoch, stay.
    Threads and autocast are those of the configuration; where the script has no autocast, it ``is_cast`` all the same.
    ``found`` hears of each place that makes a loader, of the loader, and whether it is one of these, or made of one.
    """
    answered: list[Any] = []
    """Datasets of loaders with the settings, which packages may put into loaders of their own."""

    def made(make: Maker, site: Site, loader: DataLoader[Any], given: dict[str, Any]) -> None:
        is_copy = any(given["dataset"] is each for each in answered)
        found(site, loader, is_copy or site.key in sites)
        if site.key not in sites:
            is_measured = is_copy and given.get("num_workers") == config.num_workers
            make(without_advice(loader) if is_measured else loader, **given)
            return
        answered.append(given["dataset"])
        make(without_advice(loader), **changed(given, config, keeps_size=site.key != sites[0]))

    keep_threads(config)
    stand_in_for_loaders(script, made)
    stand_in_for_autocast(lambda _: config.amp != "off")
    if is_cast and config.amp == "bf16":
        cast_forwards(lambda: torch.bfloat16)


def changed(given: dict[str, Any], config: Config, *, keeps_size: bool = False) -> dict[str, Any]:
    """Return the arguments of a DataLoader with the settings of a configuration."""
    settings, present, own = config.dataloader_kwargs(), config.present.get("batch_size"), given.get("batch_size", 1)
    is_other = present is not None and (own != present or config.batch_size == present)
    if keeps_size or is_other or own is None or given.get("batch_sampler") is not None:
        del settings["batch_size"]
    kept = given if config.num_workers else {name: each for name, each in given.items() if name not in OF_WORKERS}
    return kept | settings


def keep_threads(config: Config) -> None:
    """Have a configuration's numbers of threads stay, whatever a script asks torch for: they were measured.

    torch sets the number between operators once in a process, and fails where a script would set it again.
    """
    if config.intra_op_threads is not None:
        torch.set_num_threads = lambda nthreads: None
    if config.inter_op_threads is not None:
        torch.set_num_interop_threads = lambda nthreads: None


def site_of(dataset: Any, frame: FrameType | None, script: Script) -> Site:
    """Return the place that makes a loader of a dataset, from the frame that calls for it."""
    own, inside = own_frame(frame, script)
    try:
        length: int | None = len(dataset)
    except Exception:  # plain training may never ask
        length = None
    return Site(
        file=_name_of(own, script),
        line=own.f_lineno,
        column=_column(own),
        inside=inside,
        dataset=type(dataset).__qualname__,
        length=length,
    )


def place_of(frame: FrameType | None, script: Script) -> tuple[str, tuple[str, ...]]:
    """Return file and line of the user's that lead to a frame, and the functions of packages between."""
    own, inside = own_frame(frame, script)
    return f"{_name_of(own, script)}:{own.f_lineno}", inside


def own_frame(frame: FrameType | None, script: Script) -> tuple[FrameType, tuple[str, ...]]:
    """Return the innermost frame of the user's code that leads to one, and the functions of packages between."""
    inside, last = list[str](), frame
    while frame is not None and _is_foreign(frame.f_code.co_filename, script):
        inside.append(frame.f_code.co_name)
        last, frame = frame, frame.f_back
    frame = frame or last
    assert frame is not None
    return frame, tuple(reversed(inside))


@functools.cache
def _is_foreign(file: str, script: Script) -> bool:
    is_own = script.package is not None and Path(file).resolve().is_relative_to(script.package)
    return not is_own and is_foreign(file)


def _name_of(frame: FrameType, script: Script) -> str:
    """Return the file of a frame, relative to the folder of the script's code where it lies below."""
    file, root = Path(frame.f_code.co_filename).absolute(), script.root
    inner = (each.relative_to(root) for each in (file.resolve(), file) if each.is_relative_to(root))
    return str(next(inner, file))


def _column(frame: FrameType) -> int | None:
    """Return the column of the call that a frame is in, from 1, where its line has other calls beside that one."""
    code = frame.f_code
    spans = list(code.co_positions())
    line, _, column, _ = own = spans[frame.f_lasti // 2]
    if line is None or column is None:  # as with python -X no_debug_ranges, or in code that Dynamo has changed
        return None
    known = ((kind, span) for kind, span in zip(code.co_code[::2], spans, strict=True) if None not in span)
    calls = [span for kind, span in known if "CALL" in dis.opname[kind]]
    if all(each[0] != line or _holds(each, own) or _holds(own, each) for each in calls):
        return None
    text = linecache.getline(code.co_filename, line).encode()
    return len(text[:column].decode()) + 1


def _holds(outer: tuple[Any, ...], inner: tuple[Any, ...]) -> bool:
    return (outer[0], outer[2]) <= (inner[0], inner[2]) and (inner[1], inner[3]) <= (outer[1], outer[3])
