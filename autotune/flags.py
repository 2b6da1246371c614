"""The flags of the command line: what they are called, what they take, and how their text is read."""

from __future__ import annotations

import argparse
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.errors import UsageError
from autotune.step_options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

KNOB_FLAGS = (
    "--batch-size",
    "--num-workers",
    "--prefetch-factor",
    "--pin-memory",
    "--persistent-workers",
    "--amp",
    "--threads",
)
"""The flags that say what may vary, whose text ``tune`` reads."""

SAMPLERS = ("predictive", "tpe", "gp", "random")
"""The samplers that have a name."""

FLAGS: dict[str, tuple[str, str | None, str]] = {
    "--dataset": (
        "DATASET",
        None,
        "function that returns your dataset, such as mymod:data; needed where --model returns a model alone",
    ),
    "--device": ("DEVICE", "auto", "auto, cpu, or an accelerator such as cuda:0 (default: %(default)s)"),
    "--budget": (
        "TIME",
        None,
        "time to spend, such as 90s, 3m, 1h, 1m30s; 30s at least (default: 2m to 10m for tuning, 1m for check)",
    ),
    "--trials": ("N", None, "most trials to run, such as 20"),
    "--sampler": (
        "NAME",
        "predictive",
        f"sampler of the Optuna study: {', '.join(SAMPLERS)}, or a function that returns one (default: %(default)s)",
    ),
    "--headroom": ("SHARE", "10%", "memory to leave free, such as 10%% or 0.1 (default: 10%%)"),
    "--max-memory": ("SIZE", None, "most memory that training may take, such as 12GiB"),
    "--baseline": (
        "K=V,..",
        None,
        (
            "the settings that you train with today, such as batch_size=64,num_workers=2 (default: batch_size=32, "
            "no workers, amp=off, torch's own threads)"
        ),
    ),
    "--storage": (
        "FILE|URL",
        None,
        (
            "keep the study there and always continue it, such as my.study; tuners on several hosts share a server, "
            "such as postgresql://user@host/database (default: beside the output)"
        ),
    ),
    "--config": ("FILE", None, "diagnose the configuration of a config file instead, such as autotune.yaml"),
    "--batch-size": ("SIZES", None, "samples per step, such as 32..512"),
    "--num-workers": ("COUNTS", None, "DataLoader workers, such as 0..8; 0 loads in the training process"),
    "--prefetch-factor": ("COUNTS", None, "batches requested ahead per worker, such as 2,4"),
    "--pin-memory": ("CHOICES", None, "copy batches into page-locked memory, such as true or true,false"),
    "--persistent-workers": ("CHOICES", None, "keep workers alive between epochs, such as true or true,false"),
    "--amp": ("MODES", None, "automatic mixed precision: off, bf16, fp16, such as off,bf16"),
    "--threads": ("COUNTS", None, "torch's threads inside one operator, such as 1,2,4"),
    "--global-batch-size": ("N", None, "samples of an optimizer step, such as 256: smaller batches are accumulated"),
    "--objective": (
        "NAME",
        None,
        (
            "samples: the most samples a second with any batch; same-batch: with the samples of an optimizer step as "
            "they are (default: same-batch without --batch-size, or the one that is sure to reach the same loss sooner)"
        ),
    ),
    "--ranks": (
        "N",
        None,
        "processes that train together on this host, as with torchrun, such as 2; other settings count for each",
    ),
    "--loop": (
        "FILE:LINE",
        None,
        "the loop to measure, or its DataLoader, such as train.py:40 (default: the first that trains)",
    ),
    "--explore": (
        "OPTIONS",
        None,
        f"further options of the step to try, such as channels_last,compile: all, or some of {', '.join(OPTIONS)}",
    ),
    "--report": (
        "FILE",
        None,
        "also write a report, such as report.html; its charts need pip install 'torch-autotune[report]'",
    ),
    "--trace": ("FILE", None, "also write torch's profile of a few steps, such as trace.json"),
    "--study": ("NAME", None, "the study to show, if there are several (default: the newest)"),
}
"""The flags that take a value: placeholder, which is ``N`` for a whole number, default, help."""

SWITCHES = {
    "--oversubscribe-ranks": "allow more --ranks than this host has CPUs and GPUs",
    "--force": "replace any file but the script and the study, also a proven answer by an undecided one",
    "--strict": "end, rather than train without the answer, where it finds no DataLoader",
    "--allow-writes": "let the script write checkpoints and logs each time that it is measured",
    "--allow-uploads": "let the script send to trackers and model hubs each time that it is measured",
    "--dry-run": "start the script once, show which DataLoader trains and what would be varied",
    "--exit-verdict": "exit with 0 for faster, 10 for no gain, 11 for undecided",
    "--snippet": "print Python lines that use the answer, not its settings",
    "--json": "print the result as one JSON object",
    "--quiet": "print nothing but errors to stderr",
}
"""The flags that take none, and their help."""
ALLOWING = ("--allow-writes", "--allow-uploads")
"""Flags that let a script do in a measurement what it does in training."""
OF_SCRIPTS = ("--loop", *ALLOWING)
"""Flags that do not go with a function."""

