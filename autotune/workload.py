"""Workloads, the models and data that are trained: ``"mymod:build"`` or live objects become a ``Workload``.

The parent only describes the workload (``describe``); the child, and nobody else, loads it (``load``).
"""

from __future__ import annotations

import builtins
import difflib
import importlib
import importlib.util
import inspect
import io
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from io import BytesIO
from mmap import mmap
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from autotune.errors import UsageError
from autotune.machine.launcher import PROGRAMS
from autotune.settings import KNOBS
from autotune.source_location import is_installed

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler

    from autotune.accumulation import Reduction


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, its dataset and, where the defaults do not fit, how one trains the other.

    Batches are ``(x, ..., y)`` tuples, dictionaries, dataclasses or single tensors. By default the model is called with
    everything but the last element of a tuple, with the items of a dictionary as keywords, or with the batch itself.
    Integer targets get cross-entropy, floating ones the mean squared error. An output with a ``loss`` attribute or key,
    or a scalar output, is its own loss. The optimizer is AdamW.
    """

    model: torch.nn.Module
    """The module to train."""
    dataset: Dataset[Any]
    """Map-style or iterable dataset."""
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    """``loss(output, target)``; for dictionary and dataclass batches ``loss(output, batch)``."""
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] | torch.optim.Optimizer | None = None
    """``optimizer(parameters)``, for example ``functools.partial(torch.optim.SGD, lr=0.1)``."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    """As for a DataLoader."""
    training_step: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None
    """``training_step(model, batch) -> loss`` replaces the call of the model and the loss."""
    sampler: Sampler[Any] | None = None
    """As for a DataLoader; without it a map-style dataset is shuffled."""
    batch_sampler: Callable[[int], Sampler[list[int]]] | None = None
    """``batch_sampler(batch_size)`` returns a DataLoader's ``batch_sampler``, for example length buckets."""
    loss_reduction: Reduction | None = None
    """Whether the loss is a ``mean`` over the samples of a batch or their ``sum``, which gradient accumulation must
    know; by default what ``loss.reduction`` says, else a mean. A mean over tokens counts as one over samples."""
    max_grad_norm: float | None = None
    """Norm that the gradients of a step are clipped to; ``None`` leaves them."""
    parallelize: Callable[[torch.nn.Module], torch.nn.Module] | None = None
    """``parallelize(model) -> model`` wraps the model in each of several ranks, for example with FSDP2's
    ``fully_shard``; by default ``DistributedDataParallel`` does. Not called with one process."""
    loader_options: Mapping[str, Any] | None = None
    """More arguments of every DataLoader, such as ``worker_init_fn`` or ``drop_last``; none that a knob sets."""
    epoch_batches: int | float | None = None
    """Batches after which training ends an epoch, before the loader does: a number, or a share of the loader's, as of
    Lightning's ``limit_train_batches``."""
    beside: tuple[Beside, ...] = ()
    """Further loaders of a script, whose batches each step takes too; a function trains on one."""
    own_batches: Literal["sampler", "dataset"] | None = None
    """The maker of the batches of an existing loader where no batch size is: the ``sampler`` whose lists they are, or
    the ``dataset`` whose items they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A loader that feeds the steps together with a workload's own."""

    data: Workload
    """Its dataset, and how it is read."""
    batch_size: int
    """Its own, which does not vary; without effect where its data have ``own_batches``."""
    batches: int
    """Those that it gives for each batch of the workload's."""
    kept: Mapping[str, Any] | None = None
    """Fields of ``Config`` with its own settings; ``None`` where it has those of the workload's loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedWorkload:
    """A workload that the child imports by name."""

    model: str
    """``module:attribute`` or ``path/to/file.py:attribute``."""
    dataset: str | None
    """``module:attribute`` or ``path/to/file.py:attribute`` of the dataset, when the model's callable returns a module
    alone."""
    path: tuple[str, ...]
    """The caller's ``sys.path``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickledWorkload:
    """Live objects, pickled by value where they come from ``__main__``."""

    blob: bytes | mmap
    """The ``Workload`` as bytes of cloudpickle."""
    path: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The caller's process-wide settings of torch."""


