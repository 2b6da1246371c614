from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune import load_config
from autotune.cli import COMMANDS, main
from autotune.config import Config
from autotune.errors import (
    AutotuneError,
    ConfigFileError,
    InterruptedRunError,
    NothingFeasibleError,
    StorageError,
    UsageError,
    UserCodeError,
)
from autotune.messages import Progress
from autotune.workload import Script
from tests import examples
from tests.processes import run_python
from tests.storage.test_open import keep

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.report.result import Result
    from autotune.storage.open import StudyStorage

    Run = Callable[..., tuple[int, str, str]]
HEAVY = ("torch", "optuna", "rich", "pandas", "numpy", "yaml")
FASTER, UNDECIDED = examples.faster_result(), examples.undecided_result()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, in which the command line runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def received() -> dict[str, Any]:
    """What the run was called with last."""
    return {}


@pytest.fixture
def run(
    folder: Path, received: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs a command line; returns its exit code, stdout and stderr.

    A test says what becomes of the run, or what is called in its place: these tests are about what the command line
    makes of it.
    """

    def run(line: str, becomes: Result | BaseException | Callable[..., Result] | None = None) -> tuple[int, str, str]:
        def tune(**arguments: Any) -> Result:
            received.update(arguments)
            if becomes is None:
                pytest.fail("the run was started")
            if isinstance(becomes, BaseException):
                raise becomes
            return becomes(**arguments) if callable(becomes) else becomes

        module = ModuleType("autotune.api")
        vars(module)["tune"] = tune
        monkeypatch.setitem(sys.modules, "autotune.api", module)
        code = main(line.split())
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize("command", ["apply", "check", "diagnose", "export", "report"])
def test_the_help_of_a_command_is_as_recorded(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert capsys.readouterr().out == (Path(__file__).parent / "help" / f"{command}.txt").read_text()


def test_the_help_of_tune_shows_ranges_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["help", "tune"])
    text = capsys.readouterr().out
    assert exit_.value.code == 0
    assert text.count("python -m autotune --model") >= 3
    assert all(shown in text for shown in ("32..512", "0,2,4", "[tool.autotune]"))
    codes = {UsageError.exit_code, UserCodeError.exit_code, NothingFeasibleError.exit_code}
    codes |= {ConfigFileError.exit_code, StorageError.exit_code, InterruptedRunError.exit_code, 0}
    assert all(f"\n  {code} " in text for code in codes)


@pytest.mark.parametrize("line", ["", "help", "--help", "-h"])
def test_autotune_alone_is_one_screen_of_commands_with_three_examples(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(line.split())
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    assert (code, bool(out), bool(err)) == ((0, True, False) if line else (2, False, True))
    lines = (out + err).splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 80) == (True, True)
    commands = lines[lines.index("commands:") + 1 :]
    assert {each.split()[0] for each in commands[: commands.index("")]} == {*COMMANDS, "help"}
    assert commands[0].split()[0] == "run"
    assert len([each for each in lines if each.startswith("  python -m autotune")]) == 3


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("train.py --epochs 3 --model resnet", None),
        ("run --quiet -m job.train --epochs 3", "job.train"),
        ("-m job.train --epochs 3", "job.train"),
    ],
)
def test_a_script_alone_is_run_with_its_arguments_and_a_module_by_its_name(
    folder: Path, run: Run, received: dict[str, Any], line: str, module: str | None
) -> None:
    (folder / "job").mkdir()
    for path in (folder / "job" / "train.py", folder / "train.py"):
        path.write_text("")
    code, _, err = run(line, FASTER)
    assert code == 0
    file = str(folder.resolve() / "job" / "train.py") if module else "train.py"
    arguments = ("--epochs", "3") if module else ("--epochs", "3", "--model", "resnet")
    assert received["workload"] == Script(path=file, arguments=arguments, module=module)
    assert not line.startswith("-m") or "apply autotune.yaml -m job.train --epochs 3" in err


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("-V", 0),
        ("--help", 0),
        ("help run", 0),
        ("--model m:f --budget 1s", 2),
        ("--model m:f --output a.txt", 5),
    ],
)
def test_help_version_and_wrong_flags_import_nothing_heavy(line: str, code: int) -> None:
    script = (
        "import sys, atexit; from autotune.cli import main\n"
        f"atexit.register(lambda: print([name for name in {HEAVY!r} if name in sys.modules]))\n"
        f"sys.exit(main({line.split()!r}))"
    )
    ran = run_python("-c", script)
    assert ran.returncode == code, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What ``check`` and ``diagnose`` were called with; they do nothing."""
    from autotune import comparison as checking
    from autotune import diagnostics as diagnosing

    received = SimpleNamespace(all=[], verdict="holds")

    def check(path: str, workload: Any, dataset: str | None, **options: Any) -> object:
        received.all.append({"path": path, "workload": workload, "dataset": dataset, **options})
        return examples.check(verdict=received.verdict)

    def diagnose(workload: Any, config: Any, dataset: str | None, **options: Any) -> object:
        received.all.append({"workload": workload, "config": config, "dataset": dataset, **options})
        return examples.diagnosis()

    monkeypatch.setattr(checking, "check", check)
    monkeypatch.setattr(diagnosing, "diagnose", diagnose)
    return received


def test_check_and_diagnose_take_a_script_with_its_arguments(folder: Path, run: Run, called: Any) -> None:
    (folder / "train.py").write_text("")
    replace(examples.ANSWER, made_on={"loader": "train.py:3 Data[8]"}).save(folder / "a.yaml")
    script = Script(path="train.py", arguments=("--model", "resnet", "--budget", "3"))
    assert run("check a.yaml --budget 30s train.py --model resnet --budget 3")[0] == 0
    assert run("check --allow-writes --allow-uploads a.yaml train.py --model resnet --budget 3")[0] == 0
    assert run("diagnose train.py --model resnet --budget 3")[0] == 0
    assert run("diagnose --config a.yaml --try train.py --model resnet --budget 3")[0] == 0
    named = [tuple(map(each.get, ("path", "workload", "budget", "config", "remedies"))) for each in called.all]
    assert named == [
        ("a.yaml", script, 30.0, None, None),
        ("a.yaml", replace(script, allow_writes=True, allow_uploads=True), 60.0, None, None),
        (None, script, None, None, False),
        (None, script, None, examples.ANSWER, True),
    ]


@pytest.mark.parametrize("command", ["--model m:f", "run train.py", "check a.yaml train.py", "diagnose train.py"])
@pytest.mark.parametrize(
    ("size", "rank", "said"),
    [
        ("WORLD_SIZE", "RANK", "a launcher started 8 processes, an unknown number of them on this host"),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID", "srun started 8 processes, each with its own share"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun started 8 processes, each with its own share"),
    ],
    ids=["several hosts", "srun", "mpirun"],
)
def test_a_launcher_whose_ranks_cannot_be_measured_is_refused_once(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, command: str, size: str, rank: str, said: str
) -> None:
    (folder / "train.py").write_text("")
    monkeypatch.setenv(size, "8(x2),4" if size.startswith("SLURM") else "8")
    monkeypatch.setenv(rank, "0")
    code, _, errors = run(command)
    assert (code, said in errors, "with --ranks" in errors) == (2, True, True), errors
    monkeypatch.setenv(rank, "3")
    assert run(command) == (2, "", "")
    monkeypatch.setenv(size, "1(x2)" if size.startswith("SLURM") else "1")
    if command.split()[0] not in ("check", "diagnose"):
        assert run(command, FASTER)[0] == 0


