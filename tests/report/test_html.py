"""The report as text: what is in it, and what never is."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autotune.config import load_config
from autotune.diagnosis.findings import Cause, Finding
from autotune.errors import ConfigFileError, UsageError
from autotune.exports import export
from autotune.outcome import Outcome
from autotune.records import Trial
from autotune.report.html import html_report
from autotune.report.result import RecordedStudy, Result
from autotune.report.table import COLUMNS
from autotune.report.text import config_text, step_text
from autotune.search.read import read_study
from tests import examples
from tests.report.results import kept_study, only_failures, simulated_result, unfinished
from tests.search.there import there

EVIL = "</script></style><script>hacked()</script><img src=x onerror=hacked()>\"'{{ 7 * 7 }}"


class Page(HTMLParser):
    """The elements of a page, the text of its scripts and of everything else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.source = text
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.cdata_elem:
            self.scripts[-1] += data
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text_of(self, name: str) -> str:
        return html.unescape(there(re.search(rf'id="{name}"[^>]*>([^<]*)<', self.source))[1])

    def trials(self) -> list[str]:
        return re.findall(r"<tr data-outcome[^>]*>\s*<t[dh][^>]*>([^<]*)<", self.source)


def page_of(result: Result) -> Page:
    return Page(html_report(RecordedStudy.of(result)))


def evil_result() -> Result:
    """A result in which every text that comes from elsewhere is markup."""
    result = simulated_result()
    finding = Finding(cause=Cause.DECODING, is_limit=True, what=EVIL, evidence=(EVIL,), advice=EVIL)
    trial = examples.failed_trial(message=EVIL, details=EVIL)
    return replace(
        result,
        facts=replace(result.facts, model_name=EVIL, dataset_name=EVIL, device_name=EVIL, fingerprint=EVIL),
        host=replace(result.host, cpu_model=EVIL, platform=EVIL, versions={EVIL: EVIL}),
        stop_reason=EVIL,
        notes=(EVIL,),
        findings=(finding,),
        history=(*result.history, trial),
        config=replace(result.config, measured={"bottleneck": EVIL}, made_on={"device": EVIL, "date": EVIL}),
    )


def test_only_the_two_scripts_of_the_page_may_run() -> None:
    page = page_of(simulated_result())
    (meta,) = [meta for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    policy, scripts = str(meta["content"]), zip(page.scripts, page.all("script"), strict=True)
    running = [script for script, attributes in scripts if attributes.get("type") != "application/json"]
    assert len(running) == 2
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in running]
    assert policy.startswith("default-src 'none';")
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_what_the_users_code_calls_itself_is_text() -> None:
    page, known = page_of(evil_result()), page_of(simulated_result())
    assert len(page.all("script")) == len(known.all("script"))
    assert not page.all("img")
    assert not [attributes for _, attributes in page.tags if any(name.startswith("on") for name in attributes)]
    assert page.text.count(EVIL) >= 10
    summary = Page(evil_result()._repr_html_())
    assert not summary.all("script") + summary.all("img")
    assert EVIL in summary.text


SAID = {
    "faster": (
        "2.31 times the samples a second",
        "95 % interval 2.18 to 2.45, confirmed in 3 rounds of fresh processes.",
        "was 1,234",
        "2,853",
        "3.0 GiB",
        "at most 4\N{NO-BREAK SPACE}% with 1 of 2 threads with another batch size, precision or thread count the",
        "the model's own compute",
        "loader = DataLoader(",
        "CUDA out of memory.",
    ),
    "no_gain": ("No gain above 3 %", "Keep your settings.", "Your configuration"),
    "undecided": (
        "Probably about 2.3 times the samples a second",
        "3 rounds, no proof yet; 95 % interval 0.97 to 3.10.",
        "More time (--budget 1m) and a quieter machine (",
    ),
}


@pytest.mark.parametrize("verdict", SAID)
def test_the_page_says_what_was_slow_what_was_gained_and_what_it_costs(verdict: str) -> None:
    left = {"remaining_gain": 354.75} if verdict == "faster" else {}
    text = page_of(getattr(examples, f"{verdict}_result")(**left)).text
    assert [said for said in SAID[verdict] if said not in text] == []


def test_every_trial_is_a_row_and_numbers_sort_as_numbers() -> None:
    result = simulated_result()
    page = page_of(result)
    rows = [attributes for tag, attributes in page.tags if tag == "tr" and "data-outcome" in attributes]
    trials = sorted(result.history, key=lambda trial: trial.number)
    assert [row["data-outcome"] for row in rows] == [str(trial.outcome) for trial in trials]
    keys = [cell["data-key"] for cell in page.all("td") if cell.get("data-key")]
    assert len(keys) > 5 * len(rows)
    assert all(re.fullmatch(r"-?[0-9.e+-]+", str(key)) for key in keys)


def test_a_study_that_is_not_finished_shows_what_there_is(tmp_path: Path) -> None:
    kept_study(tmp_path / "a.study")
    study = unfinished(tmp_path / "a.study")
    assert study.result is None
    page = Page(html_report(study))
    assert all(text in page.text for text in ("No answer yet", "the same command continues it", "a GPU"))
    assert len(page.all("figure")) == 1


