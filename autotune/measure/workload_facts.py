"""What there is to know about a workload before anything is tuned."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import sys
from collections.abc import Iterator, Sized
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import IterableDataset, default_collate

from autotune.errors import UserCodeError
from autotune.host import MemoryMeter, inspect_host
from autotune.measure.device import Device, uuid_of
from autotune.measure.step import loss_reduction, tensor_bytes
from autotune.records import WorkloadFacts
from autotune.workload import Workload, differing_settings

BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)


FOREIGN = {*sys.stdlib_module_names, "torch", "torchvision", "torchaudio", "numpy"} | {
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "transformers",
} - {"__main__"}
"""Packages whose code is known by its name: versions are compared elsewhere."""
DEEPEST = 50
"""How far code is followed from function to function; Python itself ends at some hundred."""
MOST = 2000
"""Functions and classes that are followed."""
SCALARS = (type(None), type(...), bool, int, float, complex, str, bytes)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
DEEPEST_SETTING = 3
"""How far settings are followed from object to object: a dataset's transform, its steps, and what they hold."""
MOST_PARTS, LONGEST = 50, 200
"""Items of a list of settings, and characters of one; what is longer is data."""
WRAPPED = ("dataset", "datasets")
"""Where datasets keep those that they wrap."""


def inspect(workload: Workload, device: Device, ranks: int = 1) -> WorkloadFacts:
    """Look at model, dataset and device; builds one sample. Each of several ``ranks`` has its share of free memory.

    Raises ``UserCodeError`` when the dataset gives no sample; what the sample's own code raises passes through.
    """
    dataset = workload.dataset
    length = len(dataset) if isinstance(dataset, Sized) else None
    sample = _first_sample(workload)
    devices: list[int] | None = None
    if isinstance(workload.model, torch.nn.DataParallel):
        devices = list(workload.model.device_ids)
    collate = workload.collate_fn or default_collate
    return WorkloadFacts(
        dataset_length=length,
        iterable=isinstance(dataset, IterableDataset),
        sets_epoch=hasattr(dataset, "set_epoch"),
        parameters=sum(parameter.numel() for parameter in workload.model.parameters()),
        loss_reduction=loss_reduction(workload),
        has_batch_norm=any(isinstance(module, BATCH_NORMS) for module in workload.model.modules()),
        device=str(device.torch_device),
        device_name=device.name,
        amp_modes=device.amp_modes,
        intra_op_threads=torch.get_num_threads(),
        inter_op_threads=torch.get_num_interop_threads(),
        model_name=type(workload.model).__qualname__,
        dataset_name=type(dataset).__qualname__,
        fingerprint=fingerprint(workload, length),
        sample_bytes=tensor_bytes(collate([sample])),
        versions=_versions(device),
        device_uuid=device.uuid,
        data_parallel_devices=len(devices) if devices is not None else None,
        other_devices=tuple(filter(None, (uuid_of(torch.device("cuda", number)) for number in (devices or ())[1:]))),
        obtainable_host_bytes=MemoryMeter().available() // ranks + psutil.Process().memory_info().rss,
    )


def _first_sample(workload: Workload) -> Any:
    dataset: Any = workload.dataset
    if not isinstance(dataset, IterableDataset):
        return dataset[0] if workload.sampler is None else dataset[next(iter(workload.sampler))]
    for sample in dataset:
        return sample
    raise UserCodeError("the dataset is empty: it yields no sample")


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
    for line in _Code().lines(_parts(workload)):
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
    if workload.max_grad_norm is not None or workload.loader_options:
        yield (workload.max_grad_norm, sorted((workload.loader_options or {}).items()))
    if settings := differing_settings():
        yield sorted(settings.items())