def test_the_first_rank_of_a_launcher_measures_as_many_and_refuses_another_number(
    folder: Path, run: Run, received: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").write_text("")

    def launched(line: str) -> tuple[int, str, str]:
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, "2")
        monkeypatch.setattr("autotune.machine.launcher.START_SECONDS", 0.01)  # there is no second one
        return run(line, FASTER)

    assert launched("run train.py")[0] == 0
    assert received["ranks"] == 2
    assert "WORLD_SIZE" not in os.environ
    code, _, said = launched("run --ranks 3 train.py")
    assert (code, "the launcher started 2 ranks, not 3: leave out --ranks" in said) == (2, True), said


def test_the_run_gets_what_the_flags_say(run: Run, received: dict[str, Any]) -> None:
    flags = "--model m:f --dataset m:d --device cpu --budget 1m30s --trials 7 --baseline batch_size=8"
    knobs = "--batch-size 32..512 --num-workers 0,2,4 --amp off --pin-memory true --storage s.db --headroom 20%"
    knobs += " --ranks 2 --global-batch-size 512 --max-memory 12GiB --explore channels_last,compile --sampler random"
    knobs += " --prefetch-factor 2,4 --persistent-workers off --threads 1..4 --objective same-batch"
    assert run(f"{flags} {knobs} --oversubscribe-ranks", FASTER)[0] == 0
    received.pop("on_progress")
    assert received.pop("storage").location == "s.db"
    given: dict[str, Any] = {"workload": "m:f", "dataset": "m:d", "device": "cpu", "budget": 90.0, "trials": 7}
    given |= {"baseline": "batch_size=8", "headroom": "20%", "max_memory": "12GiB", "batch_size": "32..512"}
    given |= {"global_batch_size": 512, "explore": "channels_last,compile", "num_workers": "0,2,4", "amp": "off"}
    given |= {"pin_memory": "true", "ranks": 2, "oversubscribe_ranks": True, "quiet": False, "threads": "1..4"}
    given |= {"prefetch_factor": "2,4", "persistent_workers": "off", "objective": "same-batch"}
    named = {name: value for name, value in received.items() if value is not None}
    assert named == given | {"optuna_sampler": "random"}
    run("--model m:f", FASTER)
    assert (received["optuna_sampler"], received["oversubscribe_ranks"]) == ("predictive", False)
    assert {received[name] for name in ("prefetch_factor", "persistent_workers", "threads", "objective")} == {None}


