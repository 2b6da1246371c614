"""The answer of a script as a patch of its files: a unified diff that ``git apply`` takes, and takes back.

Files are read and nothing of them is run. Quotes, comments, commas and line ends stay as they are.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import diff_bytes, unified_diff
from functools import cached_property, partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, cast

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameProvider

from autotune.config import DEFAULTS, OF_WORKERS, PREFETCH, THREAD_VARIABLES, Config, learning_rate_advice
from autotune.errors import ConfigFileError
from autotune.exports.target import headline
from autotune.exports.transformers import OF_TRAINER
from autotune.records import ADDED
from autotune.workload import Script

POSITIONAL = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
)
"""Parameters of ``torch.utils.data.DataLoader`` that may be given without a name, in order."""
FLAGS = {
    "transformers.TrainingArguments": ("bf16", "True"),
    "lightning.Trainer": ("precision", '"bf16-mixed"'),
    "lightning.pytorch.Trainer": ("precision", '"bf16-mixed"'),
    "pytorch_lightning.Trainer": ("precision", '"bf16-mixed"'),
    "accelerate.Accelerator": ("mixed_precision", '"bf16"'),
}
"""Arguments that have a trainer compute in bf16, by the call that takes them."""
READERS = ("omegaconf.OmegaConf.to_container", "hydra.utils.instantiate", "builtins.dict")
"""Functions that take a part of Hydra's configuration."""
RECEIVERS = {"LightningDataModule": "data", "LightningModule": "model"}
"""Names of the classes that LightningCLI makes, by their bases."""
OF_NET = "iterator_train__"
"""Beginning of the names of a loader's settings as arguments of skorch's nets."""
_PLAIN = {name: value for name, value in DEFAULTS.items() if name != "batch_size"}
"""Settings of a loader where none were measured; a batch size is not assumed."""
BY_OPTION = "comes from the command line"
"""Words of remarks on settings that an option gives."""
MOST_STEPS = 4
"""Variables that are followed to an option."""
MOST_FILES = 300
"""Files of a script's code that are searched for flags."""
LONGEST_LINE = 100
"""Columns beyond which a new argument begins a line of its own."""
_SITE = re.compile(r"(?P<text>(?P<file>.+?):(?P<line>\d+)(:(?P<column>\d+))?)(?P<inside>( \S+)*) \S+\[\d*\]( #\d+)?")
"""The place of a DataLoader, as a config file keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Changes of a script's files, and those that its user has to make."""

    files: Mapping[Path, tuple[bytes, bytes]]
    """The files that change: before and after."""
    edits: tuple[str, ...]
    """The changes of these files in words."""
    remarks: tuple[str, ...]
    """The settings that no change of a file gives, and what to do."""
    title: str
    folder: Path
    """The folder from which the diff names the files."""

    @property
    def git(self) -> str:
        """The command for the patch, from the working folder."""
        place = os.path.relpath(self.folder)
        return "git apply" if place == os.curdir else f"git -C {shlex.quote(place)} apply"

    @property
    def text(self) -> bytes:
        """The remarks and the unified diff."""
        head = [f"# {line}" for line in (self.title, *self.remarks)]
        return "\n".join([*head, ""]).encode() + b"".join(map(self._diff, self.files))

    def _diff(self, path: Path) -> bytes:
        name = path.relative_to(self.folder).as_posix() + "\t"  # else it would end at a space
        before, after = (BytesIO(content).readlines() for content in self.files[path])
        found = diff_bytes(unified_diff, before, after, f"a/{name}".encode(), f"b/{name}".encode())
        return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in found)