FREE_OPTIONS = ("worker_init_fn", "drop_last", "timeout", "multiprocessing_context", "generator", "in_order")
"""DataLoader arguments that ``loader_options`` may hold."""
TAKEN = {
    **dict.fromkeys((each.field for each in KNOBS.values() if each.field not in FREE_OPTIONS), "a knob"),
    **dict.fromkeys(("dataset", "sampler", "batch_sampler", "collate_fn"), "an argument of Workload itself"),
    "shuffle": "decided by sampler: SequentialSampler(dataset) keeps the order",
}
"""DataLoader arguments that ``loader_options`` may not hold, and why."""
LONGEST_HEAD = 512
"""Bytes at the beginning of a command that name its interpreter."""
COMPILING = 'explore="compile" finds whether compiling pays'


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A training script, which is measured as it is: its own loop is the training step."""

    path: str
    arguments: tuple[str, ...] = ()
    allow_writes: bool = False
    """Whether it may write checkpoints, logs and files although it is measured many times."""
    allow_uploads: bool = False
    """Whether it may send to experiment trackers and model hubs each time."""
    module: str | None = None
    """Its name where it is run as a module, as ``python -m`` does."""
    loop: str | None = None
    """File and line of the loop to measure, or of its DataLoader; by default the first one that trains."""
    package: str | None = None
    """The installed package whose code it is: a folder, or the file of a module alone."""
    root: str = ""
    """The folder from which files of its code are named, wherever the script goes later."""
    base: tuple[str, str] | None = None
    """The folder of a git repository, and the commit whose files the script sees in the place of the present ones."""
    samples_per_step: int | None = None
    """Samples of a step in each rank, where steps count if no DataLoader feeds them; ``None`` refuses these scripts."""

    def __post_init__(self) -> None:
        if self.base and self.allow_writes:
            raise UsageError("--base shows the files of a commit by the layer that --allow-writes leaves out: pass one")
        root = Path(self.package).parent if self.package else self.folder.resolve()
        object.__setattr__(self, "root", self.root or str(root))

    @classmethod
    def of(cls, words: Sequence[str], loop: str | None = None, **allowed: Any) -> Script:
        """Return the script of a command line: a file, ``-m`` and a module, or a command, and its arguments.

        A command is a Python script on the ``PATH``, such as packages bring along. The script is ``allowed`` writes
        (``allow_writes``) and uploads (``allow_uploads``) where they say so.

        Raises ``UsageError`` where it is not there.
        """
        is_module = words[0] == "-m"
        path, *arguments = words[is_module:]
        module = path if is_module else None
        path, package = _found_module(path) if is_module else _found_script(path)
        script = cls(path=path, arguments=tuple(arguments), module=module, package=package, **allowed)
        return replace(script, loop=script.place_of_loop(loop)) if loop else script

    @property
    def name(self) -> str:
        """Its file, or ``-m`` and its module, as on a command line."""
        return f"-m {self.module}" if self.module else self.path

    @property
    def command(self) -> str:
        """The beginning of the command line that trains with it."""
        return f"python {self.name}" if self.module or self.path.endswith(".py") else Path(self.path).name

    @property
    def folder(self) -> Path:
        """The folder that Python looks for modules in: the script's own, of a module the working folder."""
        return Path.cwd() if self.module else Path(self.path).resolve().parent

    def place_of_loop(self, text: str) -> str:
        """Return the place of a loop as those of this script are named. Raises ``UsageError``."""
        name, _, line = text.rpartition(":")
        if not (name and line.isdecimal()):
            raise UsageError(f"--loop {text}: allowed: file and line of a loop or its DataLoader, such as train.py:40")
        file = Path(name).resolve()
        return f"{file.relative_to(self.root)}:{line}" if file.is_relative_to(self.root) and file.exists() else text

    def run(self) -> None:
        """Run it as ``__main__``, as Python does."""
        sys.argv = [self.path, *self.arguments]
        if self.module:
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
            return
        file = str(Path(self.path).absolute())
        with io.open_code(file) as source:
            code = compile(source.read(), file, "exec", dont_inherit=True)
        usual, main = sys.modules["__main__"], ModuleType("__main__")
        main.__dict__.update(__file__=file, __cached__=None, __builtins__=builtins)
        sys.modules["__main__"] = main
        try:
            exec(code, main.__dict__)  # runpy.run_path() would give it another sys.argv[0]
        finally:
            sys.modules["__main__"] = usual

    def told(self, loop: str | None, kept: Sequence[str], way: str | None, steps: str | None = None) -> Iterator[str]:
        """Yield sentences about the loop that is measured, about loaders that keep their settings, and about writes.

        These are held in some ``way``, or not. The loop may be known by the place of its ``steps`` alone.
        """
        if steps:
            yield f"Measured are the optimizer's steps of {steps}, with all that is done from one to the next."
        for place in kept:
            yield f"The DataLoader of {place} keeps its settings: the first one has others. Alike ones vary together."
        if loop and not self.loop:
            yield f"Measured is the loop of {loop}, the first that trains (--loop FILE:LINE takes another)."
        if way is not None:
            yield f"What {Path(self.path).name} writes goes to {HELD[way]} (--allow-writes lets it through)."


