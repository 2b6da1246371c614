"""The options of the command line, one record each, and the parsers of the commands."""

from __future__ import annotations

import argparse
import shlex
import sys
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from autotune.errors import ConfigFileError, UsageError
from autotune.settings import KNOBS
from autotune.step_options import OPTIONS as STEP_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

SAMPLERS = ("predictive", "tpe", "gp", "random")
"""The samplers that have a name."""
EXPORTS = ("lightning", "transformers", "accelerate", "deepspeed", "torchrun", "shell", "python", "patch")
"""What ``export`` knows: a patch of a script, and the tools of ``autotune.exports.TARGETS``."""
SHELLS = ("bash", "zsh", "fish")
"""The shells that complete commands and flags."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option: a flag, a key of ``[tool.autotune]`` in pyproject.toml, and mostly a keyword of ``autotune.tune``."""

    name: str
    """Its name as a keyword; its flag is the same with hyphens."""
    placeholder: str | None
    """The word for its value in the help: ``N`` for a whole number; ``None`` for a switch."""
    help: str
    default: str | None = None
    keyword: str = ""
    """Its keyword of ``tune``; empty where there is none."""

    @property
    def flag(self) -> str:
        """Its flag of the command line."""
        return "--" + self.name.replace("_", "-")

    def of_file(self, value: object) -> Any:
        """Return the value of a file as its flag has it. Raises ``UsageError`` for a value of another kind."""
        parts = value if isinstance(value, list) else [value]
        is_switch = self.placeholder is None
        if is_switch != isinstance(value, bool) and (is_switch or self.name not in KNOBS):
            allowed = "true, false" if is_switch else "a text or a number"
            raise UsageError(f"{self.name} is {value!r}; allowed: {allowed}")
        if is_switch:
            return value
        if not all(isinstance(part, (str, int, float)) for part in parts):
            raise UsageError(f"{self.name} is {value!r}; allowed: a text, a number, or a list of them")
        text = ",".join(str(part).lower() if isinstance(part, bool) else str(part) for part in parts)
        return _whole_from_one(text) if self.placeholder == "N" else text


