"""Facts about a workload, found before the first measurement."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import IterableDataset, default_collate

from autotune.errors import UserCodeError
from autotune.machine.host import MemoryMeter, inspect_host
from autotune.measure.device import Device, uuid_of
from autotune.measure.loader import length_of
from autotune.measure.process_memory import held_bytes
from autotune.measure.step import loss_reduction, make_optimizer
from autotune.records import WorkloadFacts
from autotune.source_location import is_installed
from autotune.workload import Workload, differing_settings

BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)

FOREIGN = {*sys.stdlib_module_names, "torch", "autotune"} - {"__main__"}
"""Packages whose code is known by its name: versions are compared elsewhere."""
SCALARS = (type(None), type(...), bool, int, float, complex, str, bytes)
CODE = (FunctionType, type, functools.partial, type(functools.cache(repr)), MethodType)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
DEEPEST_SETTING = 3
"""How far settings are followed from object to object: a dataset's transform, its steps, and their parts."""
MOST_PARTS, LONGEST = 50, 200
"""Items of a list of settings, and characters of a setting; longer values are data."""
WRAPPED = ("dataset", "datasets")
"""Where datasets keep those that they wrap."""


def inspect(workload: Workload, device: Device, ranks: int = 1) -> WorkloadFacts:
    """Look at model, dataset and device, and read no sample. Each of several ``ranks`` has its share of free memory."""
    dataset = workload.dataset
    for name, parameter in workload.model.named_parameters():
        if is_lazy(parameter):
            raise UserCodeError(f"the model's {name} has no shape yet: call the model with a batch where it is made")
    length = length_of(dataset)
    devices: list[int] | None = None
    if isinstance(workload.model, torch.nn.DataParallel):
        devices = list(workload.model.device_ids)
    optimizers: list[torch.optim.Optimizer] = []
    with suppress(Exception):  # training will say why it cannot be made
        optimizers.append(make_optimizer(workload, workload.model))
    return WorkloadFacts(
        dataset_length=None if workload.own_batches == "dataset" else length,
        epoch_samples=_epoch_samples(workload),
        iterable=isinstance(dataset, IterableDataset),
        sets_epoch=hasattr(dataset, "set_epoch"),
        parameters=sum(parameter.numel() for parameter in workload.model.parameters()),
        loss_reduction=loss_reduction(workload),
        has_batch_norm=has_batch_norm(workload.model),
        device=str(device.torch_device),
        device_name=device.name,
        amp_modes=device.amp_modes,
        intra_op_threads=torch.get_num_threads(),
        inter_op_threads=torch.get_num_interop_threads(),
        model_name=type(workload.model).__qualname__,
        dataset_name=type(dataset).__qualname__,
        fingerprint=fingerprint(workload, length),
        versions=_versions(device),
        device_uuid=device.uuid,
        data_parallel_devices=len(devices) if devices is not None else None,
        loader_arguments=tuple(_loader_arguments(workload)),
        loader_timeout=(workload.loader_options or {}).get("timeout") or None,
        other_devices=tuple(filter(None, (uuid_of(torch.device("cuda", number)) for number in (devices or ())[1:]))),
        optimizer=class_of(optimizers),
        obtainable_host_bytes=MemoryMeter().available() // ranks + held_bytes(),
    )


def class_of(optimizers: Iterable[torch.optim.Optimizer]) -> str | None:
    """Return the name of the class of optimizers, where all are of one."""
    names = {type(each).__name__ for each in optimizers}
    return names.pop() if len(names) == 1 else None


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a model normalises by statistics of the batch."""
    return any(isinstance(module, BATCH_NORMS) for module in model.modules())


def _epoch_samples(workload: Workload) -> int | None:
    if isinstance(workload.dataset, IterableDataset) or workload.own_batches is not None:
        return None
    return length_of(workload.dataset if workload.sampler is None else workload.sampler)


def _loader_arguments(workload: Workload) -> Iterator[str]:
    """Yield the arguments of every DataLoader of the workload beside the dataset and the knobs."""
    for name in ("sampler", "batch_sampler", "collate_fn"):
        if getattr(workload, name) not in (None, default_collate):
            yield name
    if workload.own_batches == "dataset":
        yield "batch_size"
    left_out = set() if workload.batch_sampler is None else {"drop_last"}  # that is the sampler's to decide
    yield from sorted(set(workload.loader_options or {}) - left_out)


def _versions(device: Device) -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    gpus = inspect_host().gpus
    if device.is_asynchronous and gpus:
        versions["driver"] = gpus[0].driver
    return versions


def fingerprint(workload: Workload, length: int | None) -> str:
    """Return sixteen hexadecimal digits over a workload; the same in every process that loads the same code.

    ``length`` is the dataset's.
    """
    model = workload.model
    shapes = [(name, tuple(value.shape), str(value.dtype)) for name, value in model.named_parameters()]
    digest = hashlib.sha256(repr((type(model).__qualname__, shapes, length)).encode())
    for line in _lines(_parts(workload)):
        digest.update(f"{line}\n".encode(errors="backslashreplace"))
    return digest.hexdigest()[:16]


def _parts(workload: Workload) -> Iterator[Any]:
    for module in workload.model.modules():
        yield type(module)
        yield module.__dict__.get("forward")  # it may have been replaced on the object
        with suppress(Exception):
            yield _ADDRESS.sub("", module.extra_repr())  # what it was made with: stride, groups, number of heads
    yield from _datasets(workload.dataset)
    yield from (workload.loss, workload.optimizer, workload.collate_fn, workload.training_step)
    yield from (workload.sampler, workload.batch_sampler)
    if workload.parallelize is not None:
        yield workload.parallelize
    for setting in (workload.epoch_batches, workload.own_batches):
        if setting is not None:
            yield setting
    if workload.max_grad_norm is not None or workload.loader_options:
        yield (workload.max_grad_norm, sorted((workload.loader_options or {}).items()))
    if settings := differing_settings():
        yield sorted(settings.items())


def _datasets(dataset: Any, depth: int = 0) -> Iterator[Any]:
    yield type(dataset)
    yield from _settings(dataset)
    for name in WRAPPED if depth < 10 else ():
        inner = getattr(dataset, "__dict__", {}).get(name)
        for each in inner if isinstance(inner, (list, tuple)) else [inner]:
            if each is not None:
                yield from _datasets(each, depth + 1)


def _settings(thing: Any, depth: int = 0) -> Iterator[Any]:
    """Yield an object's settings: public plain attributes, and types and attributes of objects there."""
    for name, value in sorted(getattr(thing, "__dict__", {}).items()):
        if name.startswith("_") or name in WRAPPED:
            continue  # what is private may be another in every run: process numbers, caches
        for each in value if isinstance(value, (list, tuple)) and len(value) <= MOST_PARTS else [value]:
            if isinstance(each, (bool, int, float, str)):
                yield f"{name}={str(each)[:LONGEST]}"
            elif depth < DEEPEST_SETTING and not isinstance(each, (type, FunctionType, nn.Module, torch.Tensor)):
                yield type(each)
                yield from _settings(each, depth + 1)