EXPORTS = ("lightning", "transformers", "accelerate", "deepspeed", "torchrun", "shell", "python", "patch")
"""What ``export`` knows: a patch of a script, and the tools of ``autotune.exports.TARGETS``."""

OF_FUNCTIONS = {
    "--dataset": "a script has its own data: leave it out",
    "--device": "a script chooses its own device: leave it out",
    "--baseline": "a script has settings of its own: leave it out, or pass --config",
}
"""The flags that do not go with a script, and what to do."""

DESCRIPTION = """\
Find the fastest safe way to train your PyTorch model on your dataset on this machine.

commands:
  run SCRIPT ...             tune a training script as it is; SCRIPT alone does the same; -m MODULE is one, too
  --model MODEL              tune the model and dataset that a function returns, with the flags below
  apply FILE SCRIPT ...      train a script as it is, with the answer
  check FILE SCRIPT ...      measure a config file's gain again; of a function with --model MODEL
  diagnose SCRIPT ...        find out why training is slow, without a search; of a function with --model MODEL
  export FILE --to TOOL      convert a config file for another tool, or into a patch of the script
  report STUDY               draw a study as an HTML report, or write its trials as CSV or Parquet
  help COMMAND               show the flags of a command
"""

EPILOG = """\
examples:
  python -m autotune run --budget 5m train.py --epochs 90
  python -m autotune --model autotune.demo:build --budget 3m
  python -m autotune --model train.py:build --baseline batch_size=64,num_workers=4 --batch-size 64..1024
  python -m autotune --model mymod:net --dataset mymod:data --amp off,bf16 --num-workers 0,2,4,8 --json

values of settings:
  64         a value fixes a setting
  32..512    a range bounds it, both ends included
  0,2,4      a list gives its choices
  Without a flag, autotune searches the range that suits this machine.

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


RUN_USAGE = "python -m autotune run [flags] SCRIPT [arguments of the script]"
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


class _Parser(argparse.ArgumentParser):
    """An argument parser of a command whose errors are ours: one line, exit code from the class."""

    def __init__(self, command: str, **texts: Any) -> None:
        super().__init__(prog=f"autotune {command}".rstrip(), allow_abbrev=False, **texts)

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse arguments: unknown flags are reported before missing ones."""
        for name in (text.partition("=")[0] for text in args if text.startswith("--")):
            if name != "--" and name not in self._option_string_actions:
                self.error(f"unknown flag {name}{self._hint(name)}")
        parsed: argparse.Namespace = self.parse_intermixed_args(args, namespace)
        return parsed

    def _hint(self, name: str) -> str:
        return did_you_mean(name, self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see python -m {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; a test pins its flags."""
    parser = _Parser(
        "",
        usage=RUN_USAGE + "\n       python -m autotune --model MODEL [--dataset DATASET] [flags]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_workload_flags(parser)
    run = ("--device", "--budget", "--trials", "--headroom", "--max-memory", "--baseline", "--storage", "--sampler")
    _add(parser.add_argument_group("the run"), *run)
    knobs = (*KNOB_FLAGS, "--objective", "--global-batch-size", "--ranks", "--oversubscribe-ranks", "--explore")
    _add(parser.add_argument_group("settings that may vary"), *knobs)
    _add_output(parser)
    parser.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version and exit")
    return parser


class _ScriptParser(_Parser):
    """A parser of flags up to a script's name: all from there on is the script's, ``script`` in what is parsed.

    Where it knows ``--model``, a function may take the script's place.
    """

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse the flags before the script."""
        place, files = 0, len(self._get_positional_actions())
        while place < len(args) and ((is_flag := args[place].startswith("-") and args[place] != "-m") or files):
            action = self._option_string_actions.get(args[place])
            files -= not is_flag
            place += 2 if action is not None and action.nargs is None else 1
            if args[place - 1] == "--":
                break
        parsed = super().parse_args(args[: place - (args[place - 1 : place] == ["--"])], namespace)
        parsed.script = tuple(args[place:])
        if getattr(parsed, "patch", None) and (first := "".join(parsed.script[:1])).endswith(PATCHES):
            self.error(f"--patch {first}: write --patch={first}")
        has_model, way = "model" in parsed, ""
        if has_model:
            way = ", or --model with the function that returns your model"
            if parsed.model is not None and parsed.script:
                self.error(f"--model {parsed.model}: a function is measured without {parsed.script[0]}; leave out one")
            if parsed.script:
                self._refuse_of_functions(parsed)
            elif flag := next((each for each in OF_SCRIPTS if getattr(parsed, each[2:].replace("-", "_"), None)), None):
                self.error(f"{flag}: is for a script; leave it out")
        if parsed.script in ((), ("-m",)) and not (has_model and parsed.model):
            self.error(f"name the script that you train with, such as train.py{way}")
        return parsed

    def _refuse_of_functions(self, parsed: argparse.Namespace) -> None:
        """Refuse flags of functions beside a script, which decides that itself."""
        for name, way in OF_FUNCTIONS.items():
            key = name[2:].replace("-", "_")
            if getattr(parsed, key, None) != self.get_default(key):
                self.error(f"{name}: is for a function; {way}")

    def _hint(self, name: str) -> str:
        if name == "--model":
            return (
                f": {self.prog} takes a script, such as train.py; a function is tuned with python -m autotune --model"
            )
        return f"{super()._hint(name)}; flags of the script go after its name"


def build_run_parser() -> argparse.ArgumentParser:
    """Return the parser of ``run``."""
    parser = _ScriptParser(
        "run",
        usage=RUN_USAGE,
        description="Tune a training script as it is: its own loop is the training step.",
        epilog=f"{AS_MODULE}. exit codes: as for tuning",
    )
    _add(
        parser.add_argument_group("the run"),
        *("--budget", "--trials", "--headroom", "--max-memory", "--storage", "--sampler"),
        *("--loop", *ALLOWING, "--dry-run"),
    )
    group = parser.add_argument_group("settings that may vary; the batch size only where it is asked for")
    _add(group, *KNOB_FLAGS, "--objective", "--ranks", "--oversubscribe-ranks")
    output = _add_output(parser)
    output.add_argument(
        "--patch",
        nargs="?",
        const="autotune.patch",
        metavar="=FILE",
        help="also write the answer as a patch of the script, for git apply (default: autotune.patch)",
    )
    return parser


def build_apply_parser() -> argparse.ArgumentParser:
    """Return the parser of ``apply``."""
    parser = _ScriptParser(
        "apply",
        usage="python -m autotune apply [--strict] FILE SCRIPT [arguments of the script]",
        description="Train a script as it is, with the settings that run has found for it.",
        epilog=AS_MODULE,
    )
    _add(parser, "--strict")
    parser.add_argument("file", metavar="FILE", help="config file that run wrote, such as autotune.yaml")
    return parser


def build_check_parser() -> argparse.ArgumentParser:
    """Return the parser of ``check``."""
    parser = _ScriptParser(
        "check",
        usage="python -m autotune check [flags] FILE SCRIPT [arguments of the script]\n"
        "       python -m autotune check FILE --model MODEL [--dataset DATASET] [flags]",
        description="Measure a config file's configuration beside its baseline again: does its gain hold here?",
        epilog=f"{AS_MODULE}. exit codes: 0 the gain holds; 1 it does not; 11 undecided; others as for tuning",
    )
    parser.add_argument("file", metavar="FILE", help="config file that autotune wrote, such as autotune.yaml")
    _add_workload_flags(parser, is_required=False)
    _add(parser.add_argument_group("the run"), "--device", "--oversubscribe-ranks", "--budget", *ALLOWING)
    parser.set_defaults(budget="1m", ranks=None)
    _add(parser.add_argument_group("output"), "--json", "--quiet")
    return parser


def build_export_parser() -> argparse.ArgumentParser:
    """Return the parser of ``export``."""
    parser = _Parser(
        "export",
        usage="python -m autotune export FILE --to TOOL [--objective NAME] [--output FILE] [--force]\n"
        "       python -m autotune export FILE --to patch [--output FILE] [--force] SCRIPT",
        description="Convert a config file for another tool, and name the settings that the tool cannot take.",
        epilog="exit codes: 0 done; others as for tuning",
    )
    parser.add_argument("file", metavar="FILE", help="config file that autotune wrote, such as autotune.yaml")
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="the script to patch, such as train.py")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="the module to patch, in place of SCRIPT")
    parser.add_argument("--to", metavar="TOOL", required=True, choices=EXPORTS, help=f"one of {', '.join(EXPORTS)}")
    parser.add_argument(
        "--objective", metavar="NAME", help="the answer for same-batch or samples, not the one at the top of the file"
    )
    parser.add_argument("--output", metavar="FILE", help="write this file instead of standard output")
    _add_force(parser)
    return parser