HELD = {
    "layer": "a layer that is removed afterwards",
    "kernel": "copies, held by the kernel and removed afterwards",
    "older kernel": "copies that are removed afterwards; C libraries and child processes may still empty your files",
    "python": "copies that are removed afterwards; C libraries are not held",
}
"""Places that the writes of a script go to, by the way in which they are held."""
WorkloadSource = ImportedWorkload | PickledWorkload | Script


def describe(workload: str | Workload | Script, dataset: str | None = None) -> WorkloadSource:
    """Describe a workload for the child, without importing any of the user's code.

    Raises ``UsageError`` for a malformed reference, a missing script or objects that cannot be pickled.
    """
    if isinstance(workload, Script):
        _found_script(workload.path)
        return workload
    path = tuple(entry or str(Path.cwd()) for entry in sys.path)
    if isinstance(workload, str):
        for flag, reference in (("--model", workload), ("--dataset", dataset)):
            if reference is not None:
                _split_reference(flag, reference)
        return ImportedWorkload(model=workload, dataset=dataset, path=path)
    if not isinstance(workload, Workload):
        raise UsageError(
            f"workload is {type(workload).__name__}; allowed: a reference, a Workload or a Script; for live objects "
            "call autotune.best_config(model, dataset), or pass autotune.Workload(model, dataset)"
        )
    import cloudpickle

    if getattr(workload.model, "_compiled_call_impl", None) is not None:
        raise UsageError(
            "the model was compiled in place, and its copy cannot be: pass it before model.compile(); " + COMPILING
        )
    try:
        return PickledWorkload(blob=cloudpickle.dumps(workload), path=path, settings=differing_settings())
    except Exception as error:
        raise UsageError(
            f"the {_unpicklable_part(workload)} cannot be sent to the measuring process: {error}. "
            "Objects with open files, locks or connections have to create them on first use"
        ) from None


def _found_module(name: str) -> tuple[str, str | None]:
    """Return the file that ``python -m`` runs, without importing a package, and its package if installed."""
    places: Any = [str(Path.cwd()), *sys.path]
    file = package = ""
    for part in [*name.split("."), "__main__"]:
        spec = PathFinder.find_spec(part, places) if places is not None else None
        if spec is None and file and part == "__main__":
            break
        if spec is None:
            raise UsageError(f"-m {name}: no such module here; run from the folder that holds {name.partition('.')[0]}")
        found = spec.submodule_search_locations
        places, file = getattr(found, "_path", found), spec.origin or ""  # some folders have no __init__.py
        package = package or (places[0] if places else file)
    return file, _unless_here(package)


def _found_script(path: str) -> tuple[str, str | None]:
    file = path if os.sep in path or Path(path).is_file() else shutil.which(path)
    if file is None or not Path(file).is_file():
        raise UsageError(f"{path}: no such file; pass the script that you train with")
    if path in PROGRAMS:
        raise UsageError(f"{path}: starts ranks; write {path} ... -m autotune run SCRIPT, or leave it out: --ranks N")
    if Path(file).suffix == ".py":
        real = Path(file).resolve()
        return file, str(real.parent) if is_installed(str(real)) else None
    with Path(file).open("rb") as opened:
        head = opened.read(LONGEST_HEAD)
    if file != path and not (head.startswith(b"#!") and b"python" in head):
        raise UsageError(f"{path}: is no Python script; pass the script that you train with")
    for point in entry_points(group="console_scripts", name=Path(file).name):
        found = PathFinder.find_spec(point.module.partition(".")[0])
        if found and found.origin:
            return file, _unless_here(next(iter(found.submodule_search_locations or [found.origin])))
    return file, None


def _unless_here(package: str) -> str | None:
    """Return the folder or file of a package that is not of the working folder; ``None`` for those of it."""
    path = Path(package).resolve()
    return None if path.is_relative_to(Path.cwd()) and not is_installed(str(path)) else str(path)


