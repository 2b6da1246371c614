from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from autotune import load_config
from autotune.cli import main
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
from autotune.flags import build_parser, parse_baseline
from autotune.messages import Progress
from tests import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.result import Result
    from autotune.storage.keeper import Keeper

    Tune = Callable[..., Result]
    PutTune = Callable[[Tune], None]

FLAGS = [
    "--amp", "--baseline", "--batch-size", "--budget", "--dataset", "--device", "--explore",
    "--exit-verdict", "--force", "--global-batch-size", "--oversubscribe-ranks",
    "--headroom", "--help", "--json", "--max-memory", "--model", "--num-workers", "--output", "--persistent-workers",
    "--pin-memory", "--prefetch-factor", "--quiet", "--ranks", "--report", "--storage", "--threads", "--trials",
    "--version",
]  # fmt: skip
HEAVY = ("torch", "optuna", "rich", "pandas", "numpy", "yaml")


@pytest.fixture
def put_tune(monkeypatch: pytest.MonkeyPatch) -> PutTune:
    """Lets a test say what becomes of the run: these tests are about what the command line makes of it."""

    def put(tune: Tune) -> None:
        module = ModuleType("autotune.api")
        vars(module)["tune"] = tune
        monkeypatch.setitem(sys.modules, "autotune.api", module)

    return put


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def never_tune(**arguments: Any) -> Result:
    pytest.fail("the run was started")


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=180, check=False)


def test_the_flags_are_exactly_these() -> None:
    flags = {flag for action in build_parser()._actions for flag in action.option_strings}
    assert flags == {"-h", *FLAGS}


def test_every_flag_that_takes_a_value_has_an_example_or_a_default_in_its_help() -> None:
    for action in build_parser()._actions:
        assert action.help
        if action.nargs != 0:
            assert any(word in action.help for word in ("such as", "(default")), action.option_strings


def test_help_shows_commands_ranges_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    text = capsys.readouterr().out
    assert exit_.value.code == 0
    assert text.count("python -m autotune --model") >= 3
    assert all(shown in text for shown in ("32..512", "0,2,4"))
    codes = {UsageError.exit_code, UserCodeError.exit_code, NothingFeasibleError.exit_code}
    codes |= {ConfigFileError.exit_code, StorageError.exit_code, InterruptedRunError.exit_code, 0}
    assert all(f"\n  {code} " in text for code in codes)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        ([], 2),
        (["--model", "m:f", "--budget", "soon"], 2),
        (["--model", "m:f", "--budget", "1s"], 2),
        (["--model", "m:f", "--baseline", "batch=3"], 2),
        (["--model", "m:f", "--output", "a.txt"], 5),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_help_version_and_wrong_flags_import_nothing_heavy(arguments: list[str], code: int) -> None:
    script = (
        "import sys, atexit; from autotune.cli import main\n"
        f"atexit.register(lambda: print([name for name in {HEAVY!r} if name in sys.modules]))\n"
        f"sys.exit(main({arguments!r}))"
    )
    ran = run_python("-c", script)
    assert ran.returncode == code, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]"


def test_python_dash_m_runs_the_same_command_line() -> None:
    ran = run_python("-m", "autotune", "--model", "m:f", "--trials", "0")
    assert ran.returncode == 2
    assert ran.stderr.startswith("autotune: error: argument --trials")
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--model"),
        (["--model", "m:f", "--wrong"], "--wrong"),
        (["--model", "m:f", "--trials", "many"], "--trials"),
        (["--model", "m:f", "--budget", "0s"], "--budget"),
        (["--model", "m:f", "--budget", "1s"], "--budget 1s: too short to compare anything; the least is 30s"),
        (["--mod", "m:f"], "--model"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_flag(
    arguments: list[str], named: str, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    put_tune(never_tune)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("autotune: error: ")
    assert err.count("\n") == 1
    assert named in err


def test_a_baseline_is_read_with_types() -> None:
    loader = "batch_size=64, num_workers=2,prefetch_factor=4,pin_memory=yes,persistent_workers=off"
    assert parse_baseline(f"{loader},amp=BF16,threads=1") == {
        "batch_size": 64,
        "num_workers": 2,
        "prefetch_factor": 4,
        "pin_memory": True,
        "persistent_workers": False,
        "amp": "bf16",
        "threads": 1,
    }


@pytest.mark.parametrize(("text", "value"), [("true", True), ("on", True), ("No", False), ("false", False)])
def test_a_baseline_switch_takes_the_usual_words(text: str, value: bool) -> None:
    assert parse_baseline(f"pin_memory={text}") == {"pin_memory": value}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("batch=64", "unknown key 'batch'; allowed: batch_size, num_workers, .*, threads"),
        ("", "unknown key ''; allowed"),
        ("batch_size=64,", "unknown key ''"),
        ("batch_size", "batch_size is ''"),
        ("batch_size=big", "batch_size is 'big'; allowed: a whole number"),
        ("pin_memory=2", "pin_memory is '2'; allowed: true"),
        ("amp=fp8", "amp is 'fp8'; allowed: off, bf16 or fp16"),
        ("amp=off,amp=bf16", "amp is given twice"),
    ],
)
def test_a_wrong_baseline_is_named_with_what_is_allowed(text: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=f"--baseline: {wanted}"):
        parse_baseline(text)