def test_a_study_of_failures_alone_says_what_went_wrong() -> None:
    page = Page(html_report(only_failures()))
    assert "Nothing could be measured so far; the errors are below." in page.text
    assert re.search(r"device_oom\s*· 3 times", page.text)
    assert "their traceback" in page.text
    assert not page.all("figure")


def page_of_history(*history: Trial) -> Page:
    return Page(html_report(replace(only_failures(), history=history)))


def test_the_config_is_shown_as_it_is_written(tmp_path: Path) -> None:
    for name in ("tuned.yaml", "tuned.json"):
        result = examples.faster_result()
        page = Page(html_report(RecordedStudy.of(result, name)))
        (tmp_path / name).write_text(page.text_of("config"), encoding="utf-8")
        assert load_config(tmp_path / name) == result.config


def test_both_answers_are_there_to_use_the_one_at_the_top_of_the_file_first() -> None:
    result = simulated_result()
    other = there(result.alternative)
    for name in ("tuned.yaml", 'a")b.json'):
        page = Page(html_report(RecordedStudy.of(result, name)))
        assert list(re.findall(r'data-copy="([^"]*)"', page.source)) == ["snippet", "other-snippet", "config"]
        for code, answer in (("snippet", result), ("other-snippet", other)):
            text = page.text_of(code)
            compile(text, code, "exec")
            assert text == export(answer.config, "python").text
            assert config_text(answer.config) in page.text
    assert "--objective same-batch" in page.text
    ranks = replace(other, config=replace(other.config, ranks=2))
    text = Page(html_report(RecordedStudy.of(replace(result, alternative=ranks)))).text_of("other-snippet")
    assert "torchrun --standalone --nproc-per-node 2 train.py" in text


def test_one_answer_is_shown_once() -> None:
    result = simulated_result()
    for other in (None, replace(result, alternative=None), replace(result, config=result.baseline, alternative=None)):
        assert "other-snippet" not in page_of(replace(result, alternative=other)).source


def test_a_script_is_trained_as_it_is_with_either_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, path = simulated_result(), "it's tuned.yaml"
    script = replace(result.facts, loader_site="train.py:3")
    page = Page(html_report(RecordedStudy.of(replace(result, facts=script), path)))
    apply = "python -m autotune apply"
    assert page.text_of("snippet").startswith(f"{apply} {shlex.quote(path)} SCRIPT")
    made, applied = page.text_of("other-snippet").splitlines()
    assert applied.startswith(f"{apply} same-batch.yaml SCRIPT")
    monkeypatch.chdir(tmp_path)
    replace(result.config, made_on={}).save(path)
    program, flag, code = shlex.split(made)
    assert (program, flag) == ("python", "-c")
    exec(code, {})
    assert load_config("same-batch.yaml") == there(result.alternative).config


def test_trials_stand_in_their_order_one_that_was_disturbed_is_no_failure_and_without_one_it_is_a_page_too() -> None:
    page = page_of_history(*(examples.trial(number=number) for number in (0, 3, 1, 2)))
    assert page.trials() == ["0", "1", "2", "3"]
    text = page_of_history(examples.trial(outcome=Outcome.SUSPECT)).text
    assert "What was measured so far:" in text
    assert "went wrong" not in text
    empty = page_of_history()
    assert "There is none yet." in empty.text
    assert not empty.all("figure")


def test_long_steps_are_shown_in_seconds() -> None:
    assert [step_text(seconds) for seconds in (0.0123, 0.5, 1.0, 12.34)] == ["12.3 ms", "500 ms", "1 s", "12.3 s"]


def test_a_kept_study_gives_the_page_of_its_result(tmp_path: Path) -> None:
    result = kept_study(tmp_path / "a.study")
    assert (study := read_study(tmp_path / "a.study")).result == result
    assert html_report(study) == html_report(RecordedStudy.of(result))


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    result = simulated_result()
    result.save_report(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html_report(RecordedStudy.of(result))
    with pytest.raises(ConfigFileError, match="cannot be written: No such file or directory"):
        result.save_report(tmp_path / "no" / "report.html")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_trials_are_written_as_a_table(tmp_path: Path, suffix: str) -> None:
    import pandas

    result = simulated_result()
    result.save_trials(tmp_path / f"trials{suffix}")
    frame = (pandas.read_csv if suffix == ".csv" else pandas.read_parquet)(tmp_path / f"trials{suffix}")
    assert list(frame.columns) == list(result.trials.columns) == list(COLUMNS)
    assert result.trials.attrs["units"]["peak_memory_bytes"] == "bytes"
    assert list(frame["number"]) == [trial.number for trial in result.history]
    assert list(frame["outcome"]) == [str(trial.outcome) for trial in result.history]
    measured = [trial.rate for trial in result.history if trial.outcome is Outcome.OK]
    assert list(frame.loc[frame["outcome"] == "ok", "samples_per_second"]) == pytest.approx(measured)
    with pytest.raises(UsageError, match=r"trials are written as \.csv or \.parquet"):
        simulated_result().save_trials(tmp_path / "trials.xlsx")
