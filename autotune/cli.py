"""The command line: flags, exit codes, and the only place that prints.

stdout carries the product (the lines for a training script, or JSON); everything else goes to stderr. Torch,
optuna and rich are imported only once the flags are known to be right.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.duration import parse_duration
from autotune.errors import AutotuneError, ConfigFileError, InterruptedRunError, UserCodeError
from autotune.flags import KNOBS, build_check_parser, build_diagnose_parser, build_parser, parse_baseline

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from rich.console import Console

    from autotune.records import Progress, Result

__all__ = ["main"]

BROKEN_PROMISE = 1
"""Exit code of ``check`` where a config file's promise does not hold any more."""
SUFFIXES = (".yaml", ".yml", ".json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the process's exit code; ``argv`` is ``sys.argv[1:]`` by default."""
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        if arguments[:1] == ["check"]:
            return _check(build_check_parser().parse_args(arguments[1:]))
        if arguments[:1] == ["diagnose"]:
            return _diagnose(build_diagnose_parser().parse_args(arguments[1:]))
        return _run(build_parser().parse_args(arguments))
    except AutotuneError as error:
        if isinstance(error, UserCodeError) and error.user_traceback:
            print(error.user_traceback.rstrip(), file=sys.stderr)
        print(f"autotune: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return InterruptedRunError.exit_code


def _run(flags: argparse.Namespace) -> int:
    arguments = _tune_arguments(flags)
    output = _writable_config_path(flags.output)
    with _quiet_warnings(flags.quiet):
        result = _tune(arguments, flags.quiet)
    _deliver(result, output, flags)
    return InterruptedRunError.exit_code if "interrupted" in result.stop_reason else 0


def _check(flags: argparse.Namespace) -> int:
    from autotune.checking import check
    from autotune.report.terminal import check_text

    with _progress(flags.quiet) as on_progress:
        found = check(
            flags.file,
            flags.model,
            flags.dataset,
            device=flags.device,
            budget=parse_duration(flags.budget),
            on_progress=on_progress,
        )
    print(json.dumps(asdict(found), indent=2) if flags.json else check_text(found, flags.file))
    return BROKEN_PROMISE if found.verdict == "broken" else 0


def _diagnose(flags: argparse.Namespace) -> int:
    from autotune.config import load_config

    given = None if flags.baseline is None else parse_baseline(flags.baseline)
    config = load_config(flags.config) if flags.config else given
    if flags.trace:
        _require_writable("--trace", Path(flags.trace))
    from autotune.diagnosing import diagnose
    from autotune.report.diagnosis import diagnosis_report

    with _progress(flags.quiet) as on_progress:
        found = diagnose(
            flags.model, config, flags.dataset, device=flags.device, trace=flags.trace, on_progress=on_progress
        )
    if flags.json:
        content = {"bottleneck": found.bottleneck, **asdict(found), "config": found.config.to_document()}
        print(json.dumps(_without_nan(content), indent=2, allow_nan=False))
    else:
        _stdout_console().print(diagnosis_report(found))
    return 0


def _tune_arguments(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``tune``; raises ``UsageError`` for what can be known to be wrong by now."""
    run = ("dataset", "device", "trials", "storage", "headroom", "max_memory", "global_batch_size", "explore")
    names = (*run, *(flag[2:].replace("-", "_") for flag in KNOBS))
    arguments = {name: getattr(flags, name) for name in names}
    arguments["workload"] = flags.model
    arguments["budget"] = parse_duration(flags.budget)
    arguments["baseline"] = None if flags.baseline is None else parse_baseline(flags.baseline)
    return arguments


def _tune(arguments: Mapping[str, Any], quiet: bool) -> Result:
    from autotune.tuning import tune

    with _progress(quiet) as on_progress:
        return tune(**arguments, on_progress=on_progress)


def _progress(quiet: bool) -> AbstractContextManager[Callable[[Progress], None] | None]:
    if quiet:
        return nullcontext()
    from autotune.progress import LiveProgress, PlainProgress

    console = _stderr_console()
    moves = sys.stderr.isatty() and not console.is_dumb_terminal
    return LiveProgress(console) if moves else PlainProgress(console)


def _deliver(result: Result, output: Path, flags: argparse.Namespace) -> None:
    """Write and show a result; it is shown even where the file cannot be written after all."""
    from autotune.report.terminal import snippet, summary

    written = False
    try:
        result.config.save(output)
        written = True
    finally:
        if not flags.quiet:
            _stderr_console().print(summary(result, str(output) if written else None))
        print(_json_text(result) if flags.json else snippet(result, str(output)), end="")


def _json_text(result: Result) -> str:
    """Return a result as one JSON object; ``config`` is the config file's content."""
    from autotune.records import trial_row

    names = ("verdict", "speedup", "speedup_ci95", "rounds", "stop_reason", "remaining_gain", "notes", "seconds")
    document = result.config.to_document()
    content = {
        "config": document,
        "measured": document.get("measured"),
        **{name: getattr(result, name) for name in names},
        "tried": [asdict(each) for each in result.tried],
        "control": asdict(result.control) if result.control else None,
        "trials": [trial_row(trial) for trial in result.history],
    }
    return json.dumps(_without_nan(content), indent=2, allow_nan=False) + "\n"


def _without_nan(value: Any) -> Any:
    """Return the value with null for what JSON cannot say: a loss, say, that is not a number."""
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _stderr_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def _stdout_console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _quiet_warnings(quiet: bool) -> AbstractContextManager[object]:
    return warnings.catch_warnings(action="ignore") if quiet else nullcontext()


def _writable_config_path(text: str) -> Path:
    """Return the path of the config file, known to be writable before anything is measured.

    Raises ``ConfigFileError`` otherwise.
    """
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise ConfigFileError(f"--output {path}: a config file ends in one of {', '.join(SUFFIXES)}")
    _require_writable("--output", path)
    return path


def _require_writable(flag: str, path: Path) -> None:
    """Raise ``ConfigFileError`` where a file cannot be written."""
    if path.is_dir():
        raise ConfigFileError(f"{flag} {path}: is a directory")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            return
    except OSError as error:
        raise ConfigFileError(f"{flag} {path}: cannot be written: {error.strerror}") from None