_OPTIONS = (
    Option(
        "model",
        "MODEL",
        "function that returns (model, dataset), a model, or an autotune.Workload, "
        "such as mymod:build or path/to/train.py:build",
    ),
    Option(
        "dataset",
        "DATASET",
        "function that returns your dataset, such as mymod:data; needed where --model returns a model alone",
        keyword="dataset",
    ),
    Option(
        "device",
        "DEVICE",
        "auto, cpu, or an accelerator such as cuda:0 (default: %(default)s)",
        default="auto",
        keyword="device",
    ),
    Option(
        "budget",
        "TIME",
        "time to spend, such as 90s, 3m, 1h, 1m30s; 30s at least (default: 2m to 10m for tuning, 1m for check)",
        keyword="budget",
    ),
    Option("trials", "N", "most trials to run, such as 20", keyword="trials"),
    Option(
        "headroom",
        "SHARE",
        "memory to leave free, such as 10%% or 0.1 (default: 10%%)",
        default="10%",
        keyword="headroom",
    ),
    Option("max_memory", "SIZE", "most memory that training may take, such as 12GiB", keyword="max_memory"),
    Option(
        "baseline",
        "K=V,..",
        "the settings that you train with today, such as batch_size=64,num_workers=2 (default: batch_size=32, "
        "no workers, amp=off, torch's own threads)",
        keyword="baseline",
    ),
    Option(
        "storage",
        "FILE|URL",
        "keep the study there and always continue it, such as my.study; tuners on several hosts share a server, "
        "such as postgresql://user@host/database (default: beside the output)",
        keyword="storage",
    ),
    Option(
        "sampler",
        "NAME",
        f"sampler of the Optuna study: {', '.join(SAMPLERS)}, or a function that returns one (default: %(default)s)",
        default="predictive",
        keyword="optuna_sampler",
    ),
    *(Option(knob.name, knob.placeholder, knob.help, keyword=knob.name) for knob in KNOBS.values()),
    Option(
        "objective",
        "NAME",
        "samples: the most samples a second with any batch; same-batch: with the samples of an optimizer step as "
        "they are (default: same-batch without --batch-size, or the one that is sure to reach the same loss sooner)",
        keyword="objective",
    ),
    Option(
        "global_batch_size",
        "N",
        "samples of an optimizer step, such as 256: smaller batches are accumulated",
        keyword="global_batch_size",
    ),
    Option(
        "ranks",
        "N",
        "processes that train together on this host, as with torchrun, such as 2; other settings count for each",
        keyword="ranks",
    ),
    Option(
        "oversubscribe_ranks",
        None,
        "allow more --ranks than this host has CPUs and GPUs",
        keyword="oversubscribe_ranks",
    ),
    Option(
        "explore",
        "OPTIONS",
        f"further options of the step to try, such as channels_last,compile: all, or some of {', '.join(STEP_OPTIONS)}",
        keyword="explore",
    ),
    Option("config", "FILE", "diagnose the configuration of a config file instead, such as autotune.yaml"),
    Option(
        "loop",
        "FILE:LINE",
        "the loop to measure, or its DataLoader, such as train.py:40 (default: the first that trains)",
    ),
    Option("base", "REV", "compare the script with itself at a revision of its git repository, such as origin/main"),
    Option(
        "margin",
        "SHARE",
        "ask whether the second is slower by more than this, such as 3%% (default: whether they differ)",
        default="0",
    ),
    Option("python", "PYTHON", "interpreter of the second side, such as new/bin/python"),
    Option(
        "samples_per_step", "N", "samples of a step where no DataLoader feeds it, such as 64 (default: count steps)"
    ),
    Option("try", None, "also measure what storing the data, or keeping it in memory, would gain, in 2m"),
    Option("allow_writes", None, "let the script write checkpoints and logs each time that it is measured"),
    Option("allow_uploads", None, "let the script send to trackers and model hubs each time that it is measured"),
    Option("dry_run", None, "start the script once, show which DataLoader trains and what would be varied"),
    Option(
        "output",
        "FILE",
        "config file to write, .yaml or .json, such as tuned.json (default: %(default)s)",
        default="autotune.yaml",
    ),
    Option(
        "report",
        "FILE",
        "also write a report, such as report.html; its charts need pip install 'torch-autotune[report]'",
    ),
    Option("force", None, "replace any file but the script and the study, also a proven answer by an undecided one"),
    Option("exit_verdict", None, "exit with 0 for faster, 10 for no gain, 11 for undecided"),
    Option("quiet", None, "print nothing but errors to stderr", keyword="quiet"),
    Option("json", None, "print the result as one JSON object"),
    Option("snippet", None, "print Python lines that use the answer, not its settings"),
)
OPTIONS: dict[str, Option] = {option.name: option for option in _OPTIONS}
"""Every option of the commands that measure, by name, in the order of the help."""
ALLOWING = ("allow_writes", "allow_uploads")
"""Options that let a script do in a measurement what it does in training."""
OF_SCRIPTS = ("loop", *ALLOWING)
"""Options that do not go with a function."""
OF_FUNCTIONS = {
    "dataset": "a script has its own data: leave it out",
    "device": "a script chooses its own device: leave it out",
    "baseline": "a script has settings of its own: leave it out, or pass --config",
}
"""The options that do not go with a script, and what to do."""

SIGNATURES = {
    "run SCRIPT ...": "tune a training script as it is; SCRIPT alone does too",
    "tune --model MODEL": "tune the model and dataset that a function returns",
    "apply FILE SCRIPT ...": "train a script as it is, with the answer",
    "check FILE SCRIPT ...": "measure the gain of a config file again",
    "compare SCRIPT SCRIPT": "tell whether the second is slower than the first",
    "diagnose SCRIPT ...": "find out why training is slow, without a search",
    "export FILE --to TOOL": "convert a config file for another tool, or a patch",
    "report STUDY": "draw a study as an HTML page, or write its trials",
    "completion SHELL": f"complete flags in a shell: {', '.join(SHELLS)}",
    "help COMMAND": "show the flags of a command",
}
"""Commands with their arguments, and what each does."""
ABOUT = "Find the fastest safe way to train your PyTorch model on this machine."
SCREEN = (
    f"usage: python -m autotune COMMAND [flags] ...\n\n{ABOUT}\n\ncommands:\n"
    + "".join(f"  {signature:<22} {words}\n" for signature, words in SIGNATURES.items())
    + """
examples:
  python -m autotune run --budget 5m train.py --epochs 90
  python -m autotune apply autotune.yaml train.py --epochs 90
  python -m autotune tune --model autotune.demo:build --budget 3m

python -m autotune help COMMAND shows the flags of a command.
"""
)
"""The help of ``autotune`` alone."""

