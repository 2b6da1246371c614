"""``--report`` and ``python -m autotune report``."""

from __future__ import annotations

import html
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas
import pytest

from autotune.cli import main
from autotune.errors import AutotuneError, NothingFeasibleError, UserCodeError
from autotune.outcome import Outcome
from autotune.report.result import Result
from autotune.report.table import COLUMNS
from autotune.search.read import read_study
from autotune.storage.open import StudyStorage
from tests import examples
from tests.report.results import kept_study, simulated_result, unfinished
from tests.search.there import there
from tests.simulated import SimulatedMachine, equal_everywhere, few_of, gpu_facts, host, tuner_of
from tests.storage.test_open import HERE, frozen, trial

Patch, Said = pytest.MonkeyPatch, pytest.CaptureFixture[str]
TUNE = ("--model", "m:f", "--output", "tuned.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_study_becomes_a_page_and_its_trials_a_table(folder: Path, capsys: Said) -> None:
    result = kept_study(folder / "autotune.study")
    assert main(["report", "autotune.study"]) == 0
    assert f"{result.speedup:.2f} times the samples a second" in (folder / "report.html").read_text(encoding="utf-8")
    assert capsys.readouterr() == ("", f"Written: report.html, of {read_study('autotune.study').name}.\n")
    assert main(["report", "autotune.study", "--output", "trials.parquet"]) == 0
    table = pandas.read_parquet(folder / "trials.parquet")
    assert (list(table), len(table)) == (list(COLUMNS), len(result.history))


@pytest.mark.parametrize(("module", "is_cut_off"), [("altair", False), ("vl_convert", True)])
def test_without_the_chart_library_a_page_has_all_but_charts(
    module: str, is_cut_off: bool, folder: Path, monkeypatch: Patch, capsys: Said
) -> None:
    result = kept_study(folder / "autotune.study")
    if is_cut_off:
        unfinished(folder / "autotune.study")
    for name in [name for name in sys.modules if name.partition(".")[0] == module or name == "autotune.report.charts"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", "autotune.study"]) == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert ("No answer yet" if is_cut_off else f"{result.speedup:.2f} times the samples a second") in page
    assert "Every trial" in page
    assert "<figure" not in page
    line = 'pip install "torch-autotune[report]"'
    assert line in html.unescape(page)
    written, said = capsys.readouterr().err.splitlines()
    assert written.startswith("Written: report.html")
    assert said.startswith("Note: charts need ")
    assert said.endswith(line)
    monkeypatch.setattr("autotune.api.tune", lambda **arguments: simulated_result())
    assert main([*TUNE, "--report", "seen.html"]) == 0
    assert line in capsys.readouterr().err
    assert "times the samples a second" in simulated_result()._repr_html_()


def test_of_several_studies_the_one_that_is_named_is_shown(folder: Path, capsys: Said) -> None:
    kept_study(folder / "a.study", fingerprint="another")
    first = read_study("a.study").name
    kept_study(folder / "a.study", model_name="Second")
    assert main(["report", "a.study"]) == 0
    assert "Second on FolderOfJpegs" in (folder / "report.html").read_text(encoding="utf-8")
    assert f"It also holds {first}: --study shows one of them." in capsys.readouterr().err
    assert main(["report", "a.study", "--study", first]) == 0
    assert "ResNet on FolderOfJpegs" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        ((), "python -m autotune report tuned.study"),
        (("--storage", "all.study"), f"python -m autotune report all.study --study {HERE.name}"),
    ],
)
def test_a_run_that_is_kept_says_how_to_see_it(flags: Any, command: str, monkeypatch: Patch, capsys: Said) -> None:
    def tune(*, storage: StudyStorage, **arguments: Any) -> Result:
        storage.open(HERE)
        storage.do(lambda study: study.add_trial(frozen(trial(0))))
        return examples.faster_result()

    monkeypatch.setattr("autotune.api.tune", tune)
    assert main([*TUNE, *flags]) == 0
    assert f"See it: {command}" in " ".join(capsys.readouterr().err.split())


def test_a_password_is_not_part_of_a_command(monkeypatch: Patch, capsys: Said) -> None:
    def tune(*, storage: StudyStorage, **arguments: Any) -> Result:
        monkeypatch.setattr(StudyStorage, "is_kept", True)
        return examples.faster_result()

    monkeypatch.setattr("autotune.api.tune", tune)
    assert main([*TUNE, "--storage", "postgresql://user:secret@host/name"]) == 0
    out, err = capsys.readouterr()
    assert "See it" not in err
    assert "secret" not in out + err


# --- a baseline that fails ---


def failing_run(kept: StudyStorage) -> None:
    """A run of the whole program on a machine where nothing works."""
    machine, facts = SimulatedMachine(cost=equal_everywhere, fails=lambda config: Outcome.USER_ERROR), gpu_facts()
    with pytest.raises(UserCodeError):
        tuner_of(machine, few_of(facts), facts, host(8)).result(kept)


def test_a_baseline_that_fails_makes_no_file_of_a_run_but_is_there_for_its_page(folder: Path) -> None:
    with closing(StudyStorage(folder / "autotune.study", for_one_run=True)) as kept:
        failing_run(kept)
    assert names(folder) == []
    (baseline,) = there(kept.failed_study).history
    assert (baseline.kind, baseline.outcome) == ("baseline", Outcome.USER_ERROR)


def test_in_a_storage_it_is_kept_and_shown_and_measured_again(folder: Path) -> None:
    for count in (1, 2):
        with closing(StudyStorage(folder / "a.study")) as kept:
            failing_run(kept)
        history = read_study(folder / "a.study").history
        assert [(each.number, each.outcome) for each in history] == [(n, Outcome.USER_ERROR) for n in range(count)]
    result = kept_study(folder / "a.study", model_name="Net", dataset_name="Data")
    assert read_study(folder / "a.study").history == result.history


@pytest.mark.parametrize("report", ["seen.html", "pages/seen.html"])
@pytest.mark.parametrize("error", [UserCodeError("it fails", "their traceback"), NothingFeasibleError("no room")])
def test_a_run_that_fails_writes_its_page_too_and_says_why_even_without_it(
    error: AutotuneError, report: str, folder: Path, monkeypatch: Patch, capsys: Said
) -> None:
    (folder / "pages").mkdir()

    def tune(*, storage: StudyStorage, **arguments: Any) -> Result:
        failed = examples.failed_trial(number=0, kind="baseline", message="no [b]room[/b]", details="in their code")
        storage.open(HERE)
        storage.do(lambda study: study.add_trial(frozen(failed)))
        (folder / "pages").rmdir()
        raise error

    monkeypatch.setattr("autotune.api.tune", tune)
    assert main([*TUNE, "--report", report]) == error.exit_code
    err = capsys.readouterr().err
    assert err.endswith(f"autotune: error: {error}\n")
    if report != "seen.html":
        assert "seen.html: cannot be written" in err
        return
    assert names(folder) == ["seen.html"]
    page = (folder / "seen.html").read_text(encoding="utf-8")
    assert "no [b]room[/b]" in page
    assert "in their code" in page
    assert "Written: seen.html" in err