def test_the_run_gets_what_the_flags_say(in_empty_folder: Path, put_tune: PutTune) -> None:
    received: dict[str, Any] = {}

    def tune(**arguments: Any) -> Result:
        received.update(arguments)
        return examples.faster_result()

    put_tune(tune)
    flags = "--model m:f --dataset m:d --device cpu --budget 1m30s --trials 7 --baseline batch_size=8"
    knobs = "--batch-size 32..512 --num-workers 0,2,4 --amp off --pin-memory true --storage s.db --headroom 20%"
    knobs += " --ranks 2 --global-batch-size 512 --max-memory 12GiB --explore channels_last,compile"
    assert main([*flags.split(), *knobs.split()]) == 0
    received.pop("on_progress")
    assert received.pop("storage").location == "s.db"
    assert received == {
        "workload": "m:f",
        "dataset": "m:d",
        "device": "cpu",
        "budget": 90.0,
        "trials": 7,
        "baseline": {"batch_size": 8},
        "headroom": "20%",
        "max_memory": "12GiB",
        "batch_size": "32..512",
        "global_batch_size": 512,
        "explore": "channels_last,compile",
        "num_workers": "0,2,4",
        "prefetch_factor": None,
        "pin_memory": "true",
        "persistent_workers": None,
        "amp": "off",
        "threads": None,
        "ranks": 2,
        "oversubscribe_ranks": False,
    }


def test_the_study_is_kept_beside_the_output_by_default(in_empty_folder: Path, put_tune: PutTune) -> None:
    def tune(*, storage: Keeper, **arguments: Any) -> Result:
        assert storage.location == "tuned.study"
        return examples.faster_result()

    put_tune(tune)
    assert main(["--model", "m:f", "--output", "tuned.json"]) == 0
    assert [path.name for path in in_empty_folder.iterdir()] == ["tuned.json"]  # there was nothing to keep