def load(source: ImportedWorkload | PickledWorkload, device: torch.device | str = "cpu") -> Workload:
    """Import or unpickle the workload; runs in the child. What was pickled on any accelerator comes on ``device``.

    Raises ``UsageError`` for a reference that leads nowhere; what the user's code raises passes through.
    """
    sys.path.extend(entry for entry in source.path if entry not in sys.path)
    if isinstance(source, PickledWorkload):
        import cloudpickle

        set_settings(source.settings)
        with _accelerators_as(device):
            return _checked(cloudpickle.loads(source.blob), "the workload")
    workload = _assemble(resolve("--model", source.model), source)
    if source.dataset is None:
        return _checked(workload, source.model)
    dataset: Any = resolve("--dataset", source.dataset)
    is_made = hasattr(dataset, "__getitem__") and not isinstance(dataset, type)
    if callable(dataset) and not is_made:
        dataset = dataset()
    return _checked(replace(workload, dataset=dataset), source.model, source.dataset)


@contextmanager
def _accelerators_as(device: torch.device | str) -> Iterator[None]:
    """Restore pickled storages of accelerators on one device, not each on the one that it was on."""
    import torch

    module: Any = torch.storage
    usual = module._load_from_bytes

    def restore(storage: Any, location: str) -> Any:
        is_plain = location in ("cpu", "meta")
        return None if is_plain else torch.serialization.default_restore_location(storage, str(device))

    module._load_from_bytes = lambda content: torch.load(BytesIO(content), restore, weights_only=False)
    try:
        yield
    finally:
        module._load_from_bytes = usual


def _assemble(target: Any, source: ImportedWorkload) -> Workload:
    from torch.nn import Module

    made: object = target if isinstance(target, (Module, Workload)) else target()
    if isinstance(made, Workload):
        return made
    if isinstance(made, tuple) and len(made) == 2:
        return Workload(*made)
    if not isinstance(made, Module):
        raise UsageError(
            f"{source.model} returned {type(made).__name__}; allowed: a torch.nn.Module, (model, dataset) "
            "or autotune.Workload"
        )
    if source.dataset is None:
        raise UsageError(
            f"{source.model} gives a model but no dataset: pass --dataset module:attribute, or return (model, dataset)"
        )
    nothing: Any = None  # until --dataset has been followed
    return Workload(made, nothing)


def _checked(workload: object, origin: str, dataset_origin: str | None = None) -> Workload:
    from torch.nn import Module

    if not isinstance(workload, Workload):
        raise UsageError(f"{origin} is {type(workload).__name__}, not an autotune.Workload")
    if not isinstance(workload.model, Module):
        raise UsageError(f"{origin}: the model is {type(workload.model).__name__}, not a torch.nn.Module")
    _require_dataset(workload.dataset, dataset_origin or origin)
    _require_free(workload.loader_options or {}, origin)
    limit = workload.epoch_batches
    is_count = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1
    if limit is not None and not is_count and not (isinstance(limit, float) and 0 < limit <= 1):
        raise UsageError(f"{origin}: epoch_batches is {limit!r}; allowed: whole numbers from 1, or a share up to 1.0")
    return workload


def _require_free(options: Mapping[str, Any], origin: str) -> None:
    from torch.utils.data import DataLoader

    for name in options:
        if name in TAKEN or name not in inspect.signature(DataLoader).parameters:
            place = TAKEN.get(name, "no argument of a DataLoader")
            raise UsageError(f"{origin}: loader_options: {name}: {place}; allowed: {', '.join(FREE_OPTIONS)}")


def _require_dataset(dataset: Any, origin: str) -> None:
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset):
        return
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise UsageError(
            f"{origin}: the dataset is {type(dataset).__name__}; allowed: an object with __getitem__ and "
            "__len__, or a torch.utils.data.IterableDataset (pass the dataset, not a DataLoader)"
        )
    is_empty = False
    with suppress(Exception):  # a sampler may know what the dataset does not
        is_empty = len(dataset) == 0
    if is_empty:
        raise UsageError(f"{origin}: the dataset is empty (its length is 0)")


def _split_reference(flag: str, reference: str) -> tuple[str, str]:
    module, _, attribute = reference.rpartition(":")
    if not module or not attribute:
        raise UsageError(f"{flag} {reference}: not a reference; allowed: module:attribute or path/to/file.py:attribute")
    return module, attribute


