"""The command line: its flags, exit codes and output.

stdout carries the answer (settings as YAML, Python lines, or JSON); everything else goes to stderr. Torch,
optuna and rich are imported only once the flags are known to be right.
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import shlex
import sys
import warnings
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.configfile import CONFIG
from autotune.errors import (
    AutotuneError,
    ConfigFileError,
    InterruptedRunError,
    NothingFeasibleError,
    UsageError,
    UserCodeError,
)
from autotune.flags import (
    ALLOWING,
    BEFORE,
    OPTIONS,
    build_parser,
    did_you_mean,
    parsers_of,
)
from autotune.limits import parse_duration, require_budget
from autotune.machine.launcher import Launch
from autotune.machine.signals import interruptible, shielded
from autotune.output import BARE_EXPORT, EXPORT, REPORT, STUDY, Output
from autotune.report.text import printable
from autotune.result import Verdict, parse_verdict, verdict_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from autotune.config import Config
    from autotune.exports.patch import Patch
    from autotune.messages import Progress
    from autotune.report.result import Result
    from autotune.result import StudyRecord
    from autotune.storage.open import StudyStorage
    from autotune.workload import Script

CHECK_CODES = {"holds": 0, "broken": 1, "undecided": 11}
"""Exit codes of ``check``."""
DIFFERENCE_CODES = {"slower": 1, "undecided": 11}
"""Exit codes of ``compare``; 0 for all others."""
VERDICT_CODES = {Verdict.FASTER: 0, Verdict.NO_GAIN: 10, Verdict.UNDECIDED: 11}
"""Exit codes of tuning with ``--exit-verdict``."""
CLOSED = (OSError, SystemExit)
"""What writing to a terminal or pipe raises that was closed; rich wants to exit then."""
BESIDE = ("measured", "made_on", "alternatives")
"""Sections of a config file beside the settings."""
SUFFIXES = (".yaml", ".yml", ".json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the process's exit code; ``argv`` is ``sys.argv[1:]`` by default."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_of_each = bool({"apply", "export", "report"}.intersection(arguments[:1]))  # ranks of a launcher run these alone
    launch = None if is_of_each else Launch.of_environment()
    return launch.run(lambda: _main(arguments, launch)) if launch else _main(arguments)


def _main(arguments: list[str], launch: Launch | None = None) -> int:
    try:
        with interruptible():
            root = build_parser()
            if not arguments:
                _say(root.format_help().rstrip())
                return UsageError.exit_code
            name = _command(arguments)
            if name is None:
                root.parse_args(arguments)
            flags = parsers_of(root)[str(name)].parse_args(arguments)
            if flags.taken and not flags.quiet:
                _say(f"From pyproject.toml: {', '.join(f'{key} = {value}' for key, value in flags.taken.items())}")
            if launch and "ranks" in flags:  # it measures
                flags.ranks = launch.ranks_for(str(name), flags.ranks)
            return COMMANDS[str(name)](flags)
    except AutotuneError as error:
        _show_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return InterruptedRunError.exit_code


def _command(arguments: list[str]) -> str | None:
    """Return the name of the command, and take it from the arguments; a script alone is tuned.

    ``None`` is the help or the version of autotune itself.
    """
    first = arguments[0]
    if first == "-m" or first.endswith(".py"):
        return "run"
    if first in ("-h", "--help", "-V", "--version"):
        return None
    has_script = any(text.endswith(".py") for text in arguments)
    tunes = "run" if has_script and not any(text.startswith("--model") for text in arguments) else "tune"
    if first.startswith("-"):
        return tunes
    del arguments[0]
    if first == "tune":
        return tunes
    if first == "help":
        name = _command(arguments) if arguments else None
        arguments[:] = ["--help"]
        return name
    if first not in COMMANDS:
        meant = did_you_mean(first, COMMANDS)
        raise UsageError(f"unknown command {reprlib.repr(first)}{meant}; see python -m autotune --help")
    return first


def _run(flags: argparse.Namespace) -> int:
    return _tune(flags, _tune_arguments(flags, flags.model))


def _run_script(flags: argparse.Namespace) -> int:
    script = _workload(flags)
    for flag in (each for each in BEFORE if each in flags.script):
        _say(f"{flag} after {flags.script[0]} goes to the script: autotune's own flags go before its name")
    if flags.dry_run:
        return _show_script(script, flags.ranks or 1, flags.oversubscribe_ranks)
    return _tune(flags, _tune_arguments(flags, script))


def _completion(flags: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise UsageError("completion needs shtab: pip install 'torch-autotune[completion]'") from None
    root = build_parser()
    for action in (each for parser in parsers_of(root).values() for each in parser._actions):
        if "FILE" in str(action.metavar) or action.metavar in ("STUDY", "SCRIPT"):
            vars(action)["complete"] = shtab.FILE
    _print(shtab.complete(root, flags.shell) + "\n")
    return 0


def _workload(flags: argparse.Namespace) -> str | Script:
    """Return the script of a command line, or the reference of a function."""
    from autotune.workload import Script

    allowed = {name: getattr(flags, name) for name in ALLOWING}
    return Script.of(flags.script, getattr(flags, "loop", None), **allowed) if flags.script else str(flags.model)


def _show_script(script: str | Script, ranks: int, oversubscribe_ranks: bool) -> int:
    from autotune.config import Config
    from autotune.report.terminal import script_text
    from autotune.runner.local import ProcessRunner
    from autotune.workload import describe

    told = list[str]()
    with ProcessRunner(describe(script), on_wait=told.append, oversubscribe_ranks=oversubscribe_ranks) as runner:
        facts = runner.inspect(Config(ranks=ranks))
    assert runner.script is not None
    found = script_text(facts, runner.script.present, is_fixed=runner.script.is_batch_fixed)
    _print("\n".join((found, *told)) + "\n")
    return 0


def _apply(flags: argparse.Namespace) -> int:
    from autotune.apply import start

    start(flags.file, flags.script, strict=flags.strict)


def _tune(flags: argparse.Namespace, arguments: dict[str, Any]) -> int:
    output, report, patch = _outputs(flags, arguments["workload"])
    kept = _storage(flags, output)
    try:
        with _quiet_warnings(flags.quiet):
            from autotune.api import tune

            with _progress(flags.quiet) as on_progress:
                result = tune(**(arguments | {"storage": kept, "on_progress": on_progress}))
        output = _beside_what_is_proven(result, output)
        _deliver(result, output, kept, flags)
        if flags.storage is None and not result.interrupted:
            kept.finish()
        _write_beside(result, output, report, patch, flags)
        kept.close()
        if kept.failure and kept.failure not in result.notes:  # the storage was lost after the result was there
            _say(kept.failure)
        if result.interrupted:
            return InterruptedRunError.exit_code
        return VERDICT_CODES[result.verdict] if flags.exit_verdict else 0
    except (UserCodeError, NothingFeasibleError):
        if report and kept.failed_study:
            try:
                _write_report(kept.failed_study, report, flags.quiet)
            except AutotuneError as error:  # the error below matters more
                _show_error(error)
        raise
    except KeyboardInterrupt:
        is_kept = kept.is_kept
        kept.close()
        if kept.failure:
            _say(kept.failure)
        elif is_kept:
            _say(f"What was measured is kept in {kept.location}: the same command continues.")
        raise
    finally:
        kept.close()


def _storage(flags: argparse.Namespace, output: Output) -> StudyStorage:
    """Return the place of the study: the user's, or a file for this command beside the output."""
    local, is_file = output.path.with_suffix(".study"), "://" not in (flags.storage or "")
    flag, path = ("--storage", Path(flags.storage)) if flags.storage else ("--output: its study", local)
    if is_file:
        Output(flag=flag, path=path, kind=STUDY, force=None).require()
    from autotune.storage.open import StudyStorage

    if flags.storage:
        return StudyStorage(flags.storage, local=local)
    words = (os.getcwd(), *(getattr(flags, "script", ()) or (flags.model, flags.dataset)))
    command = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]  # arguments may hold secrets
    return StudyStorage(local, for_one_run=True, command=command)