def test_what_a_name_hides_is_shown_written_out(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "\x1b]0;title\x07[bold]Net[/bold]\u202e\udc80\r"

    def tune(*, on_progress: Callable[[Progress], None], **arguments: Any) -> Result:
        trial = examples.failed_trial(message=f"{name} fails")
        on_progress(Progress(phase="search", seconds_left=9.0, finished=trial, message=f"{name} is known"))
        return examples.faster_result(notes=(f"{name} is large",))

    put_tune(tune)
    assert main(["--model", "m:f", "--output", "a\x1b[2J.yaml"]) == 0
    out, err = capsys.readouterr()
    assert r'load_config("a\u001b[2J.yaml")' in out
    compile(out, "stdout", "exec")
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(out + err)
    assert err.replace("\n", " ").count(r"[bold]Net[/bold]\u202e\udc80") == 3


def test_an_error_is_printable_too(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune(**arguments: Any) -> Result:
        raise UserCodeError("\x1b[2J fails", "Traceback\n  \x1b[31mred")

    put_tune(tune)
    assert main(["--model", "m:f"]) == 3
    assert capsys.readouterr().err == "Traceback\n  \\x1b[31mred\nautotune: error: \\x1b[2J fails\n"


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error"), SystemExit(1)])
def test_a_run_goes_on_where_its_progress_cannot_be_seen_any_more(
    error: BaseException, in_empty_folder: Path, put_tune: PutTune, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(*, on_progress: Callable[[Progress], None], **arguments: Any) -> Result:
        on_progress(Progress(phase="search", seconds_left=9.0, message="hello"))
        return examples.faster_result()

    def write(text: str) -> int:
        raise error

    put_tune(tune)
    monkeypatch.setattr(sys.stderr, "write", write)
    assert main(["--model", "m:f"]) == 0
    assert load_config("autotune.yaml") == examples.ANSWER


def test_check_passes_its_flags_on_and_its_exit_code_is_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.search import check as checking

    received: dict[str, object] = {}
    for verdict, code in (("holds", 0), ("undecided", 11), ("broken", 1)):

        def check(path: str, workload: str, dataset: str | None, verdict: Any = verdict, **options: Any) -> object:
            received.update(path=path, workload=workload, dataset=dataset, **options)
            return examples.check(verdict=verdict)

        monkeypatch.setattr(checking, "check", check)
        assert (
            main(["check", "a.yaml", "--model", "m:f", "--dataset", "m:d", "--device", "cpu", "--budget", "30s"])
            == code
        )
        assert capsys.readouterr().out.startswith("a.yaml promises 2.00 times the baseline")
    received.pop("on_progress")
    assert received == {
        "path": "a.yaml",
        "workload": "m:f",
        "dataset": "m:d",
        "device": "cpu",
        "budget": 30.0,
        "oversubscribe_ranks": False,
    }
    assert main(["check", "a.yaml", "--model", "m:f", "--json", "--quiet"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"] == "broken"
    assert captured.err == ""


@pytest.mark.parametrize(
    "flags", [["check"], ["check", "--model", "m:f"], ["check", "a.yaml"], ["check", "a", "--trials", "3"]]
)
def test_a_wrong_check_is_wrong_use(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 2
    assert "autotune: error:" in capsys.readouterr().err


def test_checking_a_file_that_is_not_there_is_an_error_before_anything_starts(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "absent.yaml", "--model", "m:f"]) == 5
    assert "absent.yaml" in capsys.readouterr().err


def test_diagnose_passes_its_flags_on_and_prints_what_it_finds(
    in_empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.diagnosis import diagnose as diagnosing

    received: list[dict[str, object]] = []

    def diagnose(workload: str, config: object, dataset: str | None, **options: Any) -> object:
        options.pop("on_progress")
        received.append({"workload": workload, "config": config, "dataset": dataset, **options})
        return examples.diagnosis()

    monkeypatch.setattr(diagnosing, "diagnose", diagnose)
    assert main(["diagnose", "--model", "m:f", "--baseline", "batch_size=8", "--trace", "t.json", "--quiet"]) == 0
    assert "decoding" in capsys.readouterr().out
    examples.ANSWER.save("a.yaml")
    assert (
        main(["diagnose", "--model", "m:f", "--dataset", "m:d", "--device", "cpu", "--config", "a.yaml", "--json"]) == 0
    )
    content = json.loads(capsys.readouterr().out)
    assert content["bottleneck"] == "decoding"
    assert [finding["cause"] for finding in content["findings"]] == ["decoding", "dataset_copies"]
    assert content["config"]["dataloader"]["batch_size"] == 32
    assert received == [
        {"workload": "m:f", "config": {"batch_size": 8}, "dataset": None, "device": "auto", "trace": "t.json"},
        {"workload": "m:f", "config": examples.ANSWER, "dataset": "m:d", "device": "cpu", "trace": None},
    ]


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["diagnose"], 2),
        (["diagnose", "--model", "m:f", "--budget", "3m"], 2),
        (["diagnose", "--model", "m:f", "--baseline", "batch=3"], 2),
        (["diagnose", "--model", "m:f", "--baseline", "batch_size=3", "--config", "a.yaml"], 2),
        (["diagnose", "--model", "m:f", "--config", "absent.yaml"], 5),
        (["diagnose", "--model", "m:f", "--trace", "absent/t.json"], 5),
    ],
)
def test_a_wrong_diagnose_ends_before_anything_starts(
    flags: list[str], code: int, in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("autotune: error:")
    assert err.count("\n") == 1


@pytest.mark.parametrize("output", ["absent/a.yaml", "a.toml", "a", "folder.yaml", "/proc/a.yaml"])
def test_an_output_that_cannot_be_written_ends_before_the_run(
    output: str, in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_empty_folder / "folder.yaml").mkdir()
    put_tune(never_tune)
    assert main(["--model", "m:f", "--output", output]) == ConfigFileError.exit_code
    assert f"--output {output}" in capsys.readouterr().err


def test_checking_the_output_leaves_nothing_behind(in_empty_folder: Path, put_tune: PutTune) -> None:
    def tune(**arguments: Any) -> Result:
        assert list(in_empty_folder.iterdir()) == []
        return examples.faster_result()

    put_tune(tune)
    assert main(["--model", "m:f", "--output", "a.yml"]) == 0
    assert [path.name for path in in_empty_folder.iterdir()] == ["a.yml"]


@pytest.mark.parametrize("name", ["autotune.yaml", "a.json"])
def test_the_written_file_is_the_answer_with_its_measurement(
    name: str, in_empty_folder: Path, put_tune: PutTune
) -> None:
    result = examples.faster_result()
    put_tune(lambda **arguments: result)
    assert main(["--model", "m:f", "--output", name]) == 0
    config = load_config(name)
    assert config == result.config
    assert config.measured == result.config.measured


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AutotuneError("a reason"), 1),
        (UsageError("a reason"), 2),
        (UserCodeError("a reason"), 3),
        (NothingFeasibleError("a reason"), 4),
        (ConfigFileError("a reason"), 5),
        (StorageError("a reason"), 5),
        (InterruptedRunError("a\nreason"), 130),
    ],
)
def test_each_error_class_ends_with_its_code_and_one_line(
    error: AutotuneError,
    code: int,
    in_empty_folder: Path,
    put_tune: PutTune,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tune(**arguments: Any) -> Result:
        raise error

    put_tune(tune)
    assert main(["--model", "m:f"]) == code
    assert capsys.readouterr() == ("", "autotune: error: a reason\n")
    assert list(in_empty_folder.iterdir()) == []


def test_a_user_code_error_shows_the_users_traceback_first(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune(**arguments: Any) -> Result:
        raise UserCodeError("the model fails", "Traceback (most recent call last):\n  File m.py\nValueError: x\n")

    put_tune(tune)
    assert main(["--model", "m:f", "--quiet"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == ["ValueError: x", "autotune: error: the model fails"]


def test_an_unexpected_exception_is_not_hidden(in_empty_folder: Path, put_tune: PutTune) -> None:
    def tune(**arguments: Any) -> Result:
        raise ZeroDivisionError

    put_tune(tune)
    with pytest.raises(ZeroDivisionError):
        main(["--model", "m:f"])


def test_ctrl_c_says_interrupted(in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]) -> None:
    def tune(**arguments: Any) -> Result:
        raise KeyboardInterrupt

    put_tune(tune)
    assert main(["--model", "m:f"]) == 130
    assert capsys.readouterr() == ("", "Interrupted.\n")


def test_an_interrupted_result_is_written_before_exit_130(in_empty_folder: Path, put_tune: PutTune) -> None:
    put_tune(lambda **arguments: examples.faster_result(stop_reason="interrupted by the user", interrupted=True))
    assert main(["--model", "m:f"]) == 130
    assert load_config("autotune.yaml") == examples.ANSWER


def test_stdout_is_a_script_and_stderr_the_rest(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    put_tune(lambda **arguments: examples.faster_result())
    assert main(["--model", "m:f"]) == 0
    out, err = capsys.readouterr()
    compile(out, "stdout", "exec")
    assert 'autotune.load_config("autotune.yaml")' in out
    assert "2.31 times faster" in err
    assert "Written: autotune.yaml" in err
    assert "\x1b" not in out + err


def test_json_is_one_object_with_the_file_the_verdict_and_every_trial(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    undefined = examples.trial(number=1, measurement=examples.measurement(loss=float("nan")))
    result = examples.faster_result(history=(examples.trial(), undefined, examples.failed_trial()))
    put_tune(lambda **arguments: result)
    assert main(["--model", "m:f", "--json", "--output", "a.json"]) == 0
    content = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert content["config"] == json.loads(Path("a.json").read_text())
    assert content["measured"] == result.config.measured
    assert (content["verdict"], content["speedup_ci95"]) == ("faster", [2.18, 2.45])
    assert [row["outcome"] for row in content["trials"]] == ["ok", "ok", "device_oom"]
    assert content["trials"][1]["loss"] is None
    assert content["tried"] == []


@pytest.mark.parametrize(
    ("result", "code"),
    [(examples.faster_result(), 0), (examples.no_gain_result(), 10), (examples.undecided_result(), 11)],
    ids=["faster", "no gain", "undecided"],
)
def test_the_exit_code_is_the_verdict_where_that_is_asked_for(
    in_empty_folder: Path, put_tune: PutTune, result: Result, code: int
) -> None:
    put_tune(lambda **arguments: result)
    assert main(["--model", "m:f", "--quiet"]) == 0
    assert main(["--model", "m:f", "--quiet", "--force", "--exit-verdict"]) == code


def test_json_has_what_is_likely_where_nothing_is_proven(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    put_tune(lambda **arguments: examples.undecided_result())
    main(["--model", "m:f", "--json", "--quiet"])
    content = json.loads(capsys.readouterr().out)
    assert content["verdict"] == "undecided"
    assert content["likeliest"]["speedup"] == 2.311
    assert content["likeliest"]["config"]["dataloader"]["batch_size"] == 128
    assert content["missing"][0] == "more time (--budget 1m)"


@pytest.mark.parametrize("name", ["autotune.yaml", "tuned.json"])
def test_what_is_proven_is_not_replaced_by_what_is_undecided(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path, aside = Path(name), Path(name.replace(".", ".undecided."))
    examples.faster_result().config.save(path)
    proven = path.read_bytes()
    put_tune(lambda **arguments: examples.undecided_result())
    assert main(["--model", "m:f", "--output", name]) == 0
    out, err = capsys.readouterr()
    assert path.read_bytes() == proven
    assert aside.exists()
    assert f'load_config("{aside}")' in out
    assert f"{name} holds a gain that was proven, and stays" in err
    assert f"Written: {aside}" in err
    main(["--model", "m:f", "--output", name, "--force"])
    assert path.read_bytes() == aside.read_bytes()


@pytest.mark.parametrize("earlier", ["undecided", "no gain above 3 %", "no proven gain", None])
def test_anything_else_is_replaced(in_empty_folder: Path, put_tune: PutTune, earlier: str | None) -> None:
    path = Path("autotune.yaml")
    path.write_text("no config file" if earlier is None else "")
    if earlier:
        Config(measured={"verdict": earlier}).save(path)
    put_tune(lambda **arguments: examples.undecided_result())
    assert main(["--model", "m:f", "--quiet"]) == 0
    assert "batch_size: 128" in path.read_text()
    assert os.listdir() == ["autotune.yaml"]


def test_the_answer_is_shown_even_where_the_file_cannot_be_written_after_all(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = in_empty_folder / "folder"
    folder.mkdir()

    def tune(**arguments: Any) -> Result:
        folder.rmdir()
        return examples.faster_result()

    put_tune(tune)
    assert main(["--model", "m:f", "--json", "--output", "folder/a.yaml"]) == 5
    out, err = capsys.readouterr()
    assert json.loads(out)["config"]["dataloader"]["batch_size"] == 128
    assert "Written" not in err


def test_quiet_leaves_stderr_empty(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune(**arguments: Any) -> Result:
        assert arguments["on_progress"] is None
        return examples.faster_result()

    put_tune(tune)
    assert main(["--model", "m:f", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("import autotune\n")
    assert err == ""


def test_without_a_terminal_each_finished_trial_is_one_plain_line(
    in_empty_folder: Path, put_tune: PutTune, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune(*, on_progress: Callable[[Progress], None], **arguments: Any) -> Result:
        on_progress(Progress(phase="inspect", seconds_left=180.0))
        for trial in (examples.trial(), examples.failed_trial(message="out of memory " * 20)):
            on_progress(Progress(phase="search", seconds_left=100.0, running=trial.config))
            on_progress(Progress(phase="search", seconds_left=90.0, finished=trial, baseline_rate=1234.5))
        raise NothingFeasibleError("enough")

    put_tune(tune)
    assert main(["--model", "m:f"]) == 4
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in lines] == [["0", "ok"], ["4", "device_oom"], ["autotune:", "error:"]]
    assert lines[1].endswith("out of memory")


# --- export ---


@pytest.fixture
def file(in_empty_folder: Path) -> str:
    Config(batch_size=64, num_workers=2, amp="bf16", intra_op_threads=3).save("a.yaml")
    return "a.yaml"


def test_an_export_goes_to_standard_output(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", file, "--to", "lightning"]) == 0
    captured = capsys.readouterr()
    assert 'precision="bf16-mixed"' in captured.out
    assert captured.err == ""


def test_an_export_goes_where_it_is_told_to(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", file, "--to", "shell", "--output", "a.sh"]) == 0
    assert "export AUTOTUNE_BATCH_SIZE=64\n" in Path("a.sh").read_text()
    assert capsys.readouterr() == ("", "")


def test_what_json_cannot_say_goes_to_standard_error(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", file, "--to", "deepspeed"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["train_micro_batch_size_per_gpu"] == 64
    assert captured.err.startswith("deepspeed has no argument for:\n- num_workers (2), prefetch_factor (2), ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a.yaml"], 2, "the following arguments are required: --to"),
        (["a.yaml", "--to", "keras"], 2, "invalid choice: 'keras'"),
        (["absent.yaml", "--to", "shell"], 5, "absent.yaml: cannot be read: No such file"),
        (["a.yaml", "--to", "shell", "--output", "absent/a.sh"], 5, "absent/a.sh: cannot be written"),
    ],
)
def test_a_wrong_export_is_one_line(
    file: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert main(["export", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("autotune: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_who_has_read_enough_closes_the_pipe_without_an_error(file: str) -> None:
    command = [sys.executable, "-m", "autotune", "export", file, "--to", "python"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