def resolve(flag: str, reference: str) -> object:
    """Return the object that a reference names; raises ``UsageError`` naming the flag, and errors of its module."""
    module_name, attribute = _split_reference(flag, reference)
    module = _import_file(flag, module_name) if module_name.endswith(".py") else _import(flag, module_name)
    target: object = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            close = difflib.get_close_matches(part, dir(target), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{flag} {reference}: {module_name} has no attribute {part!r}{hint}")
        target = getattr(target, part)
    is_made = isinstance(target, Workload) if flag == "--model" else hasattr(target, "__getitem__")
    if not callable(target) and not is_made:
        raise UsageError(f"{flag} {reference}: {attribute} is {type(target).__name__}, which cannot be called")
    if not is_made and (needed := _needed_arguments(target)):
        raise UsageError(
            f"{flag} {reference}: {attribute} needs {', '.join(needed)}, and is called without arguments: name a "
            "function that takes none"
        )
    return target


def _needed_arguments(target: object) -> list[str]:
    from torch.nn import Module

    if isinstance(target, Module):
        return []  # a model, which is not called
    try:
        parameters = inspect.signature(target).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []  # written in C
    return [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


def _import(flag: str, name: str) -> ModuleType:
    missing: str | None = name
    try:
        if not name.startswith("."):  # relative to what? there is no package here
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name
        if not missing or not f"{name}.".startswith(f"{missing}."):
            raise  # something that the module itself imports
    raise UsageError(
        f"{flag} {name}: no module named {missing!r} here; run from the folder that holds it, "
        "or pass path/to/file.py:attribute"
    )


def _import_file(flag: str, name: str) -> ModuleType:
    path = Path(name).resolve()
    if not path.is_file():
        raise UsageError(f"{flag} {name}: no such file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # so that it finds its siblings, as a script would
    module_name = path.stem
    while (known := sys.modules.get(module_name)) is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        module_name = f"autotune_workload_{module_name}"  # the name is taken by another module
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # loader workers unpickle its classes by this name
    spec.loader.exec_module(module)
    return module


def _unpicklable_part(workload: Workload) -> str:
    import cloudpickle

    for name in Workload.__slots__:
        try:
            cloudpickle.dumps(getattr(workload, name))
        except Exception:
            return f"{name} ({type(getattr(workload, name)).__name__})"
    return "workload"


Setting = tuple[Any, Callable[[], Any], Callable[[Any], object]]
"""One of torch's settings: its default, its getter and its setter."""


def differing_settings() -> dict[str, Any]:
    """Return torch's process-wide settings here that change its speed and are not its defaults, as plain values."""
    found = {}
    for name, (default, read, _) in torch_settings().items():
        with suppress(RuntimeError):  # torch refuses where its old and its new names for TF32 were mixed
            if (value := read()) != default:
                found[name] = value
    return found


def set_settings(settings: Mapping[str, Any]) -> None:
    """Apply the result of ``differing_settings`` from another process."""
    known = torch_settings()
    for name, value in settings.items():
        known[name][2](value)


def torch_settings() -> dict[str, Setting]:
    """Return each process-wide setting of torch that changes its speed."""
    import torch

    def of_cudnn(name: str, default: bool) -> Setting:
        cudnn = torch.backends.cudnn
        return default, lambda: getattr(cudnn, name), lambda value: setattr(cudnn, name, value)

    return {
        "float32_matmul_precision": ("highest", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "cudnn.allow_tf32": of_cudnn("allow_tf32", True),
        "cudnn.benchmark": of_cudnn("benchmark", False),
        "cudnn.deterministic": of_cudnn("deterministic", False),
        "deterministic_algorithms": (0, torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        "anomaly_detection": (False, torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        "default_dtype": (
            "float32",
            lambda: str(torch.get_default_dtype()).removeprefix("torch."),
            lambda name: torch.set_default_dtype(getattr(torch, name)),
        ),
        **_fp32_precisions(),
    }


def _fp32_precisions() -> dict[str, Setting]:
    """Return torch's newer names for TF32 and the like, where it has them; the older come first."""
    import torch

    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        return {}

    def of(library: Any, default: str) -> Setting:
        def read() -> str:
            found: str = library.fp32_precision
            is_plain = (found, default, backends.fp32_precision) == ("ieee", "none", "none")
            return default if is_plain or _do_older_names_say_it() else found

        return default, read, lambda value: setattr(library, "fp32_precision", value)

    cuda, cudnn, mkldnn = backends.cuda, backends.cudnn, backends.mkldnn
    return {
        "cuda.matmul.fp32_precision": of(cuda.matmul, "none"),
        "cudnn.conv.fp32_precision": of(cudnn.conv, "tf32"),
        "cudnn.rnn.fp32_precision": of(cudnn.rnn, "tf32"),
        "mkldnn.matmul.fp32_precision": of(mkldnn.matmul, "none"),
        "mkldnn.conv.fp32_precision": of(mkldnn.conv, "none"),
        "mkldnn.rnn.fp32_precision": of(mkldnn.rnn, "none"),
    }


def _do_older_names_say_it() -> bool:
    import torch

    try:
        return (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) != ("highest", True)
    except RuntimeError:  # torch refuses where old and new names were mixed
        return False