def _show_error(error: AutotuneError) -> None:
    if isinstance(error, UserCodeError) and error.user_traceback:
        _say(error.user_traceback.rstrip())
    _say(f"autotune: error: {' '.join(str(error).split())}")


def _print(text: str) -> None:
    """Print to stdout, which whoever reads it may close when he has read enough."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at the end


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _place(flags: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(flags, name) for name in ("device", "ranks", "oversubscribe_ranks")}


def _check(flags: argparse.Namespace) -> int:
    workload = _workload(flags)
    from autotune.comparison import check
    from autotune.report.terminal import check_text

    with _progress(flags.quiet) as on_progress:
        place, budget = _place(flags), parse_duration(flags.budget)
        found = check(flags.file, workload, flags.dataset, **place, budget=budget, on_progress=on_progress)
    if flags.json:
        content, measured = asdict(found), found.config.measured or {}
        names = ("samples_per_second", "speedup", "speedup_ci95", "beginning_samples", "later_epochs")
        promise = {name: content.pop(name) for name in ("config", "baseline")} | {n: measured.get(n) for n in names}
        print(json.dumps({"promise": promise, **content}, indent=2))
    else:
        print(check_text(found, flags.file))
    return CHECK_CODES[found.verdict]


def _compare(flags: argparse.Namespace) -> int:
    given: list[Any] = flags.model or _sides(flags)
    from autotune.comparison import compare
    from autotune.encoding import to_json, without_nan
    from autotune.report.terminal import comparison_text

    names = ("base", "margin", "python", "baseline", "dataset", "samples_per_step", "budget")
    options: dict[str, Any] = _place(flags) | {name: getattr(flags, name) for name in names}
    with _progress(flags.quiet) as on_progress:
        found = compare(*given, **options, on_progress=on_progress)
    if flags.json:
        print(json.dumps(without_nan(to_json(found)), indent=2, allow_nan=False))
    else:
        _print(comparison_text(found) + "\n")
    return DIFFERENCE_CODES.get(found.verdict, 0)


def _sides(flags: argparse.Namespace) -> list[Script]:
    """Return the scripts of a comparison, each a word of the command line; with ``--base`` one may be all words."""
    from autotune.workload import Script

    sides = [shlex.split(word) for word in flags.script]
    if flags.base and len(sides) > 1:
        sides = [list(flags.script)]
    elif len(sides) != 2 - bool(flags.base):
        raise UsageError(
            "compare takes two scripts, as in compare 'train.py --epochs 9' 'train.py --epochs 9 --compile'"
        )
    allowed = {name: getattr(flags, name) for name in ALLOWING}
    return [Script.of(words, flags.loop, **allowed) for words in sides]


def _diagnose(flags: argparse.Namespace) -> int:
    from autotune.apply import read_answer
    from autotune.config import load_config

    workload = _workload(flags)
    config: Any = flags.baseline
    with _quiet_warnings(flags.quiet):
        if flags.config:
            config = read_answer(flags.config)[0] if flags.script else load_config(flags.config)
    from autotune.diagnostics import diagnose
    from autotune.encoding import without_nan
    from autotune.report.terminal import diagnosis_report, open_console

    with _progress(flags.quiet) as on_progress:
        options: dict[str, Any] = _place(flags) | {"remedies": getattr(flags, "try"), "on_progress": on_progress}
        found = diagnose(workload, config, flags.dataset, **options)
    if flags.json:
        content = {"bottleneck": found.bottleneck, **asdict(found), "config": found.config.to_document()}
        print(json.dumps(without_nan(content), indent=2, allow_nan=False))
    else:
        open_console(stderr=False).print(diagnosis_report(found))
    return 0


def _export(flags: argparse.Namespace) -> int:
    from autotune.config import load_config
    from autotune.exports import export
    from autotune.exports.target import remarks_on

    with _quiet_warnings(quiet=True):  # it may be meant for another machine
        config = load_config(flags.file, flags.objective)
    kept = {"the file that is read": Path(flags.file)}
    if loader := (config.made_on or {}).get("loader"):
        kept["the script of the answer"] = Path(str(loader).partition(":")[0])
    if flags.to == "patch":
        return _export_patch(config, flags, kept)
    found = export(config, flags.to)
    if flags.output is None:
        _print(found.text)
    else:
        kind = EXPORT if found.has_comments else BARE_EXPORT
        output = Output(flag="--output", path=Path(flags.output), kind=kind, force=flags.force, kept=kept)
        output.write(found.text)
    if not found.has_comments:
        for line in remarks_on(found.gaps, found.notes, flags.to):
            _say(line)
    return 0


def _export_patch(config: Config, flags: argparse.Namespace, kept: Mapping[str, Path]) -> int:
    from autotune.exports.patch import patch_of
    from autotune.workload import Script

    if flags.script is None and flags.module is None:
        raise UsageError("--to patch: name the script to patch, such as train.py")
    script = Script.of(("-m", flags.module) if flags.module else (flags.script,))
    patch = patch_of(config, script)
    if flags.output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(patch.text)
    else:
        kept = {**kept, **_code_files(script)}
        _write_patch(patch, Output(flag="--output", path=Path(flags.output), kind=EXPORT, force=flags.force, kept=kept))
    return 0


def _write_patch(patch: Patch, output: Output) -> None:
    changed = {f"{each.name}, which the patch changes": each for each in patch.files}
    output = replace(output, kept={**output.kept, **changed})
    if patch.files:
        output.write(patch.text)
        git, name = patch.git, shlex.quote(os.path.relpath(output.path, patch.folder))
        _say(f"Written: {output.path}; {git} {name} changes the script, {git} -R {name} changes it back.")
    for remark in patch.remarks:
        _say(f"Not in the patch: {remark}")
    if not patch.files and not patch.remarks:
        _say("Nothing to patch: the script has these settings.")


def _report(flags: argparse.Namespace) -> int:
    from autotune.report.table import TABLE, TABLES, save_trials
    from autotune.search.read import read_study

    path, kept = Path(flags.output), {"the study": _study_file(flags.source)}
    if path.suffix in TABLES:
        output = Output(flag="--output", path=path, kind=TABLE, force=flags.force, kept=kept)
        output.require()
    else:
        output = _page("--output", flags.output, flags.force, kept, f"; trials in {' or '.join(TABLES)}")
    study = read_study(flags.source, flags.study)
    output.require()
    if path.suffix in TABLES:
        save_trials(study.history, path)
    else:
        from autotune.report.html import save_report

        save_report(study, path)
    others = f" It also holds {', '.join(study.others)}: --study shows one of them." if study.others else ""
    _say(f"Written: {path}, of {study.name}.{others}")
    if path.suffix not in TABLES:
        _say_what_is_missing()
    return 0


def _tune_arguments(flags: argparse.Namespace, workload: str | Script) -> dict[str, Any]:
    named = (option for option in OPTIONS.values() if option.keyword and option.name in flags)
    given = {option.keyword: getattr(flags, option.name) for option in named}
    budget = None if flags.budget is None else require_budget(parse_duration(flags.budget))
    return given | {"workload": workload, "budget": budget}


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Show the progress, until its terminal or pipe is closed: the run goes on."""
    if quiet:
        yield None
        return
    from autotune.report.terminal import progress_display

    with progress_display(is_log=True) as show:
        assert show

        def show_where_it_is_seen(progress: Progress) -> None:
            with suppress(*CLOSED):
                show(progress)

        yield show_where_it_is_seen


