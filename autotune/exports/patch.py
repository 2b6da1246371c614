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
from pathlib import Path
from typing import Any, cast

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameProvider

from autotune.config import THREAD_VARIABLES, Config, learning_rate_advice
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
DEFAULTS = {"batch_size": 1, "num_workers": 0, "pin_memory": False, "prefetch_factor": 2, "persistent_workers": False}
"""The values of its settings where a call names none; of ``prefetch_factor`` with workers."""
OF_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None, "timeout": 0}
"""Arguments that it takes with workers only, and their values without."""
TRAINER_DEFAULTS = {OF_TRAINER[name]: value for name, value in DEFAULTS.items()} | {
    OF_TRAINER["batch_size"]: 8,
    OF_TRAINER["pin_memory"]: True,
}
FLAGS = {
    "transformers.TrainingArguments": ("bf16", "True"),
    "lightning.Trainer": ("precision", '"bf16-mixed"'),
    "lightning.pytorch.Trainer": ("precision", '"bf16-mixed"'),
    "pytorch_lightning.Trainer": ("precision", '"bf16-mixed"'),
    "accelerate.Accelerator": ("mixed_precision", '"bf16"'),
}
"""Arguments that have a trainer compute in bf16, by the call that takes them."""
BATCH_SIZES = ("batch_size", "per_device_train_batch_size")
"""Names of the batch size, of which others than the present one stay."""
LONGEST_LINE = 100
"""Columns beyond which a new argument begins a line of its own."""
_SITE = re.compile(r"(?P<text>(?P<file>.+?):(?P<line>\d+)(:(?P<column>\d+))?)(?P<inside>( \S+)*) \S+\[\d*\]( #\d+)?")
"""The place of a DataLoader, as a config file keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Changes of a script's files, and those that its user has to make."""

    files: Mapping[Path, tuple[bytes, bytes]]
    """The files that change: before and after."""
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
        return b"".join(line if line.endswith(b"\n") else line + NO_END for line in found)


NO_END = b"\n\\ No newline at end of file\n"
"""The mark of a diff after the last line of a file that ends without a line feed."""