def build_report_parser() -> argparse.ArgumentParser:
    """Return the parser of ``report``."""
    parser = _Parser(
        "report",
        usage="python -m autotune report STUDY [--output FILE] [--force] [--study NAME]",
        description="Draw a study, also a running one, as an HTML report that needs no network, or write its trials.",
        epilog="exit codes: 0 done; others as for tuning",
    )
    parser.add_argument("source", metavar="STUDY", help="file or URL of the study, such as autotune.study")
    parser.add_argument(
        "--output",
        metavar="FILE",
        default="report.html",
        help="file to write: .html for the page, .csv or .parquet for the trials (default: %(default)s)",
    )
    _add(parser, "--study")
    _add_force(parser)
    return parser


def build_diagnose_parser() -> argparse.ArgumentParser:
    """Return the parser of ``diagnose``."""
    parser = _ScriptParser(
        "diagnose",
        usage="python -m autotune diagnose [flags] SCRIPT [arguments of the script]\n"
        "       python -m autotune diagnose --model MODEL [--dataset DATASET] [flags]",
        description="Measure one configuration for half a minute and name its limit, the evidence and the remedy.",
        epilog=f"{AS_MODULE}. exit codes: as for tuning",
    )
    _add_workload_flags(parser, is_required=False)
    group = parser.add_argument_group("the run")
    _add(group, "--device", "--ranks", "--oversubscribe-ranks", "--loop", *ALLOWING)
    _add(group.add_mutually_exclusive_group(), "--baseline", "--config")
    output = parser.add_argument_group("output")
    _add(output, "--trace")
    _add_force(output)
    _add(output, "--json", "--quiet")
    return parser