def _write_report(study: StudyRecord, report: Output, quiet: bool) -> None:
    from autotune.report.html import save_report

    report.require()
    save_report(study, report.path)
    if not quiet:
        _say(f"Written: {report.path}")
        _say_what_is_missing()


def _write_beside(
    result: Result, output: Output, report: Output | None, patch: Output | None, flags: argparse.Namespace
) -> None:
    if report:
        from autotune.result import StudyRecord

        _write_report(StudyRecord.of(result, str(output.path)), report, flags.quiet)
    if patch:
        from autotune.exports.patch import patch_of
        from autotune.workload import Script

        _write_patch(patch_of(result.config, Script.of(flags.script)), patch)


def _say_what_is_missing() -> None:
    """Say how to get the charts of a page, where it has none."""
    from autotune.report.drawing import missing_for_charts

    if missing := missing_for_charts():
        _say(f"Note: {missing}")


def _deliver(result: Result, output: Output, kept: StudyStorage, flags: argparse.Namespace) -> None:
    """Write and show a result; it is shown even where the file cannot be written after all."""
    from autotune.report.terminal import ending, open_console, summary

    written = None
    try:
        with shielded():
            output.require()
            result.config.save(output.path)
            kept.delivered(output.path)
        written = str(output.path)
    finally:
        try:
            if not flags.quiet:
                with suppress(*CLOSED):
                    open_console().print(summary(result))
        finally:
            _print(_answer_text(result, str(output.path), flags))
            if not flags.quiet:
                with suppress(*CLOSED):
                    seen = () if flags.report else _seen_with(kept, flags)
                    script = getattr(flags, "script", ())
                    open_console().print("", ending(result, written, seen, script), sep="\n")