def patch_of(config: Config, script: Script) -> Patch:
    """Return the answer of ``run`` for a script as changes of its files.

    Raises ``ConfigFileError`` for an answer of another kind.
    """
    made_on = config.made_on or {}
    sites = [made_on.get("loader"), *(made_on.get("other_loaders") or ())]
    places = [_SITE.fullmatch(str(site)) for site in sites]
    if not all(places):
        raise ConfigFileError("the file names no DataLoader of a script: write it with python -m autotune run SCRIPT")
    folder, path, here = script.folder.resolve(), Path(script.path).resolve(), Path.cwd()
    remarks = list[str]()
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
            before=config.present,
            command=f"{config.launcher} {script.name}",
            is_shared=place["text"] in (made_on.get("shared_lines") or ()),
        )
        if not (folder / wanted.name).is_relative_to(folder):
            remarks.append(f"{wanted.place}: lies outside of {folder.name}: pass {wanted.words} there")
            continue
        change = partial(_File.change, wanted=wanted, inside=place["inside"].split())
        remarks += _change(files, folder / wanted.name, change, f"pass {wanted.words} in line {wanted.line}")
    if (threads := config.intra_op_threads) not in (None, made_on.get("threads")):  # else as torch has it by itself
        set_threads = partial(_File.set_threads, threads=threads, name=path.name)
        otherwise = f"set {THREAD_VARIABLES[0]}={threads} before it imports torch"
        remarks += _change(files, path, set_threads, otherwise)
    is_added = made_on.get("autocast") == ADDED
    if is_added and not [name for file in files.values() for name in file.set_precision()]:
        remarks.append("bf16: put the forward in torch.autocast(device, dtype=torch.bfloat16), and its output in fp32")
    if config.ranks > 1:
        remarks.append(f"each of {config.ranks} ranks has these settings: {config.launcher} {script.name}")
    if advice := learning_rate_advice(config):
        remarks.append(advice)
    changed = {path: (file.before, file.after) for path, file in files.items() if file.after != file.before}
    is_below = all(each.is_relative_to(here) for each in changed)
    base = here if is_below else Path(os.path.commonpath([folder, *(each.parent for each in changed)]))
    return Patch(files=changed, remarks=tuple(remarks), title=headline(config), folder=base)


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


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The settings that a DataLoader is to have."""

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
    """The command line of the script."""
    is_shared: bool = False
    """Whether its line makes loaders of other datasets too."""

    @property
    def words(self) -> str:
        """The settings that change, as arguments."""
        found = {name: value for name, value in self.settings.items() if value != self.before.get(name)}
        return _words(found or self.settings)


class _RefusedError(Exception):
    """A call that is not changed, with the reason."""


class _File:
    """One file of the user's, and its changes."""

    def __init__(self, path: Path) -> None:
        self.before = path.read_bytes()
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
            elif inside:
                raise _RefusedError(f"{inside[0]}(...) makes the loader: pass it {wanted.words} by its own names")
            else:
                call = self._loader_at(wanted)
                yield from self._edit(call, wanted, *self._parameters(call.func, wanted))
                if wanted.is_shared:
                    yield f"{wanted.place}: makes other DataLoaders too, which get these settings as well"
        except _RefusedError as refused:
            yield f"{wanted.place}: {refused}"

    def _change_trainer(self, wanted: _Wanted) -> Iterator[str]:
        settings = {OF_TRAINER[name]: value for name, value in wanted.settings.items()}
        before = {OF_TRAINER[name]: value for name, value in wanted.before.items() if name in OF_TRAINER}
        calls = [call for call in self._calls if self._name(call.func).endswith("TrainingArguments")]
        if len(calls) != 1:
            flags = " ".join(f"--{name} {value}" for name, value in settings.items() if value != before.get(name))
            raise _RefusedError(f"the trainer's arguments come from elsewhere: pass it {flags}")
        yield from self._edit(
            calls[0],
            replace(wanted, place=f"{wanted.name}:{self._line(calls[0])}", settings=settings, before=before),
            TRAINER_DEFAULTS,
            ("output_dir",),
        )

    def _loader_at(self, wanted: _Wanted) -> cst.Call:
        """Return the call at a place that makes a DataLoader. Raises ``_RefusedError`` where none is sure to."""
        here = [call for call in self._calls if self._line(call) == wanted.line]
        if wanted.column:
            here = [call for call in here if self._positions[call].start.column + 1 == wanted.column]
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
        """Return the expressions that a call of one comes to: bases of a class, or the function of a partial.

        That is ``functools.partial`` with named arguments alone.
        """
        if known := self._class(function):
            return [base.value for base in known.bases]
        calls = [function] if isinstance(function, cst.Call) else self._assigned(function)
        return [
            call.args[0].value
            for call in calls
            if isinstance(call, cst.Call)
            and self._name(call.func).rpartition(".")[2] == "partial"
            and [bool(each.keyword) for each in call.args] == [False] + [True] * (len(call.args) - 1)
        ]

    def _assigned(self, name: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """Yield the values that a name, or an attribute of a name, is given."""
        code = self._code(name)
        for node in self._positions:
            if isinstance(node, cst.Assign) and any(self._code(each.target) == code for each in node.targets):
                yield node.value

    def _class(self, function: cst.BaseExpression) -> cst.ClassDef | None:
        classes = (node for node in self._positions if isinstance(node, cst.ClassDef))
        return next((each for each in classes if each.name.value == self._code(function)), None)

    def _parameters(self, function: cst.BaseExpression, wanted: _Wanted) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Return the defaults of the settings in a call, and the parameters that it may give without names.

        Raises ``_RefusedError`` where the class does not pass on the settings.
        """
        known = self._class(function)
        makes = [each for each in known.body.body if isinstance(each, cst.FunctionDef)] if known else []
        make = next((each for each in makes if each.name.value == "__init__"), None)
        if make is None:
            behind = [each for each in self._behind(function) if self._makes_loader(each)]
            return self._parameters(behind[0], wanted) if behind else (DEFAULTS, POSITIONAL)
        params, code, named = make.params, self._code(make.body), self._code(function)
        own = [each.name.value for each in (*params.posonly_params, *params.params)][1:]
        names = {*own, *(each.name.value for each in params.kwonly_params)}
        rest = f"(*{params.star_arg.name.value}," if isinstance(params.star_arg, cst.Param) else ""
        if not (params.star_kwarg and f"**{params.star_kwarg.name.value}" in code and rest in code):
            raise _RefusedError(f"{named} has parameters of its own: have it pass on {wanted.words}")
        for name in wanted.settings:
            if name not in names and (given := re.search(rf"\b{name}=[^=,)][^,)]*", code)):
                raise _RefusedError(f"{named} gives {given[0]} itself: have it pass on {wanted.words}")
        defaults = {name: value for name, value in DEFAULTS.items() if name not in names}
        return defaults, [*own, *(POSITIONAL if rest else ())]

    def _edit(
        self,
        call: cst.Call,
        wanted: _Wanted,
        defaults: Mapping[str, Any],
        positional: Sequence[str],
    ) -> Iterator[str]:
        """Give a call its settings, and yield those whose values come from elsewhere."""
        if any(each.star for each in call.args):
            star = next(self._code(each).rstrip(", \n") for each in call.args if each.star)
            raise _RefusedError(f"takes {star}: put {wanted.words} there")
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
            if given is None and value != defaults.get(name):
                new[name] = _with_workers(name, value, elsewhere if name in needs_workers else None)
            elif given is not None and (literal := literals[name]) is _UNKNOWN:
                if value != wanted.before.get(name):
                    yield f"{wanted.place}: {self._origin(name, given.value, value, wanted)}"
            elif given is not None and literal != value:
                present = wanted.before.get(name, literal)
                if name in BATCH_SIZES and literal != present:
                    yield f"{wanted.place}: {name}={literal} stays: {present} was measured"
                else:
                    values[given] = _expression(value)
        # by position others follow
        values |= {args[name]: _expression(OF_WORKERS[name]) for name in OF_WORKERS if args.get(name) in gone}
        kept = [each for each in call.args if each not in gone or not each.keyword]
        kept = [each.with_changes(value=values[each]) if each in values else each for each in kept]
        if new or values or gone:
            self._changed[call] = _with_arguments(call, kept, new, self._positions[call].start.column)

    @staticmethod
    def _argument(arg: cst.Arg, place: int, positional: Sequence[str]) -> str:
        if arg.keyword is not None:
            return arg.keyword.value
        return positional[place] if place < len(positional) else f"argument {place + 1}"

    def _origin(self, name: str, expression: cst.BaseExpression, value: Any, wanted: _Wanted) -> str:
        """Return how to have an expression give a value: a flag of the script, or a line to change."""
        code = self._code(expression)
        if isinstance(expression, cst.Attribute) and (flag := self._flag(expression.attr.value)):
            way = f"{wanted.command} ... {flag} {value}"
            return f"{name}={code} comes from the command line: {way}"
        if isinstance(expression, cst.Name):
            lines = [self._line(each) for each in self._assigned(expression)]
            if len(lines) == 1:
                return f"{name}={code} is set in line {lines[0]}: make it {value!r}"
        return f"{name}={code} is not a plain value: have it give {value!r}"

    def _flag(self, attribute: str) -> str | None:
        """Return the flag of an ``argparse`` parser of this file whose value has this name."""
        for call in self._calls:
            if not (isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"):
                continue
            texts = [_literal(each.value) for each in call.args if each.keyword is None]
            flags = [text for text in texts if isinstance(text, str)]
            own = next(
                (_literal(each.value) for each in call.args if each.keyword and each.keyword.value == "dest"), None
            )
            long = [flag for flag in flags if flag.startswith("--")] or flags
            if long and (own or long[0].lstrip("-").replace("-", "_")) == attribute:
                return long[0]
        return None

    def set_precision(self) -> Iterator[str]:
        """Have the trainers of this file compute in bf16, and yield their names."""
        for call in self._calls:
            name = self._name(call.func)
            if name not in FLAGS:
                continue
            flag, value = FLAGS[name]
            known, expression = cast("cst.Call", self._changed.get(call, call)), cst.parse_expression(value)
            own = [each for each in known.args if each.keyword and each.keyword.value == flag]
            args = [each.with_changes(value=expression) if each in own else each for each in known.args]
            new = {} if own else {flag: expression}
            self._changed[call] = _with_arguments(known, args, new, self._positions[call].start.column)
            yield name

    def set_threads(self, threads: int | None, name: str) -> Iterator[str]:
        """Set the number of threads before torch is imported; yield what that leaves to the user."""
        own = [call for call in self._calls if self._name(call.func) == "torch.set_num_threads"]
        if own:
            literals = [_literal(call.args[0].value) for call in own if call.args]
            if literals != [threads]:
                lines = ", ".join(str(self._line(call)) for call in own)
                yield f"{name}:{lines}: sets the number of threads itself: make it {threads}, as measured"
            return
        if any(isinstance(node, cst.SimpleString) and THREAD_VARIABLES[0] in node.value for node in self._positions):
            yield f"{name} sets {THREAD_VARIABLES[0]} itself: make it {threads}, as measured"
            return
        names = " = ".join(f'os.environ["{variable}"]' for variable in THREAD_VARIABLES[:2])
        self._first_lines = ["import os", f'{names} = "{threads}"  # before torch is imported, as measured']


class _Replaced(cst.CSTTransformer):
    """Puts changed nodes in the place of others."""

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
    """Return a call with further arguments, laid out as those that it has."""
    args = list(kept)
    pattern: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
    for arg in call.args[:-1]:
        if isinstance(arg.comma, cst.Comma):
            pattern = _bare(arg.comma.whitespace_after)
            break
    else:
        if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
            pattern = _bare(call.whitespace_before_args)
    added = [
        cst.Arg(
            keyword=cst.Name(name),
            value=value,
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        for name, value in new.items()
    ]
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


def _with_workers(name: str, value: Any, workers: cst.BaseExpression | None) -> cst.BaseExpression:
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
    """Return the last argument with others to follow, and the end that goes behind these.

    A comment beside the last argument stays there.
    """
    has_comma = isinstance(last.comma, cst.Comma)
    space = cast("cst.Comma", last.comma).whitespace_after if has_comma else last.whitespace_after_arg
    between = pattern
    if isinstance(space, cst.ParenthesizedWhitespace):
        indent, line = space.indent, space.last_line
        if isinstance(pattern, cst.ParenthesizedWhitespace):
            indent, line = pattern.indent, pattern.last_line
        if isinstance(pattern, cst.ParenthesizedWhitespace) or space.first_line.comment:
            between = cst.ParenthesizedWhitespace(first_line=space.first_line, indent=indent, last_line=line)
        space = cst.ParenthesizedWhitespace(
            indent=space.indent, empty_lines=space.empty_lines, last_line=space.last_line
        )
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
    added = [cst.parse_statement(line, config=module.config_for_parsing) for line in lines]
    if place:
        added[0] = added[0].with_changes(leading_lines=blank)
    body = list(module.body)
    if place < len(body) and not place:
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