def test_the_study_is_kept_beside_the_output_and_checking_that_leaves_nothing_behind(run: Run) -> None:
    def tune(*, storage: StudyStorage, **arguments: Any) -> Result:
        assert storage.location == "tuned.study"
        assert os.listdir() == []
        return FASTER

    assert run("--model m:f --output tuned.json", tune)[0] == 0
    assert os.listdir() == ["tuned.json"]  # there was nothing to keep
    assert run("--model m:f --output a.yml", FASTER)[0] == 0
    assert sorted(os.listdir()) == ["a.yml", "tuned.json"]


def test_what_a_name_hides_is_shown_written_out(run: Run) -> None:
    name = "\x1b]0;title\x07[bold]Net[/bold]\u202e\udc80\r"

    def tune(*, on_progress: Callable[[Progress], None], **arguments: Any) -> Result:
        trial = examples.failed_trial(message=f"{name} fails")
        on_progress(Progress(phase="search", seconds_left=9.0, finished=trial, message=f"{name} is known"))
        return examples.faster_result(notes=(f"{name} is large",))

    code, out, err = run("--model m:f --snippet --output a\x1b[2J.yaml", tune)
    assert code == 0
    assert "loader = DataLoader(" in out
    compile(out, "stdout", "exec")
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(out + err)
    assert err.replace("\n", " ").count(r"[bold]Net[/bold]\u202e\udc80") == 3


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error"), SystemExit(1)])
def test_a_run_goes_on_where_its_progress_cannot_be_seen_any_more(
    error: BaseException, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(*, on_progress: Callable[[Progress], None], **arguments: Any) -> Result:
        on_progress(Progress(phase="search", seconds_left=9.0, message="hello"))
        return FASTER

    def write(text: str) -> int:
        raise error

    monkeypatch.setattr(sys.stderr, "write", write)
    assert run("--model m:f", tune)[0] == 0
    assert load_config("autotune.yaml") == examples.ANSWER


def test_check_passes_its_flags_on_and_its_exit_code_is_the_verdict(run: Run, called: Any) -> None:
    for called.verdict, expected in (("holds", 0), ("undecided", 11), ("broken", 1)):
        code, out, _ = run("check a.yaml --model m:f --dataset m:d --device cpu --budget 30s")
        assert code == expected
        assert out.startswith("a.yaml promises 2.00 times the baseline")
    called.all[0].pop("on_progress")
    given = {"path": "a.yaml", "workload": "m:f", "dataset": "m:d", "device": "cpu", "budget": 30.0}
    assert called.all[0] == given | {"ranks": None, "oversubscribe_ranks": False}
    code, out, err = run("check a.yaml --model m:f --json --quiet")
    assert (code, json.loads(out)["verdict"], err) == (1, "broken", "")


def test_diagnose_passes_its_flags_on_and_prints_what_it_finds(run: Run, called: Any) -> None:
    code, out, _ = run("diagnose --model m:f --baseline batch_size=8 --try --quiet")
    assert code == 0
    assert "decoding" in out
    examples.ANSWER.save("a.yaml")
    code, out, _ = run("diagnose --model m:f --dataset m:d --device cpu --config a.yaml --json")
    assert code == 0
    content = json.loads(out)
    assert content["bottleneck"] == "decoding"
    assert [finding["cause"] for finding in content["findings"]] == ["decoding", "dataset_copies"]
    assert content["config"]["dataloader"]["batch_size"] == 32
    ranks = {"ranks": None, "oversubscribe_ranks": False}
    assert [{name: value for name, value in each.items() if name != "on_progress"} for each in called.all] == [
        {"workload": "m:f", "config": "batch_size=8", "dataset": None, "device": "auto", "remedies": True} | ranks,
        {"workload": "m:f", "config": examples.ANSWER, "dataset": "m:d", "device": "cpu", "remedies": False} | ranks,
    ]


@pytest.mark.parametrize(
    ("line", "code", "named"),
    [
        ("--dataset m:d", 2, "--model"),
        ("absent.py --epochs 3", 2, "absent.py: no such file; pass the script that you train with"),
        ("run --model m:f", 2, "unknown flag --model: autotune run takes a script, such as train.py; a function is"),
        (
            "run --epochs 5 train.py",
            2,
            "flags of the script go after its name: autotune run train.py --epochs 5; see python -m autotune run",
        ),
        ("run --dryrun train.py", 2, "unknown flag --dryrun: did you mean --dry-run?"),
        ("run --patch new.patch absent.py", 2, "absent.py: no such file; pass the script that you train with"),
        *(
            (f"{line} absent.py --epochs 3", 2, "absent.py: no such file; pass the script that you train with")
            for line in ("tune", "tune --budget 2m", "--budget 2m")
        ),
        ("run -m", 2, "name the script that you train with"),
        ("run -m job.train", 2, "-m job.train: no such module here; run from the folder that holds job"),
        ("--model m:f --wrong", 2, "--wrong"),
        ("--model m:f --budget 1s", 2, "--budget 1s: too short to compare anything; the least is 30s"),
        ("chek a.yaml", 2, "unknown command 'chek': did you mean check?"),
        ("help chek", 2, "unknown command 'chek': did you mean check?"),
        ("diagnose --modle=m:f", 2, "unknown flag --modle: did you mean --model?"),
        ("tune --model m:f --xyz", 2, "unknown flag --xyz; see"),
        *(
            (f"--model m:f --output {name}", 5, f"--output {name}")
            for name in ("absent/a.yaml", "a.toml", "a", "/proc/a.yaml")
        ),
        ("--model m:f --report seen.pdf", 2, "--report seen.pdf: a report ends in .html"),
        ("--model m:f --report .", 2, "--report .: a report ends in .html"),
        ("check", 2, ""),
        ("check a.yaml", 2, "name the script that you train with, such as train.py, or --model"),
        ("check a.yaml absent.py --lr 1", 2, "absent.py: no such file; pass the script"),
        ("check a.yaml train.py", 2, "was made for a function: name it, as in check a.yaml --model mymod:build"),
        ("check of_script.yaml --model m:f", 2, "was made for a script: name it, as in check of_script.yaml train.py"),
        ("check a.yaml --model m:f train.py", 2, "--model m:f: a function is measured without train.py"),
        ("check a.yaml --device cpu train.py", 2, "--device: is for a function; a script chooses its own device"),
        ("check a.yaml --allow-writes --model m:f", 2, "--allow-writes: is for a script"),
        ("diagnose --allow-uploads --model m:f", 2, "--allow-uploads: is for a script"),
        ("diagnose --baseline batch_size=8 train.py", 2, "--baseline: is for a function"),
        ("diagnose --config a.yaml train.py", 5, "a.yaml: names no DataLoader of a script"),
        ("check absent.yaml --model m:f", 5, "absent.yaml"),
        ("check no_gain.yaml --model m:f", 5, "no_gain.yaml: promises no gain over another configuration"),
        ("diagnose", 2, ""),
        ("diagnose --model m:f --budget 3m", 2, ""),
        ("diagnose --model m:f --baseline batch_size=3 --config a.yaml", 2, ""),
        ("diagnose --model m:f --config absent.yaml", 5, ""),
        ("export a.yaml", 2, "the following arguments are required: --to"),
        ("export absent.yaml --to shell", 5, "absent.yaml: cannot be read: No such file"),
        ("export a.yaml --to shell --output absent/a.sh", 5, "absent/a.sh: cannot be written"),
        ("report", 2, "STUDY"),
        ("report absent.study", 5, "absent.study: cannot be read: No such file or directory"),
        ("report a.study --study x", 5, "holds no study x"),
        ("report a.study --output a.pdf", 2, "--output a.pdf: a report ends in .html; trials in .csv or .parquet"),
        ("report a.study --output absent/a.csv", 5, "--output absent/a.csv: cannot be written"),
        (f"report {300 * 'x'} --output new.csv", 5, "File name too long"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_flag_before_anything_starts(
    folder: Path, run: Run, line: str, code: int, named: str
) -> None:
    (folder / "train.py").write_text("")
    keep(folder / "a.study", 0)
    promise = replace(examples.ANSWER, measured={"baseline": {"batch_size": 1}})
    promise.save("a.yaml")
    examples.ANSWER.save("no_gain.yaml")
    replace(promise, made_on={"loader": "train.py:3 Data[8]"}).save("of_script.yaml")
    before = sorted(os.listdir())
    ended, out, err = run(line)
    assert (ended, out) == (code, "")
    assert err.startswith("autotune: error: ")
    assert err.count("\n") == 1
    assert named in err
    assert sorted(os.listdir()) == before


TRACEBACK = "Traceback (most recent call last):\n  File m.py\nValueError: x"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (AutotuneError("a reason"), 1, "autotune: error: a reason"),
        (UserCodeError("a reason"), 3, "autotune: error: a reason"),
        (UserCodeError("the model fails", f"{TRACEBACK}\n"), 3, f"{TRACEBACK}\nautotune: error: the model fails"),
        (
            UserCodeError("\x1b[2J fails", "Traceback\n  \x1b[31mred"),
            3,
            "Traceback\n  \\x1b[31mred\nautotune: error: \\x1b[2J fails",
        ),
        (NothingFeasibleError("a reason"), 4, "autotune: error: a reason"),
        (StorageError("a reason"), 5, "autotune: error: a reason"),
        (InterruptedRunError("a\nreason"), 130, "autotune: error: a reason"),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_each_error_ends_with_its_code_and_one_line_after_the_users_traceback(
    error: BaseException, code: int, said: str, run: Run
) -> None:
    assert run("--model m:f", error) == (code, "", f"{said}\n")
    assert os.listdir() == []


def test_an_unexpected_exception_is_not_hidden(run: Run) -> None:
    with pytest.raises(ZeroDivisionError):
        run("--model m:f", ZeroDivisionError())


def test_an_interrupted_result_is_written_before_exit_130(run: Run) -> None:
    assert run("--model m:f", examples.faster_result(stop_reason="interrupted by the user", interrupted=True))[0] == 130
    assert load_config("autotune.yaml") == examples.ANSWER


def test_stdout_is_the_settings_and_stderr_ends_with_verdict_file_and_next_commands(run: Run) -> None:
    code, out, err = run("--model m:f", FASTER)
    assert code == 0
    assert out.splitlines() == Path("autotune.yaml").read_text().splitlines()[:4]
    Path("settings.yaml").write_text(out)
    assert load_config("settings.yaml") == examples.ANSWER
    *_, verdict, change, written, use = err.splitlines()
    assert verdict.startswith("2.31 times the samples a second") or verdict.endswith("fresh processes.")
    assert change == "This changes training: batch size 32 → 128, bf16: adapt the learning rate."
    assert written == "Written: autotune.yaml"
    assert use == "Use it:  python -m autotune export autotune.yaml --to python"
    assert "\x1b" not in out + err


def test_json_is_one_object_with_the_file_the_verdict_and_every_trial(run: Run) -> None:
    undefined = examples.trial(number=1, measurement=examples.measurement(loss=float("nan")))
    result = examples.faster_result(history=(examples.trial(), undefined, examples.failed_trial()))
    code, out, _ = run("--model m:f --json --output a.json", result)
    assert code == 0
    content = json.loads(out, parse_constant=pytest.fail)
    assert content["config"] == json.loads(Path("a.json").read_text())
    assert content["measured"] == result.config.measured
    assert (content["verdict"], content["speedup_ci95"]) == ("faster", [2.18, 2.45])
    assert [row["outcome"] for row in content["trials"]] == ["ok", "ok", "device_oom"]
    assert content["trials"][1]["loss"] is None
    assert content["tried"] == []


@pytest.mark.parametrize(
    ("result", "code"),
    [(FASTER, 0), (examples.no_gain_result(), 10), (UNDECIDED, 11)],
    ids=["faster", "no gain", "undecided"],
)
def test_the_exit_code_is_the_verdict_where_that_is_asked_for(run: Run, result: Result, code: int) -> None:
    assert run("--model m:f --quiet", result)[0] == 0
    assert run("--model m:f --quiet --force --exit-verdict", result)[0] == code


def test_json_has_what_is_likely_where_nothing_is_proven_and_quiet_leaves_stderr_empty(
    run: Run, received: dict[str, Any]
) -> None:
    _, out, err = run("--model m:f --json --quiet", UNDECIDED)
    assert received["on_progress"] is None
    content = json.loads(out)
    assert (content["verdict"], err) == ("undecided", "")
    assert content["likeliest"]["speedup"] == 2.311
    assert content["likeliest"]["config"]["dataloader"]["batch_size"] == 128
    assert content["missing"][0] == "more time (--budget 1m)"


@pytest.mark.parametrize("name", ["autotune.yaml", "tuned.json"])
def test_what_is_proven_is_not_replaced_by_what_is_undecided(run: Run, name: str) -> None:
    path, aside = Path(name), Path(name.replace(".", ".undecided."))
    FASTER.config.save(path)
    proven = path.read_bytes()
    code, _, err = run(f"--model m:f --output {name}", UNDECIDED)
    assert code == 0
    assert path.read_bytes() == proven
    assert aside.exists()
    assert f"{name} holds a gain that was proven, and stays" in err
    assert f"Written: {aside}" in err
    run(f"--model m:f --output {name} --force", UNDECIDED)
    assert path.read_bytes() == aside.read_bytes()


@pytest.mark.parametrize("earlier", ["undecided", "no gain above 3 %", ""])
def test_anything_else_is_replaced(run: Run, earlier: str) -> None:
    path = Path("autotune.yaml")
    path.write_text("")
    if earlier:
        Config(measured={"verdict": earlier}).save(path)
    assert run("--model m:f --quiet", UNDECIDED)[0] == 0
    assert "batch_size: 128" in path.read_text()
    assert os.listdir() == ["autotune.yaml"]


def test_the_answer_is_shown_even_where_the_file_cannot_be_written_after_all(folder: Path, run: Run) -> None:
    (folder / "folder").mkdir()

    def tune(**arguments: Any) -> Result:
        (folder / "folder").rmdir()
        return FASTER

    code, out, err = run("--model m:f --json --output folder/a.yaml", tune)
    assert code == 5
    assert json.loads(out)["config"]["dataloader"]["batch_size"] == 128
    assert "Written" not in err


def test_without_a_terminal_each_finished_trial_is_one_plain_line(run: Run) -> None:
    def tune(*, on_progress: Callable[[Progress], None], **arguments: Any) -> Result:
        on_progress(Progress(phase="inspect", seconds_left=180.0))
        for trial in (examples.trial(), examples.failed_trial(message="out of memory " * 20)):
            on_progress(Progress(phase="search", seconds_left=100.0, running=trial.config))
            on_progress(Progress(phase="search", seconds_left=90.0, finished=trial, baseline_rate=1234.5))
        raise NothingFeasibleError("enough")

    code, _, err = run("--model m:f", tune)
    lines = err.splitlines()
    assert code == 4
    assert [line.split()[:2] for line in lines] == [["0", "baseline"], ["4", "device_oom"], ["autotune:", "error:"]]
    assert lines[1].endswith("out of memory")


# --- export ---


def test_an_export_goes_to_standard_output_or_where_it_is_told_to(run: Run) -> None:
    examples.ANSWER.save("a.yaml")
    code, out, err = run("export a.yaml --to lightning")
    assert (code, err) == (0, "")
    assert 'precision="bf16-mixed"' in out
    assert run("export a.yaml --to shell --output a.sh") == (0, "", "")
    assert f"export AUTOTUNE_BATCH_SIZE={examples.ANSWER.batch_size}\n" in Path("a.sh").read_text()


@pytest.mark.usefixtures("folder")
def test_who_has_read_enough_closes_the_pipe_without_an_error() -> None:
    examples.ANSWER.save("a.yaml")
    command = [sys.executable, "-m", "autotune", "export", "a.yaml", "--to", "python"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_flag_of_autotune_that_goes_to_the_script_is_told(folder: Path, run: Run) -> None:
    (folder / "train.py").write_text("")
    done = examples.faster_result()
    assert "--budget after train.py goes to the script: autotune's own" in run("train.py --budget 2m", done)[2]
    assert "goes to the script" not in run("run --budget 2m train.py --lr 1", done)[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_flags(shell: str, run: Run) -> None:
    code, out, err = run(f"completion {shell}")
    assert (code, err) == (0, "")
    assert all(word in out for word in (*COMMANDS, "persistent-workers", "allow-uploads"))


def test_bash_completes_a_flag_of_a_command_and_a_command(folder: Path, run: Run) -> None:
    script = (
        run("completion bash")[1]
        + """
    COMP_WORDS=(autotune run --bu) COMP_CWORD=2; _shtab_autotune; echo "${COMPREPLY[@]}"
    COMP_WORDS=(autotune rep) COMP_CWORD=1; _shtab_autotune; echo "${COMPREPLY[@]}"
    """
    )
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert [line.split() for line in ran.stdout.splitlines()] == [["--budget"], ["report"]]