def _answer_text(result: Result, output: str, flags: argparse.Namespace) -> str:
    """Return the answer for standard output: JSON, Python, or the settings as YAML."""
    if flags.json:
        return _json_text(result)
    if flags.snippet:
        from autotune.exports import export

        return export(result.config, "python").text
    from autotune.configfile import document_text

    settings = {key: value for key, value in result.config.to_document().items() if key not in BESIDE}
    return document_text(Path(output).with_suffix(".yaml"), settings)


def _beside_what_is_proven(result: Result, output: Output) -> Output:
    """Return where a result is written: beside a file whose gain is proven, where its own is undecided."""
    path = output.path
    if output.force or result.verdict is not Verdict.UNDECIDED or not path.exists():
        return output
    from autotune.config import load_config

    try:
        with _quiet_warnings(quiet=True):
            measured = load_config(path).measured or {}
    except AutotuneError:
        return output  # it promises nothing that could be read
    if parse_verdict(measured.get("verdict")) is not Verdict.FASTER:
        return output
    aside = _aside(output)
    _say(
        f"{path} holds a gain that was proven, and stays; this answer is written to {aside.path} (--force replaces it)."
    )
    return aside


def _seen_with(kept: StudyStorage, flags: argparse.Namespace) -> tuple[str, ...]:
    """Return the arguments with which ``report`` shows the study; none where it is not kept, or behind a password."""
    if not kept.is_kept or flags.storage not in (None, kept.location):
        return ()
    return (kept.location, *(("--study", kept.name) if flags.storage else ()))