def patch_of(config: Config, script: Script) -> Patch:
    """Return the answer of ``run`` for a script as changes of its files.

    Raises ``ConfigFileError`` for an answer of another kind.
    """
    made_on = config.made_on or {}
    sites = [made_on.get("loader"), *made_on.get("other_loaders", ())]
    places = [_SITE.fullmatch(str(site)) for site in sites]
    if not all(places):
        raise ConfigFileError("the file names no DataLoader of a script: write it with python -m autotune run SCRIPT")
    folder, path, here = Path(script.root), Path(script.path).resolve(), Path.cwd()
    remarks, flags = list[str](), _flags(script)
    files: dict[Path, _File] = {}
    for number, place in enumerate(cast("list[re.Match[str]]", places)):
        wanted = _Wanted(
            name=place["file"],
            place=place["text"],
            line=int(place["line"]),
            column=int(place["column"] or 0),
            # of several loaders the samples of the first count
            settings={
                name: each
                for name, each in config.dataloader_kwargs().items()
                if name != "batch_size" or not (number or config.batch_size == config.present.get("batch_size"))
            },
            before={**_PLAIN, "prefetch_factor": PREFETCH, **config.present},
            command=script.command if config.ranks == 1 else f"{config.launcher} {script.name}",
            flags=flags,
            is_shared=place["text"] in made_on.get("shared_lines", ()),
        )
        if not (folder / wanted.name).is_relative_to(folder):
            remarks.append(f"{wanted.place}: lies outside of {folder.name}: pass {wanted.words} there")
            continue
        change = partial(_File.change, wanted=wanted, inside=place["inside"].split())
        remarks += _change(files, folder / wanted.name, change, f"pass {wanted.words} in line {wanted.line}")
    if (threads := config.intra_op_threads) not in (None, made_on.get("threads")):  # else as torch has it by itself
        set_threads = partial(_File.set_threads, threads=threads)
        otherwise = f"set {THREAD_VARIABLES[0]}={threads} before it imports torch"
        remarks += _change(files, path, set_threads, otherwise)
    remarks += _set_precision(made_on.get("autocast"), files.values())
    if config.ranks > 1:
        remarks.append(f"each of {config.ranks} ranks has these settings: {config.launcher} {script.name}")
    if advice := learning_rate_advice(config):
        remarks.append(advice)
    changed = {path: (file.before, file.after) for path, file in files.items() if file.after != file.before}
    for file in list(changed) if script.package else ():
        del changed[file]
        if not any(BY_OPTION in each for each in remarks):
            remarks.append(f"{file.name} is of an installed package: pass {wanted.words} there, or by its own options")
    is_below = all(each.is_relative_to(here) for each in changed)
    base = here if is_below else Path(os.path.commonpath([folder, *(each.parent for each in changed)]))
    edits = tuple(each for path, file in files.items() if path in changed for each in file.edits)
    return Patch(files=changed, edits=edits, remarks=tuple(remarks), title=headline(config), folder=base)


def _set_precision(autocast: str | None, files: Iterable[_File]) -> Iterator[str]:
    if autocast == ADDED:
        if not [call for file in files for call in file.set_precision()]:
            yield "bf16: put the forward in torch.autocast(device, dtype=torch.bfloat16), and its output in fp32"
    elif autocast:
        yield f"{autocast}: train without autocast"


def _flags(script: Script) -> dict[str, str]:
    """Return the flags of ``argparse`` in a script's code by the name of each one's value, those of its file first."""
    beside = Path(script.package).rglob("*.py") if script.package else Path(script.folder).glob("*.py")
    found = dict[str, str]()
    for file in islice((Path(script.path), *beside), MOST_FILES):
        for given in re.findall(r"\.add_argument\(([^()]*)", file.read_bytes().decode(errors="replace")):
            flags = re.findall(r"""["'](-{1,2}\w[\w-]*)["']""", given)
            own = re.search(r"""dest=["'](\w+)""", given)
            for flag in sorted(flags, key=len)[-1:]:
                found.setdefault(own[1] if own else flag.lstrip("-").replace("-", "_"), flag)
    return found