EPILOG = """\
examples:
  python -m autotune tune --model autotune.demo:build --budget 3m
  python -m autotune --model train.py:build --baseline batch_size=64,num_workers=4 --batch-size 64..1024
  python -m autotune --model mymod:net --dataset mymod:data --amp off,bf16 --num-workers 0,2,4,8 --json

values of settings:
  64         a value fixes a setting
  32..512    a range bounds it, both ends included
  0,2,4      a list gives its choices
  Without a flag, autotune searches the range that suits this machine.

pyproject.toml:
  [tool.autotune] gives options by their names, such as budget = "5m"; a flag comes before it.

exit codes:
  0    done: the file is written, whatever the verdict
  1    check: the file's gain no longer holds
  2    wrong flag or reference
  3    your code fails on the baseline configuration
  4    no configuration could be measured
  5    the config file or the study cannot be read or written
  10   with --exit-verdict: nothing is faster by more than a few percent
  11   with --exit-verdict, and check: undecided
  130  interrupted; the best answer so far is written first
"""


AS_MODULE = "SCRIPT is a file such as train.py, or -m and a module such as -m package.train"


NEAR = 0.7
"""Likeness of a name to a known one, from which that is meant."""
PATCHES = (".patch", ".diff")
"""Ends of the names of patches."""
BEFORE = ("--budget", "--dry-run", "--patch")
"""Flags of ``run`` that hardly any script has."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the nearest known name; empty where none is near."""
    near = get_close_matches(name, known, n=1, cutoff=NEAR)
    return f": did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """A parser of one command, whose errors are ours: one line, exit code from the class.

    Where a command takes a script, all from its name on is the script's: ``script`` in the result. Where such a command
    knows ``--model`` too, a function may take the script's place. ``taken`` are the options that pyproject.toml gave.
    """

    takes_script = False

    def __init__(self, **texts: Any) -> None:
        super().__init__(allow_abbrev=False, **texts)

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse the flags of a command; unknown ones are reported before missing ones."""
        own, script = self._split(args) if self.takes_script else (list(args), ())
        for name in (text.partition("=")[0] for text in own if text.startswith("--")):
            if name != "--" and name not in self._option_string_actions:
                self.error(f"unknown flag {name}{self._hint(name, args)}")
        taken = self._of_file(script)
        self.set_defaults(**taken)
        parsed: argparse.Namespace = self.parse_intermixed_args(own, namespace)
        given = {text.partition("=")[0] for text in own}
        parsed.taken = {name: value for name, value in taken.items() if OPTIONS[name].flag not in given}
        if self.takes_script:
            parsed.script = script
            self._require_source(parsed)
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError`` with a message that names the command's help."""
        raise UsageError(f"{message}; see python -m {self.prog} --help")

    def _split(self, args: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
        """Return the flags and files of the command, and the script with its arguments."""
        own, rest, files = list[str](), list(args), len(self._get_positional_actions())
        while rest and ((is_flag := rest[0].startswith("-") and rest[0] != "-m") or files):
            own.append(rest.pop(0))
            if own[-1] == "--":
                own.pop()
                break
            files -= not is_flag
            action = self._option_string_actions.get(own[-1])
            if action is None or not rest:
                continue
            if action.nargs in (None, 2):
                values = action.nargs or 1
                own, rest = [*own, *rest[:values]], rest[values:]
            elif own[-1] == "--patch" and rest[0].endswith(PATCHES):
                own[-1] += f"={rest.pop(0)}"
        return own, tuple(rest)

    def _of_file(self, script: tuple[str, ...]) -> dict[str, Any]:
        known = {action.dest for action in self._actions if action.nargs != 2}
        is_measuring = self.prog.split()[-1] in MEASURING
        found = {name: each for name, each in file_options().items() if name in known} if is_measuring else {}
        for action in self._actions:
            action.required = action.required and action.dest not in found
        return {name: value for name, value in found.items() if not (script and name in ("model", *OF_FUNCTIONS))}

    def _require_source(self, parsed: argparse.Namespace) -> None:
        """Refuse a command line without a script or a function, with both, or with flags of the other."""
        has_model, script = "model" in parsed, parsed.script
        if has_model and script:
            if parsed.model is not None:
                self.error(f"--model {parsed.model}: a function is measured without {script[0]}; leave out one")
            for name, way in OF_FUNCTIONS.items():
                if getattr(parsed, name, None) != self.get_default(name):
                    self.error(f"--{name}: is for a function; {way}")
        elif wrong := [OPTIONS[name].flag for name in OF_SCRIPTS if has_model and getattr(parsed, name, None)]:
            self.error(f"{wrong[0]}: is for a script; leave it out")
        if script in ((), ("-m",)) and not (has_model and parsed.model):
            way = ", or --model with the function that returns your model" if has_model else ""
            self.error(f"name the script that you train with, such as train.py{way}")

    def _hint(self, name: str, args: Sequence[str]) -> str:
        if not self.takes_script:
            return did_you_mean(name, self._option_string_actions)
        if name == "--model":
            return (
                f": {self.prog} takes a script, such as train.py; a function is tuned with python -m autotune --model"
            )
        near = did_you_mean(name, self._option_string_actions)
        script = next((text for text in args if text.endswith(".py")), None)
        moved = [text for text in args if text != script]
        if near or script is None:
            return f"{near}; flags of the script go after its name"
        return f"; flags of the script go after its name: {self.prog} {shlex.join([script, *moved])}"


def file_options() -> dict[str, Any]:
    """Return the options in ``[tool.autotune]`` of the nearest pyproject.toml, as their flags have them.

    Raises ``ConfigFileError`` naming the file and the key that is wrong.
    """
    folder = Path.cwd()
    path = next((each for parent in (folder, *folder.parents) if (each := parent / "pyproject.toml").is_file()), None)
    if path is None or "tool.autotune" not in (text := path.read_text(encoding="utf-8", errors="replace")):
        return {}
    try:
        given = tomllib.loads(text).get("tool", {}).get("autotune", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigFileError(f"{path}: not a valid TOML file: {error}") from None
    found = dict[str, Any]()
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in OPTIONS:
            raise ConfigFileError(f"{path}: tool.autotune.{key}: unknown{did_you_mean(name, OPTIONS)}")
        try:
            found[name] = OPTIONS[name].of_file(value)
        except (UsageError, argparse.ArgumentTypeError) as error:
            raise ConfigFileError(f"{path}: tool.autotune.{error}") from None
    return found


class _Root(argparse.ArgumentParser):
    """The parser of ``autotune`` alone, whose help is one screen."""

    def format_help(self) -> str:
        return SCREEN


MEASURING = ("tune", "run", "check", "compare", "diagnose")
"""The commands that read pyproject.toml."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; ``parsers_of`` returns its commands."""
    root = _Root(prog="autotune", description=ABOUT)
    root.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version and exit")
    commands = root.add_subparsers(metavar="COMMAND", parser_class=Parser, prog="autotune")
    about = {signature.split()[0]: words for signature, words in SIGNATURES.items()}
    for name, (add, usage, description, epilog, takes_script) in _COMMANDS.items():
        layout = argparse.RawDescriptionHelpFormatter if epilog is EPILOG else argparse.HelpFormatter
        parser = commands.add_parser(
            name, formatter_class=layout, usage=usage, description=description, epilog=epilog, help=about[name]
        )
        parser.takes_script = takes_script
        add(parser)
    return root


def parsers_of(root: argparse.ArgumentParser) -> Mapping[str, Parser]:
    """Return the parser of every command."""
    (commands,) = (action for action in root._actions if isinstance(action, argparse._SubParsersAction))
    return commands.choices


def _add_tune(parser: Parser) -> None:
    _add(parser.add_argument_group("your code"), "model", "dataset")
    run = ("device", "budget", "trials", "headroom", "max_memory", "baseline", "storage", "sampler")
    _add(parser.add_argument_group("the run"), *run)
    knobs = (*KNOBS, "objective", "global_batch_size", "ranks", "oversubscribe_ranks", "explore")
    _add(parser.add_argument_group("settings that may vary"), *knobs)
    _add_output(parser)
    parser._option_string_actions["--model"].required = True
    parser.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version and exit")


def _add_run(parser: Parser) -> None:
    run = ("budget", "trials", "headroom", "max_memory", "storage", "sampler", "loop", *ALLOWING, "dry_run")
    _add(parser.add_argument_group("the run"), *run)
    group = parser.add_argument_group("settings that may vary; the batch size only where it is asked for")
    _add(group, *KNOBS, "objective", "ranks", "oversubscribe_ranks")
    _add_output(parser).add_argument(
        "--patch",
        nargs="?",
        const="autotune.patch",
        metavar="=FILE",
        help="also write the answer as a patch of the script, for git apply (default: autotune.patch)",
    )


def _add_apply(parser: Parser) -> None:
    words = "end, rather than train without the answer, where it finds no DataLoader"
    parser.add_argument("--strict", action="store_true", help=words)
    parser.add_argument("file", metavar="FILE", help="config file that run wrote, such as autotune.yaml")


def _add_check(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="config file that autotune wrote, such as autotune.yaml")
    _add(parser.add_argument_group("your code, where it is no script"), "model", "dataset")
    _add(parser.add_argument_group("the run"), "device", "oversubscribe_ranks", "budget", *ALLOWING)
    parser.set_defaults(budget="1m", ranks=None)
    _add(parser.add_argument_group("output"), "json", "quiet")


def _add_compare(parser: Parser) -> None:
    code = parser.add_argument_group("your code, where it is no script")
    words = "the functions of both sides, such as before:build after:build"
    code.add_argument("--model", nargs=2, metavar=("MODEL", "MODEL"), help=words)
    _add(code, "dataset", "baseline")
    own = ("base", "margin", "python", "samples_per_step", "loop", *ALLOWING)
    _add(parser.add_argument_group("the run"), "device", "ranks", "oversubscribe_ranks", "budget", *own)
    parser.set_defaults(budget="2m")
    _add(parser.add_argument_group("output"), "json", "quiet")


def _add_diagnose(parser: Parser) -> None:
    _add(parser.add_argument_group("your code, where it is no script"), "model", "dataset")
    group = parser.add_argument_group("the run")
    _add(group, "device", "ranks", "oversubscribe_ranks", "loop", "try", *ALLOWING)
    _add(group.add_mutually_exclusive_group(), "baseline", "config")
    _add(parser.add_argument_group("output"), "json", "quiet")


def _add_export(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="config file that autotune wrote, such as autotune.yaml")
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="the script to patch, such as train.py")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="the module to patch, in place of SCRIPT")
    parser.add_argument("--to", metavar="TOOL", required=True, choices=EXPORTS, help=f"one of {', '.join(EXPORTS)}")
    parser.add_argument(
        "--objective", metavar="NAME", help="the answer for same-batch or samples, not the one at the top of the file"
    )
    parser.add_argument("--output", metavar="FILE", help="write this file instead of standard output")
    _add_force(parser)