def _json_text(result: Result) -> str:
    """Return a result as one JSON object; ``config`` is the config file's content."""
    from autotune.encoding import without_nan
    from autotune.report.table import trial_row

    names = ["speedup", "speedup_ci95", "next_run_95", "rounds", "stop_reason", "remaining_gain", "most_gain"]
    names += ["missing", "notes", "seconds", "objective", "no_alternative", "same_loss_speedup", "no_noise"]
    document, likeliest = result.config.to_document(), result.likeliest
    content = {
        "verdict": verdict_text(result.verdict, result.most_gain),
        "config": document,
        "measured": document.get("measured"),
        **{name: getattr(result, name) for name in names},
        "noise": asdict(result.noise) if result.noise else None,
        "tried": [asdict(each) for each in result.tried],
        "likeliest": {**asdict(likeliest), "config": likeliest.config.to_document()} if likeliest else None,
        "trials": [trial_row(trial) for trial in result.history],
    }
    return json.dumps(without_nan(content), indent=2, allow_nan=False) + "\n"


def _quiet_warnings(quiet: bool) -> AbstractContextManager[object]:
    return warnings.catch_warnings(action="ignore") if quiet else nullcontext()


def _outputs(flags: argparse.Namespace, workload: str | Script) -> tuple[Output, Output | None, Output | None]:
    """Return the files that a run is to write, known to be writable: config, and report and patch where asked for."""
    path, text = Path(flags.output), getattr(flags, "patch", None)
    if path.suffix not in SUFFIXES:
        raise ConfigFileError(f"--output {path}: a config file ends in one of {', '.join(SUFFIXES)}")
    read = _code_files(workload, getattr(flags, "dataset", None))
    read["the study"] = _study_file(flags.storage) if flags.storage else path.with_suffix(".study")
    config = Output(flag="--output", path=path, kind=CONFIG, force=flags.force, kept=read)
    config.require()
    if not flags.force and path.exists():
        _aside(config).require()
    kept, report, patch = {**read, "what --output writes": path}, None, None
    if flags.report is not None:
        report = _page("--report", flags.report, flags.force, kept)
        kept = {**kept, "what --report writes": report.path}
    if text is not None:
        patch = Output(flag="--patch", path=Path(text), kind=EXPORT, force=flags.force, kept=kept)
        patch.require()
    return config, report, patch


def _page(flag: str, text: str, force: bool, kept: Mapping[str, Path], also: str = "") -> Output:
    page = Output(flag=flag, path=Path(text), kind=REPORT, force=force, kept=kept)
    if page.path.suffix != ".html":
        raise UsageError(f"{flag} {text}: a report ends in .html{also}")
    page.require()
    return page


def _code_files(workload: str | Script | None, dataset: str | None = None) -> dict[str, Path]:
    """Return the files of a workload's code: the script, or the files that its references name."""
    if workload is not None and not isinstance(workload, str):
        return {"the script": Path(workload.path)}
    modules = {f"the file of {each}": each.rpartition(":")[0] for each in (workload, dataset) if each}
    return {
        words: Path(name if name.endswith(".py") else f"{name.replace('.', '/')}.py") for words, name in modules.items()
    }


def _study_file(location: str) -> Path:
    """Return the file of a study, also of a database in one; of a server a name that no file has."""
    return Path(location.removeprefix("sqlite:///").partition("?")[0])


def _aside(output: Output) -> Output:
    return replace(output, path=output.path.with_name(f"{output.path.stem}.undecided{output.path.suffix}"))


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "tune": _run,
    "run": _run_script,
    "apply": _apply,
    "check": _check,
    "compare": _compare,
    "diagnose": _diagnose,
    "export": _export,
    "report": _report,
    "completion": _completion,
}
"""The function of each command; a line that begins with a flag tunes."""