def _lines(parts: Iterable[Any]) -> Iterator[str]:
    """Yield names and constants of parts, code that lies in no file, and a digest of each of the user's files."""
    pending, seen, files = deque(parts), dict[int, Any](), set[Path]()
    while pending:
        part = pending.popleft()
        yield repr(part) if isinstance(part, SCALARS) else str(getattr(part, "__qualname__", type(part).__qualname__))
        if isinstance(part, SCALARS) or id(part) in seen:
            continue
        seen[id(part)] = part  # which keeps it, so that no other object can get its number
        if isinstance(part, (tuple, list)):
            pending.extend((len(part), *part))
        elif isinstance(part, functools.partial):
            pending.extend((part.func, part.args, sorted(part.keywords.items())))
        elif isinstance(part, MethodType):
            pending.extend((part.__func__, part.__self__))
        elif not isinstance(part, (FunctionType, type)):
            kinds = map(type, part.modules() if isinstance(part, nn.Module) else [part])
            own = getattr(part, "__dict__", {})
            pending.extend((*kinds, *_settings(part), own.get("__wrapped__"), *own.get("depends_on", ())))
        elif not _is_foreign(part.__module__):
            file = _file(part.__module__)
            files |= {file} if file else set()
            pending.extend(_kept(part) if file else _code(part))
    files |= {file for file in map(_file, [*sys.modules]) if file and not is_installed(str(file))}
    yield from sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


def _kept(part: FunctionType | type) -> Iterator[Any]:
    for cell in getattr(part, "__closure__", None) or ():
        with suppress(ValueError):  # not yet set
            yield from _plain([cell.cell_contents])


def _plain(values: Iterable[Any]) -> Iterator[Any]:
    """Yield constants and code among values: other objects may be another in every run."""
    return (value for value in values if isinstance(value, (*SCALARS, *CODE)))


def _code(part: Any) -> Iterator[Any]:
    if isinstance(part, FunctionType):
        yield from (*_bytecode(part.__code__), part.__defaults__, sorted((part.__kwdefaults__ or {}).items()))
        yield from _kept(part)
        yield from _plain(map(part.__globals__.get, _names(part.__code__)))
    elif isinstance(part, type):
        yield from part.__bases__
        for name, member in sorted(vars(part).items()):
            if not (name.startswith("__") and isinstance(member, SCALARS)):
                yield name
                yield from _code(member)
    elif isinstance(part, (staticmethod, classmethod, property)):
        for name in ("__func__", "fget", "fset"):
            yield from _code(getattr(part, name, None))
    elif isinstance(part, SCALARS):
        yield part


def _bytecode(code: CodeType) -> Iterator[Any]:
    yield from (code.co_code, code.co_names, code.co_freevars, code.co_argcount, code.co_kwonlyargcount)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _bytecode(constant)
        else:  # the order of a set changes from process to process
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _names(code: CodeType) -> list[str]:
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _file(module: str | None) -> Path | None:
    """Return the Python file of an imported module; ``None`` where it has none, for foreign ones and ``__main__``."""
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    if module == "__main__" or _is_foreign(module) or not isinstance(file, str) or not file.endswith(".py"):
        return None
    return Path(file) if Path(file).is_file() else None


def _is_foreign(module: str | None) -> bool:
    return str(module).partition(".")[0] in FOREIGN