def _add_report(parser: Parser) -> None:
    parser.add_argument("source", metavar="STUDY", help="file or URL of the study, such as autotune.study")
    parser.add_argument(
        "--output",
        metavar="FILE",
        default="report.html",
        help="file to write: .html for the page, .csv or .parquet for the trials (default: %(default)s)",
    )
    words = "the study to show, if there are several (default: the newest)"
    parser.add_argument("--study", metavar="NAME", help=words)
    _add_force(parser)


def _add_completion(parser: Parser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


class _Command(NamedTuple):
    add: Callable[[Parser], None]
    usage: str
    description: str
    epilog: str
    takes_script: bool = False


_COMMANDS = {
    "tune": _Command(
        _add_tune,
        "python -m autotune tune --model MODEL [--dataset DATASET] [flags]\n"
        "       python -m autotune --model MODEL [--dataset DATASET] [flags]",
        "Tune the model and dataset that a function of yours returns.",
        EPILOG,
    ),
    "run": _Command(
        _add_run,
        "python -m autotune run [flags] SCRIPT [arguments of the script]",
        "Tune a training script as it is: its own loop is the training step.",
        f"{AS_MODULE}. exit codes: as for tuning",
        takes_script=True,
    ),
    "apply": _Command(
        _add_apply,
        "python -m autotune apply [--strict] FILE SCRIPT [arguments of the script]",
        "Train a script as it is, with the settings that run has found for it.",
        AS_MODULE,
        takes_script=True,
    ),
    "check": _Command(
        _add_check,
        "python -m autotune check [flags] FILE SCRIPT [arguments of the script]\n"
        "       python -m autotune check FILE --model MODEL [--dataset DATASET] [flags]",
        "Measure a config file's configuration beside its baseline again: does its gain hold here?",
        f"{AS_MODULE}. exit codes: 0 the gain holds; 1 it does not; 11 undecided; others as for tuning",
        takes_script=True,
    ),
    "compare": _Command(
        _add_compare,
        "python -m autotune compare [flags] 'SCRIPT [arguments]' 'SCRIPT [arguments]'\n"
        "       python -m autotune compare --base REV [flags] SCRIPT [arguments]\n"
        "       python -m autotune compare --model MODEL MODEL [flags]",
        "Measure two states of a training script by turns, and tell whether the second is slower.",
        f"{AS_MODULE}. exit codes: 0 the second is not slower; 1 it is; 11 undecided; others as for tuning",
        takes_script=True,
    ),
    "diagnose": _Command(
        _add_diagnose,
        "python -m autotune diagnose [flags] SCRIPT [arguments of the script]\n"
        "       python -m autotune diagnose --model MODEL [--dataset DATASET] [flags]",
        "Measure one configuration for half a minute and name its limit, the evidence and the remedy.",
        f"{AS_MODULE}. exit codes: as for tuning",
        takes_script=True,
    ),
    "export": _Command(
        _add_export,
        "python -m autotune export FILE --to TOOL [--objective NAME] [--output FILE] [--force]\n"
        "       python -m autotune export FILE --to patch [--output FILE] [--force] SCRIPT",
        "Convert a config file for another tool, and name the settings that the tool cannot take.",
        "exit codes: 0 done; others as for tuning",
    ),
    "report": _Command(
        _add_report,
        "python -m autotune report STUDY [--output FILE] [--force] [--study NAME]",
        "Draw a study, also a running one, as an HTML report that needs no network, or write its trials.",
        "exit codes: 0 done; others as for tuning",
    ),
    "completion": _Command(
        _add_completion,
        "python -m autotune completion SHELL",
        "Print a script that has a shell complete autotune's commands, flags and files.",
        'bash: eval "$(autotune completion bash)"; zsh and fish: write it where they read completions',
    ),
}


def _add_output(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    output = parser.add_argument_group("output")
    _add(output, "output", "report", "force", "exit_verdict", "quiet")
    _add(output.add_mutually_exclusive_group(), "json", "snippet")
    return output


def _add(group: argparse._ActionsContainer, *names: str) -> None:
    for option in map(OPTIONS.__getitem__, names):
        if option.placeholder is None:
            group.add_argument(option.flag, action="store_true", help=option.help)
        else:
            read: Callable[[str], object] = _whole_from_one if option.placeholder == "N" else str
            group.add_argument(
                option.flag, type=read, default=option.default, metavar=option.placeholder, help=option.help
            )


def _add_force(group: argparse._ActionsContainer) -> None:
    group.add_argument("--force", action="store_true", help="replace any file but those that are read")


class _Version(argparse.Action):
    """Prints the version; reading it takes time that only this flag should spend."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> NoReturn:
        sys.stdout.write(f"autotune {installed_version()}\n")
        parser.exit()


def installed_version() -> str:
    """Return the installed version; ``unknown`` where the package runs from its source."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch-autotune")
    except PackageNotFoundError:
        return "unknown"


def _whole_from_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}; allowed: whole numbers from 1, such as 20")
    return int(text)