def _add_workload_flags(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    group = parser.add_argument_group("your code" if is_required else "your code, where it is no script")
    group.add_argument(
        "--model",
        required=is_required,
        metavar="MODEL",
        help="function that returns (model, dataset), a model, or an autotune.Workload, "
        "such as mymod:build or path/to/train.py:build",
    )
    _add(group, "--dataset")


def _add_output(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        default="autotune.yaml",
        metavar="FILE",
        help="config file to write, .yaml or .json, such as tuned.json (default: %(default)s)",
    )
    _add(output, "--report", "--force", "--exit-verdict", "--quiet")
    _add(output.add_mutually_exclusive_group(), "--json", "--snippet")
    return output


def _add(group: argparse._ActionsContainer, *names: str) -> None:
    for name in names:
        if name in SWITCHES:
            group.add_argument(name, action="store_true", help=SWITCHES[name])
            continue
        placeholder, default, text = FLAGS[name]
        read: Callable[[str], object] = _whole_from_one if placeholder == "N" else str
        group.add_argument(name, type=read, default=default, metavar=placeholder, help=text)


def _add_force(group: argparse._ActionsContainer) -> None:
    """Add ``--force`` to a command that reads an answer or measures without one."""
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


def parse_baseline(text: str) -> dict[str, Any]:
    """Return the settings of ``--baseline``, such as ``batch_size=64,amp=off``, with their types.

    Raises ``UsageError`` naming the key or value that is wrong, and what is allowed.
    """
    settings: dict[str, Any] = {}
    for item in text.split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        if name not in _BASELINE_KEYS:
            raise UsageError(f"--baseline: unknown key {name!r}; allowed: {', '.join(_BASELINE_KEYS)}")
        if name in settings:
            raise UsageError(f"--baseline: {name} is given twice")
        allowed, read = _BASELINE_KEYS[name]
        try:
            settings[name] = read(value)
        except (KeyError, ValueError):
            raise UsageError(f"--baseline: {name} is {value!r}; allowed: {allowed}") from None
    return settings


def _whole_from_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text!r}; allowed: whole numbers from 1, such as 20")
    return int(text)


def _read_switch(text: str) -> bool:
    return {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}[text.lower()]


_WHOLE = ("a whole number, such as 4", int)
_SWITCH = ("true, false, on, off, yes or no", _read_switch)
_BASELINE_KEYS: dict[str, tuple[str, Callable[[str], object]]] = {
    "batch_size": _WHOLE,
    "num_workers": _WHOLE,
    "prefetch_factor": _WHOLE,
    "pin_memory": _SWITCH,
    "persistent_workers": _SWITCH,
    "amp": ("off, bf16 or fp16", lambda text: {"off": "off", "bf16": "bf16", "fp16": "fp16"}[text.lower()]),
    "threads": _WHOLE,
}
"""What ``--baseline`` takes: key, what is allowed, how its text is read."""
