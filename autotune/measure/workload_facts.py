"""What there is to know about a workload before anything is tuned."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import platform
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
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

FOREIGN = {*sys.stdlib_module_names, "torch", "autotune"} - {"__main__"}
"""Packages whose code is known by its name: versions are compared elsewhere."""
INSTALLED = {"site-packages", "dist-packages"}
"""Folders of packages that the user does not write: of these only files count in which the workload's types are."""
SCALARS = (type(None), type(...), bool, int, float, complex, str, bytes)
CODE = (FunctionType, type, functools.partial, type(functools.cache(repr)), MethodType, ModuleType, *SCALARS)
"""What a function may refer to that tells workloads apart."""
MEMBERS = (FunctionType, staticmethod, classmethod, property)
KINDS = (*MEMBERS, type, functools.partial, MethodType, CodeType)
ATTRIBUTES = (
    *("__self__", "__func__", "__wrapped__", "fget", "fset", "func", "args", "keywords", "__bases__"),
    *("__code__", "__defaults__", "__kwdefaults__"),
    *("co_code", "co_names", "co_freevars", "co_argcount", "co_kwonlyargcount", "co_consts"),
)
"""Where these kinds keep what they consist of."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import\b[ \t]*(\([^)]*\)|(?:\\\n|.)*)", re.MULTILINE)
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


def _settings(thing: Any, depth: int = 0) -> Iterator[Any]:
    """Yield what an object was made with: public plain attributes, and types and attributes of objects there."""
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
    """Yield names and constants, the code that lies in no file, and one digest for each file of the other code."""
    pending, seen, modules = deque(parts), dict[int, Any](), set[str]()
    while pending:
        part = pending.popleft()
        yield repr(part) if isinstance(part, SCALARS) else str(getattr(part, "__qualname__", type(part).__qualname__))
        if isinstance(part, SCALARS) or id(part) in seen:
            continue
        if not isinstance(part, (tuple, frozenset)):  # Python makes one of some that are equal
            seen[id(part)] = part  # which keeps it, so that no other object can get its number
        if isinstance(part, ModuleType):
            modules.update({part.__name__} if _is_users(_file(part.__name__)) else ())
        elif isinstance(part, (FunctionType, type)) and _file(part.__module__):
            modules.add(part.__module__)
            pending.extend(_kept(part))
        elif not isinstance(part, (FunctionType, type)) or not _is_foreign(part.__module__):
            pending.extend(_inside(part))
    yield from sorted(_digests(modules))


def _inside(part: Any) -> Iterable[Any]:
    """Return what code and callables consist of, and whatever holds them."""
    if isinstance(part, (tuple, list)):
        return (len(part), *part)
    if isinstance(part, dict):
        return sorted(part.items(), key=lambda item: str(item[0]))
    if isinstance(part, frozenset):
        return sorted(map(repr, part))  # its own order changes from process to process
    if isinstance(part, nn.Module):
        return [type(module) for module in part.modules()]
    if not isinstance(part, KINDS):
        own = getattr(part, "__dict__", {})
        return type(part), own.get("__wrapped__"), own.get("depends_on")
    inside = [getattr(part, name, None) for name in ATTRIBUTES]
    if isinstance(part, FunctionType):
        names = _names(part.__code__)
        found = [part.__globals__.get(name) for name in names if not name.startswith("__")]
        packages = [vars(each) for each in found if isinstance(each, ModuleType)]
        found += [each for package in packages for each in map(package.get, names) if isinstance(each, ModuleType)]
        inside += [*_kept(part), *(each for each in found if isinstance(each, CODE))]
    elif isinstance(part, type):
        members = sorted((name, each) for name, each in vars(part).items() if isinstance(each, (*MEMBERS, *SCALARS)))
        inside += [(name, each) for name, each in members if isinstance(each, MEMBERS) or not name.startswith("__")]
    return inside


def _kept(part: Any) -> Iterator[Any]:
    """Yield what a function keeps of where it was made."""
    for cell in getattr(part, "__closure__", None) or ():
        with suppress(ValueError):  # not yet set
            yield cell.cell_contents if isinstance(cell.cell_contents, CODE) else None


def _names(code: CodeType) -> list[str]:
    """Return the global names that a function uses, its inner functions included."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _digests(modules: set[str]) -> set[str]:
    """Return one digest for each file of these modules and of those that the user's own files import."""
    pending, files = sorted(modules), dict[str, str]()
    while pending:
        name = pending.pop()
        file = _file(name)
        if file is None or name in files or not (name in modules or _is_users(file)):
            continue
        source = Path(file).read_bytes()
        files[name] = hashlib.sha256(source).hexdigest()
        if _is_users(file):
            package = name if Path(file).stem == "__init__" else name.rpartition(".")[0]
            pending += [name.rpartition(".")[0], *_imported(package, source.decode(errors="replace"))]
    return set(files.values())


def _imported(package: str, source: str) -> Iterator[str]:
    """Yield the names of all modules that a source's imports may mean, whether there are any of those names or not."""
    for origin, words in _IMPORT.findall(source):
        with suppress(ImportError):  # relative, and in no package
            base = [importlib.util.resolve_name(origin, package)] if origin else []
            yield from base
            yield from (".".join([*base, word]) for word in re.findall(r"[\w.]+", words))


def _file(module: str | None) -> str | None:
    """Return the Python file of a module that has been imported, ``None`` for foreign ones and ``__main__``."""
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    is_known = module in ("__main__", "__mp_main__") or _is_foreign(module)
    return file if file and not is_known and file.endswith(".py") and Path(file).is_file() else None


def _is_users(file: str | None) -> bool:
    return file is not None and not INSTALLED & set(Path(file).parts)


def _is_foreign(module: str | None) -> bool:
    return str(module).partition(".")[0] in FOREIGN