def _datasets(dataset: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the type of a dataset and what it was made with, and the same of the datasets that it wraps."""
    yield type(dataset)
    yield from _settings(dataset)
    for name in WRAPPED if depth < 10 else ():
        inner = getattr(dataset, "__dict__", {}).get(name)
        for each in inner if isinstance(inner, (list, tuple)) else [inner]:
            if each is not None:
                yield from _datasets(each, depth + 1)


def _settings(thing: Any, depth: int = 0) -> Iterator[str]:
    """Yield what an object was made with: its public plain attributes, and those of the objects in them."""
    for name, value in sorted(getattr(thing, "__dict__", {}).items()):
        if name.startswith("_") or name in WRAPPED:
            continue  # what is private may be another in every run: process numbers, caches
        for each in value if isinstance(value, (list, tuple)) and len(value) <= MOST_PARTS else [value]:
            if isinstance(each, (bool, int, float, str)):
                yield f"{name}={str(each)[:LONGEST]}"
            elif depth < DEEPEST_SETTING and not isinstance(each, (type, FunctionType, nn.Module, torch.Tensor)):
                yield from _settings(each, depth + 1)


class _Code:
    """Writes code down in lines that are the same wherever it is loaded."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._depth = 0
        self._kept: list[Any] = []

    def lines(self, parts: Iterator[Any]) -> Iterator[str]:
        for part in parts:
            yield from self._of(part)

    def _of(self, part: Any) -> Iterator[str]:
        """Yield the lines of a value, following what is code."""
        if isinstance(part, SCALARS):
            yield repr(part)
        elif isinstance(part, (tuple, list)):
            yield f"{len(part)} items"
            yield from self.lines(iter(part))
        elif isinstance(part, functools.partial):
            yield "partial"
            yield from self.lines(iter((part.func, part.args, sorted(part.keywords.items()))))
        elif isinstance(part, MethodType):
            yield from self.lines(iter((type(part.__self__), part.__func__, *getattr(part.__self__, "depends_on", ()))))
        elif isinstance(part, (staticmethod, classmethod)):
            yield from self._of(part.__func__)
        elif isinstance(part, property):
            yield from self.lines(iter((part.fget, part.fset)))
        elif isinstance(part, (FunctionType, type)):
            yield from self._once(part)
        elif isinstance(part, BuiltinFunctionType) or isinstance(type(part), type):
            yield from self._of_object(part)

    def _of_object(self, part: Any) -> Iterator[str]:
        """Yield the lines of an object, which is called or indexed: those of its type; a module's are its layers'."""
        yield str(getattr(part, "__qualname__", ""))
        wrapped = getattr(part, "__wrapped__", None)
        if isinstance(wrapped, FunctionType):
            yield from self._of(wrapped)
        if isinstance(part, nn.Module):
            yield from self.lines(type(module) for module in part.modules())
        elif not isinstance(part, BuiltinFunctionType):
            yield from self._of(type(part))

    def _once(self, part: FunctionType | type) -> Iterator[str]:
        """Yield the name of a function or class and, where it is the user's and new, its code."""
        yield f"{part.__qualname__}"
        if id(part) in self._seen or len(self._seen) >= MOST or self._depth >= DEEPEST or _is_foreign(part):
            return
        self._seen.add(id(part))
        self._kept.append(part)  # so that no other object can get its number
        self._depth += 1
        yield from self._of_class(part) if isinstance(part, type) else self._of_function(part)
        self._depth -= 1

    def _of_class(self, part: type) -> Iterator[str]:
        yield from self.lines(iter(part.__bases__))
        for name, value in sorted(vars(part).items()):
            if isinstance(value, (FunctionType, staticmethod, classmethod, property, *SCALARS)) and not _is_noise(name):
                yield name
                yield from self._of(value)

    def _of_function(self, part: FunctionType) -> Iterator[str]:
        yield from self._of_code(part.__code__)
        yield from self.lines(iter((part.__defaults__, sorted((part.__kwdefaults__ or {}).items()))))
        for warm in part.__closure__ or ():
            yield from self._reached(_content(warm))
        for name in _names(part.__code__):
            yield from self._reached(part.__globals__.get(name))
        wrapped = getattr(part, "__wrapped__", None)
        if isinstance(wrapped, FunctionType):
            yield from self._of(wrapped)

    def _reached(self, value: Any) -> Iterator[str]:
        """Yield the lines of what a function refers to, where it is code or a plain constant."""
        if isinstance(value, (FunctionType, type, functools.partial, MethodType, *SCALARS)):
            yield from self._of(value)

    def _of_code(self, code: CodeType) -> Iterator[str]:
        yield repr((code.co_code, code.co_names, code.co_freevars, code.co_argcount, code.co_kwonlyargcount))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from self._of_code(constant)
            elif isinstance(constant, frozenset):
                yield repr(sorted(map(repr, constant)))  # its own order changes from process to process
            else:
                yield repr(constant)


def _names(code: CodeType) -> list[str]:
    """Return the global names that a function uses, its inner functions included."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _content(warm: Any) -> Any:
    try:
        return warm.cell_contents
    except ValueError:  # not yet set
        return None


def _is_foreign(part: FunctionType | type) -> bool:
    return str(part.__module__).partition(".")[0] in FOREIGN


def _is_noise(name: str) -> bool:
    """Return whether a class attribute says where the class is, and not what it does."""
    return name in ("__module__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__")