def _change(
    files: dict[Path, _File], path: Path, change: Callable[[_File], Iterable[str]], otherwise: str
) -> Iterator[str]:
    """Change a file, which is read once, and yield what is left to the user; ``otherwise`` where it cannot be read."""
    try:
        file = files.get(path) or files.setdefault(path, _File(path))
    except (OSError, ValueError, SyntaxError, RecursionError, cst.ParserSyntaxError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        yield f"{path.name} cannot be read ({reason}): {otherwise}"
    else:
        yield from change(file)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    name: str
    """Its file, as people read it."""
    place: str
    """Its file, line, and the column where others are made beside it."""
    line: int
    column: int
    """The column, from 1; 0 where there is none."""
    settings: Mapping[str, Any]
    before: Mapping[str, Any]
    """The settings that it had when it was measured."""
    command: str
    flags: Mapping[str, str]
    """Flags of its command line, by the name of the value of each."""
    is_shared: bool = False
    """Whether its line makes loaders of other datasets too."""

    @property
    def words(self) -> str:
        """The settings that change, as arguments."""
        return ", ".join(self.each())

    def each(self, prefix: str = "") -> list[str]:
        """Return the settings that change, or all, as arguments with a prefix."""
        found = {name: value for name, value in self.settings.items() if value != self.before.get(name)}
        return [f"{prefix}{name}={value!r}" for name, value in (found or self.settings).items()]


class _RefusedError(Exception):
    """A call that is not changed, with the reason."""


class _File:
    def __init__(self, path: Path) -> None:
        self.edits = list[str]()
        self._name_of_file, self.before = path.name, path.read_bytes()
        self._wrapper = MetadataWrapper(cst.parse_module(self.before))
        self._positions = self._wrapper.resolve(PositionProvider)
        self._names = self._wrapper.resolve(QualifiedNameProvider)
        self._changed: dict[cst.CSTNode, cst.CSTNode] = {}
        self._first_lines: list[str] = []

    @property
    def after(self) -> bytes:
        """The content with all changes."""
        module = self._wrapper.module.visit(_Replaced(self._changed))
        if self._first_lines:
            module = _with_first_lines(module, self._first_lines)
        return module.bytes

    @cached_property
    def _calls(self) -> list[cst.Call]:
        return [node for node in self._positions if isinstance(node, cst.Call)]

    def _line(self, node: cst.CSTNode) -> int:
        return int(self._positions[node].start.line)

    def change(self, wanted: _Wanted, inside: Sequence[str]) -> Iterator[str]:
        """Change the call that decides the settings of a DataLoader, and yield what is left to its user."""
        try:
            if "get_train_dataloader" in inside:
                yield from self._change_trainer(wanted)
            elif "get_iterator" in inside and "fit_loop" in inside:
                raise _RefusedError("skorch makes the loader: pass the net " + ", ".join(wanted.each(OF_NET)))
            elif inside:
                for call in reversed(self._at(wanted)):
                    if self._name(call.func) == "hydra.utils.instantiate":
                        self._refuse_overrides(call, self._code(call), wanted)
                raise _RefusedError(f"{inside[0]}(...) makes the loader: pass it {wanted.words} by its own names")
            else:
                call = self._loader_at(wanted)
                yield from self._edit(call, wanted, self._parameters(call.func, wanted))
                if wanted.is_shared and call in self._changed:
                    yield f"{wanted.place}: makes other DataLoaders too, which get these settings as well"
        except _RefusedError as refused:
            if not wanted.settings.items() <= wanted.before.items():
                yield f"{wanted.place}: {refused}"

    def _change_trainer(self, wanted: _Wanted) -> Iterator[str]:
        settings = {OF_TRAINER[name]: value for name, value in wanted.settings.items()}
        before = {OF_TRAINER[name]: value for name, value in wanted.before.items() if name in OF_TRAINER}
        calls = [call for call in self._calls if self._name(call.func).endswith("TrainingArguments")]
        if len(calls) != 1:
            flags = " ".join(f"--{name} {value}" for name, value in settings.items() if value != before.get(name))
            raise _RefusedError(f"the trainer's arguments come from elsewhere: pass it {flags}")
        place = f"{wanted.name}:{self._line(calls[0])}"
        own = replace(wanted, place=place, settings=settings, before=before)
        yield from self._edit(calls[0], own, ["output_dir"])

    def _at(self, wanted: _Wanted) -> list[cst.Call]:
        here = [call for call in self._calls if self._line(call) == wanted.line]
        return [call for call in here if wanted.column in (0, self._positions[call].start.column + 1)]

    def _loader_at(self, wanted: _Wanted) -> cst.Call:
        """Return the call at a place that makes a DataLoader. Raises ``_RefusedError`` where none is sure to."""
        here = self._at(wanted)
        makers = [call for call in here if self._makes_loader(call.func)]
        if len(makers) > 1:
            raise _RefusedError(f"several DataLoaders on one line: pass {wanted.words} to the one that trains")
        if not makers:
            which = "no call on this line is known to make a DataLoader" if here else "no call is here any more"
            if here and (wanted.column or len(here) == 1):
                which = f"{self._code(here[-1].func)}(...) is not known to be a DataLoader"
            raise _RefusedError(f"{which}: pass {wanted.words} where it is made")
        if wanted.is_shared and "batch_size" in wanted.settings:
            raise _RefusedError(f"this line makes other DataLoaders too: pass {wanted.words} where the data trains")
        return makers[0]

    def _code(self, node: cst.CSTNode) -> str:
        return self._wrapper.module.code_for_node(node)

    def _name(self, node: cst.CSTNode) -> str:
        names: Any = self._names.get(node)
        found = names() if callable(names) else names  # it may be computed late
        return next((each.name for each in found or ()), self._code(node))  # unknown of a star import

    def _makes_loader(self, function: cst.BaseExpression, depth: int = 0) -> bool:
        """Return whether calling an expression makes a DataLoader: its class, a subclass, or a partial of these."""
        if self._name(function).rpartition(".")[2] == "DataLoader" or depth > 3:
            return depth <= 3
        return any(self._makes_loader(each, depth + 1) for each in self._behind(function))

    def _behind(self, function: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Return the bases of a class, or the function of a ``functools.partial`` of named arguments alone."""
        if known := self._class(function):
            return [base.value for base in known.bases]
        calls = [function] if isinstance(function, cst.Call) else self._assigned(self._code(function))
        return [
            call.args[0].value
            for call in calls
            if isinstance(call, cst.Call)
            and self._name(call.func).rpartition(".")[2] == "partial"
            and [bool(each.keyword) for each in call.args] == [False] + [True] * (len(call.args) - 1)
        ]

    def _assigned(self, code: str) -> Iterator[cst.BaseExpression]:
        for node in self._positions:
            if isinstance(node, cst.Assign) and any(self._code(each.target) == code for each in node.targets):
                yield node.value

    def _class(self, function: cst.BaseExpression) -> cst.ClassDef | None:
        classes = (node for node in self._positions if isinstance(node, cst.ClassDef))
        return next((each for each in classes if each.name.value == self._code(function)), None)

    @staticmethod
    def _constructor(known: cst.ClassDef) -> cst.FunctionDef | None:
        functions = (each for each in known.body.body if isinstance(each, cst.FunctionDef))
        return next((each for each in functions if each.name.value == "__init__"), None)

    def _parameters(self, function: cst.BaseExpression, wanted: _Wanted) -> Sequence[str]:
        known = self._class(function)
        make = self._constructor(known) if known else None
        if make is None:
            behind = [each for each in self._behind(function) if self._makes_loader(each)]
            return self._parameters(behind[0], wanted) if behind else POSITIONAL
        params, code, named = make.params, self._code(make.body), self._code(function)
        own = [each.name.value for each in (*params.posonly_params, *params.params)][1:]
        names = {*own, *(each.name.value for each in params.kwonly_params)}
        rest = f"(*{params.star_arg.name.value}," if isinstance(params.star_arg, cst.Param) else ""
        if not (params.star_kwarg and f"**{params.star_kwarg.name.value}" in code and rest in code):
            raise _RefusedError(f"{named} has parameters of its own: have it pass on {wanted.words}")
        for name in wanted.settings:
            if name not in names and (given := re.search(rf"\b{name}=[^=,)][^,)]*", code)):
                raise _RefusedError(f"{named} gives {given[0]} itself: have it pass on {wanted.words}")
        return [*own, *(POSITIONAL if rest else ())]

    def _edit(self, call: cst.Call, wanted: _Wanted, positional: Sequence[str]) -> Iterator[str]:
        if any(each.star for each in call.args):
            star = next(each for each in call.args if each.star)
            code = f"{star.star}{self._code(star.value)}"
            self._refuse_overrides(star.value, code, wanted)
            raise _RefusedError(f"takes {code}: put {wanted.words} there")
        args = {self._argument(each, place, positional): each for place, each in enumerate(call.args)}
        literals = {name: _literal(each.value) for name, each in args.items()}
        settings = dict(wanted.settings)
        if literals.get("batch_sampler") is not None or literals.get("batch_size", 1) is None:
            settings.pop("batch_size", None)  # the sampler makes the batches
        needs_workers = {name for name in (*args, *settings) if name.removeprefix("dataloader_") in OF_WORKERS}
        workers = next(name for name in settings if name.endswith("num_workers"))
        elsewhere = args[workers].value if literals.get(workers) is _UNKNOWN else None
        gone = [] if settings[workers] or elsewhere else [args[name] for name in needs_workers if name in args]
        new, values = dict[str, cst.BaseExpression](), dict[cst.Arg, cst.BaseExpression]()
        for name, value in settings.items():
            given = args.get(name)
            if given is None and value != wanted.before.get(name):
                new[name] = _with_workers(value, elsewhere if name in needs_workers else None)
            elif given is not None and (literal := literals[name]) is _UNKNOWN:
                if value != wanted.before.get(name):
                    yield f"{wanted.place}: {self._origin(name, given.value, value, wanted)}"
            elif given is not None and literal != value:
                present = wanted.before.get(name, literal)
                if name in ("batch_size", OF_TRAINER["batch_size"]) and literal != present:
                    yield f"{wanted.place}: {name}={literal} stays: {present} was measured"
                else:
                    values[given] = _expression(value)
        # by position others follow
        values |= {args[name]: _expression(OF_WORKERS[name]) for name in OF_WORKERS if args.get(name) in gone}
        kept = [each for each in call.args if each not in gone or not each.keyword]
        kept = [each.with_changes(value=values[each]) if each in values else each for each in kept]
        if new or values or gone:
            said = new | {name: values[each] for name, each in args.items() if each in values}
            words = [f"{name}={self._code(said[name])}" for name in settings if name in said]
            words += [f"no {each.keyword.value}" for each in gone if each.keyword]
            self.edits.append(f"{wanted.place}: {self._code(call.func)}(..., {', '.join(words)})")
            self._changed[call] = _with_arguments(call, kept, new, self._positions[call].start.column)

    @staticmethod
    def _argument(arg: cst.Arg, place: int, positional: Sequence[str]) -> str:
        if arg.keyword is not None:
            return arg.keyword.value
        return positional[place] if place < len(positional) else f"argument {place + 1}"

    def _origin(self, name: str, expression: cst.BaseExpression, value: Any, wanted: _Wanted) -> str:
        code = self._code(expression)
        flag = wanted.flags.get(expression.attr.value) if isinstance(expression, cst.Attribute) else None
        if option := flag or self._option(expression):
            way = f"{option} {value}" if option.startswith("-") else f"{option}={value}"
            return f"{name}={code} {BY_OPTION}: {wanted.command} ... {way}"
        if isinstance(expression, cst.Name):
            lines = [self._line(each) for each in self._assigned(code)]
            if len(lines) == 1:
                return f"{name}={code} is set in line {lines[0]}: make it {value!r}"
        return f"{name}={code} is not a plain value: have it give {value!r}"

    def _refuse_overrides(self, expression: cst.BaseExpression, code: str, wanted: _Wanted) -> None:
        """Raise ``_RefusedError`` with Hydra's overrides where an expression is a part of its configuration."""
        option = self._option(expression)
        if option is not None and not option.startswith("-"):
            words = " ".join(wanted.each(f"++{option}.".replace("++.", "++")))
            raise _RefusedError(f"{code} {BY_OPTION}: {wanted.command} ... {words}")

    def _option(self, expression: cst.BaseExpression, depth: int = 0) -> str | None:
        """Return the option that gives an expression's value: a key of Hydra, or a flag of LightningCLI."""
        if isinstance(expression, cst.Call) and expression.args and self._name(expression.func) in READERS:
            return self._option(expression.args[0].value, depth)
        code = re.sub(r"""\[["'](\w+)["']\]""", r".\1", self._code(expression))
        root, _, rest = code.removeprefix("self.").partition(".")
        main = re.search(rb"@hydra\.main\(.*?\)\s+def \w+\((\w+)", self.before, re.DOTALL)
        if main and root == main[1].decode():
            return rest
        values = list(self._assigned(root)) if depth < MOST_STEPS else []
        if len(values) == 1 and (found := self._option(values[0], depth + 1)) is not None:
            return f"{found}.{rest}".strip(".")
        return self._flag_of_lightning(expression, code.rpartition(".")[2]) if code.startswith("self.") else None

    def _flag_of_lightning(self, expression: cst.BaseExpression, name: str) -> str | None:
        line, classes = self._line(expression), [each for each in self._positions if isinstance(each, cst.ClassDef)]
        around = [each for each in classes if self._line(each) <= line <= self._positions[each].end.line]
        make = self._constructor(around[-1]) if around and b"LightningCLI" in self.before else None
        if make is None or name not in [each.name.value for each in make.params.params]:
            return None
        bases = [self._name(each.value).rpartition(".")[2] for each in around[-1].bases]
        return next((f"--{RECEIVERS[each]}.{name}" for each in bases if each in RECEIVERS), None)

    def set_precision(self) -> Iterator[cst.Call]:
        """Have the trainers of this file compute in bf16, and yield their calls."""
        for call in (each for each in self._calls if self._name(each.func) in FLAGS):
            flag, value = FLAGS[self._name(call.func)]
            known, expression = cast("cst.Call", self._changed.get(call, call)), cst.parse_expression(value)
            own = [each for each in known.args if each.keyword and each.keyword.value == flag]
            args = [each.with_changes(value=expression) if each in own else each for each in known.args]
            new = {} if own else {flag: expression}
            self._changed[call] = _with_arguments(known, args, new, self._positions[call].start.column)
            self.edits.append(f"{self._name_of_file}:{self._line(call)}: {self._code(call.func)}(..., {flag}={value})")
            yield call

    def set_threads(self, threads: int | None) -> Iterator[str]:
        """Set the number of threads before torch is imported; yield what that leaves to the user."""
        own = [call for call in self._calls if self._name(call.func) == "torch.set_num_threads"]
        if own:
            literals = [_literal(call.args[0].value) for call in own if call.args]
            if literals != [threads]:
                lines = ", ".join(str(self._line(call)) for call in own)
                yield f"{self._name_of_file}:{lines}: sets the number of threads itself: make it {threads}, as measured"
            return
        if any(isinstance(node, cst.SimpleString) and THREAD_VARIABLES[0] in node.value for node in self._positions):
            yield f"{self._name_of_file} sets {THREAD_VARIABLES[0]} itself: make it {threads}, as measured"
            return
        kept = f"{THREAD_VARIABLES[0]}={threads} before torch is imported"
        self.edits.append(f"{self._name_of_file}: {kept}, without which the rate does not hold")
        names = " = ".join(f'os.environ["{variable}"]' for variable in THREAD_VARIABLES[:2])
        self._first_lines = ["import os", f'{names} = "{threads}"  # before torch is imported, as measured']


class _Replaced(cst.CSTTransformer):
    def __init__(self, changed: Mapping[cst.CSTNode, cst.CSTNode]) -> None:
        super().__init__()
        self._changed = changed

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        changed = self._changed.get(original_node)
        if not isinstance(changed, cst.Call):
            return updated_node
        inner = {id(one.value): other.value for one, other in zip(original_node.args, updated_node.args, strict=True)}
        args = [each.with_changes(value=inner.get(id(each.value), each.value)) for each in changed.args]
        return changed.with_changes(func=updated_node.func, args=args)


def _with_arguments(
    call: cst.Call, kept: Sequence[cst.Arg], new: Mapping[str, cst.BaseExpression], column: int
) -> cst.Call:
    args = list(kept)
    comma = call.args[0].comma if len(call.args) > 1 else None
    pattern = _bare(comma.whitespace_after if isinstance(comma, cst.Comma) else call.whitespace_before_args)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    added = [cst.Arg(keyword=cst.Name(name), value=value, equal=equal) for name, value in new.items()]
    if added and args:
        args[-1], tail = _opened(args[-1], pattern)
        added = [*(each.with_changes(comma=cst.Comma(whitespace_after=pattern)) for each in added[:-1]), added[-1]]
        added[-1] = added[-1].with_changes(**tail)
    elif args and args[-1] is not call.args[-1]:  # the last was taken away
        last = call.args[-1]
        args[-1] = args[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    found = call.with_changes(args=[*args, *added])
    code = cst.Module([]).code_for_node(found)
    is_long = "\n" not in code and column + len(code) > LONGEST_LINE
    if isinstance(pattern, cst.SimpleWhitespace) and args and added and is_long:
        begin = column + len(cst.Module([]).code_for_node(call.func)) + 1
        aligned = cst.ParenthesizedWhitespace(indent=False, last_line=cst.SimpleWhitespace(" " * begin))
        args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=aligned))
    return found.with_changes(args=[*args, *added])


def _with_workers(value: Any, workers: cst.BaseExpression | None) -> cst.BaseExpression:
    """Return the expression of a value; of one that needs workers, where an expression says how many there are."""
    if workers is None:
        return _expression(value)
    code = cst.Module([]).code_for_node(workers)
    count = code if isinstance(workers, cst.Name | cst.Attribute | cst.Call | cst.Subscript) else f"({code})"
    is_switch = isinstance(value, bool)
    return cst.parse_expression(f"{count} > 0" if is_switch else f"{value!r} if {count} > 0 else None")


def _bare(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """Return the white space between arguments without its comments and empty lines."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return cst.SimpleWhitespace(" ")
    return cst.ParenthesizedWhitespace(indent=space.indent, last_line=space.last_line)


def _opened(last: cst.Arg, pattern: cst.BaseParenthesizableWhitespace) -> tuple[cst.Arg, dict[str, Any]]:
    """Return the last argument with others to follow, its comment beside it, and the end that goes behind these."""
    has_comma = isinstance(last.comma, cst.Comma)
    space = cast("cst.Comma", last.comma).whitespace_after if has_comma else last.whitespace_after_arg
    between = pattern
    if isinstance(space, cst.ParenthesizedWhitespace):
        model = pattern if isinstance(pattern, cst.ParenthesizedWhitespace) else space
        if model is pattern or space.first_line.comment:
            between = model.with_changes(first_line=space.first_line, empty_lines=[])
        space = space.with_changes(first_line=cst.TrailingWhitespace())
    end = {"comma": cst.Comma(whitespace_after=space)} if has_comma else {"whitespace_after_arg": space}
    return last.with_changes(
        comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
    ), end


def _with_first_lines(module: cst.Module, lines: Sequence[str]) -> cst.Module:
    """Return a module with statements before its first import, behind its docstring and ``__future__``."""
    place = 0
    for number, statement in enumerate(module.body):
        first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        is_docstring = number == 0 and isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
        is_future = isinstance(first, cst.ImportFrom) and isinstance(first.module, cst.Name)
        if is_docstring or (is_future and cast("Any", first).module.value == "__future__"):
            place = number + 1
    blank = [cst.EmptyLine(indent=False)]
    body = list(module.body)
    added = [cst.parse_statement(line, config=module.config_for_parsing) for line in lines]
    if place:
        added[0] = added[0].with_changes(leading_lines=blank)
    elif body:
        body[0] = body[0].with_changes(leading_lines=[*blank, *body[0].leading_lines])
    return module.with_changes(body=[*body[:place], *added, *body[place:]])


_UNKNOWN = object()
"""A value that is only known when the script runs."""


def _expression(value: Any) -> cst.BaseExpression:
    return cst.parse_expression(repr(value))


def _literal(expression: cst.BaseExpression) -> Any:
    try:
        return ast.literal_eval(cst.Module([]).code_for_node(expression))
    except (ValueError, SyntaxError):
        return _UNKNOWN
