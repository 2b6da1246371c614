"""Several tuners of one study on a real server, each a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from autotune import load_config
from autotune.result import RecordedStudy
from autotune.storage.keeper import Keeper
from autotune.storage.read import read_study
from autotune.storage.server import read_database
from autotune.storage.study_records import RECORD, identify
from tests.processes import run_python
from tests.server import PASSWORD, Server, environment, free_port
from tests.simulated import host
from tests.test_command_line import workload
from tests.tuner import FACTS, HEARTBEAT, SPACE

pytestmark = pytest.mark.server

PATIENCE = 120.0
"""Seconds after which something that must happen has not happened."""


def start_python(folder: Path, *arguments: str, errors: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a module in a folder."""
    folder.mkdir(exist_ok=True)
    command, pipes = [sys.executable, "-m", *arguments], {"stdout": subprocess.PIPE, "stderr": errors}
    return subprocess.Popen(command, cwd=folder, env=environment(), text=True, **pipes)


class Tuner:
    """A process, and what it says."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        with (folder / "errors").open("w") as errors:
            self.process = start_python(folder, "tests.tuner", url, json.dumps(options), errors=errors)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.events.append(json.loads(line))

    def said(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]

    @property
    def messages(self) -> str:
        return "\n".join(each["text"] for each in self.said("message"))

    @property
    def ended(self) -> list[dict[str, Any]]:
        """The trials of the search that have ended here."""
        return [each for each in self.said("finished") if each["kind"] != "confirm"]

    @property
    def files(self) -> list[Path]:
        return list(self.folder.glob("*.study"))

    def wait_for_more(self, trials: int) -> None:
        """Let the run go on for so many trials."""
        before = len(self.ended)
        self.wait_for(lambda: len(self.ended) >= before + trials)

    def wait_for(self, claim: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not claim():
            assert time.monotonic() < end, (self.errors, self.events[-3:])
            assert self.process.poll() is None, self.errors
            time.sleep(0.01)

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text()

    def result(self) -> dict[str, Any]:
        """Wait for the end of it."""
        assert self.process.wait(PATIENCE) == 0, self.errors
        self._reader.join()
        assert self.errors == ""
        (result,) = self.said("result")
        return result

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self._reader.join()


Start = Callable[..., Tuner]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts tuners, each in a folder of its own; what still runs at the end is killed."""
    started: list[Tuner] = []

    def start(url: str, **options: Any) -> Tuner:
        started.append(Tuner(url, tmp_path / f"{len(started)}", seed=len(started), **options))
        return started[-1]

    yield start
    for tuner in started:
        tuner.kill()


def trials_in(url: str) -> list[FrozenTrial]:
    """What Optuna itself, and with it the dashboard, sees of the only study behind a URL."""
    database = read_database(url)
    (study,) = database.get_all_studies()
    return database.get_all_trials(study._study_id)


def measured(trials: list[FrozenTrial]) -> list[dict[str, Any]]:
    records = [trial.system_attrs[RECORD] for trial in trials if trial.state.is_finished() and is_record(trial)]
    return [record for record in records if record["kind"] != "skipped"]


def is_record(trial: FrozenTrial) -> bool:
    return RECORD in trial.system_attrs


def repeated(configs: list[Any]) -> list[str]:
    return [config for config, count in Counter(map(json.dumps, configs)).items() if count > 1]


def numbers(study: RecordedStudy) -> list[int]:
    return sorted(trial.number for trial in study.history if trial.kind != "confirm")


def test_three_tuners_share_the_work_and_one_that_is_killed_leaves_nothing_stuck(database: str, start: Start) -> None:
    first, second, victim = (start(database, trials=66, **more) for more in ({}, {}, {"hangs_at": 6}))
    victim.wait_for(lambda: len(victim.said("measuring")) == 6)
    victim.kill()
    results = [first.result(), second.result()]
    trials = trials_in(database)
    done = measured(trials)
    assert len(done) == 66
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.FAIL}
    assert repeated([record["config"] for record in done]) == []
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert all(trial.number == trial.system_attrs[RECORD]["number"] for trial in trials if is_record(trial))
    (left,) = [trial for trial in trials if not is_record(trial) and "outcome" not in trial.user_attrs]
    assert left.state is TrialState.FAIL
    assert f"process {victim.process.pid}" in left.user_attrs["measured by"]
    begun = [trial for tuner in (first, second, victim) for trial in tuner.said("measuring")]
    hung = victim.said("measuring")[-1]["config"]
    assert repeated([trial["config"] for trial in begun]) in ([], [json.dumps(hung)])  # which may be asked again
    assert all(tuner.ended for tuner in (first, second))  # the work was shared
    study = read_study(database)
    assert study.result.samples_per_second in [result["rate"] for result in results]
    assert len({trial.number for trial in study.history}) == len(study.history)
    confirmed = [len(tuner.said("finished")) - len(tuner.ended) for tuner in (first, second)]
    assert len(study.history) - len(numbers(study)) == sum(confirmed) > 0  # each confirms on its own machine


def test_a_tuner_waits_for_the_baseline_and_takes_it_over_from_one_that_is_gone(database: str, start: Start) -> None:
    gone = start(database, trials=3, hangs_at=1)
    gone.wait_for(lambda: gone.said("measuring"))
    other = start(database, trials=3)
    message = f"process {gone.process.pid}: measuring the baseline; waiting for it"
    other.wait_for(lambda: message in other.messages)
    time.sleep(HEARTBEAT.grace + 1)
    assert not other.said("measuring")  # it lives
    gone.kill()
    assert other.result()["reason"] == "3 trials were asked for"
    assert [trial.state for trial in trials_in(database)][:2] == [TrialState.FAIL, TrialState.COMPLETE]
    assert [record["kind"] for record in measured(trials_in(database))] == ["baseline", "search", "search"]


def test_what_is_interrupted_is_given_back_at_once(database: str, start: Start) -> None:
    tuner = start(database, trials=9, hangs_at=3)
    tuner.wait_for(lambda: len(tuner.said("measuring")) == 3)
    assert TrialState.RUNNING in [trial.state for trial in trials_in(database)]
    assert read_study(database).result is None  # what runs is in no one's way
    tuner.process.send_signal(signal.SIGINT)
    assert tuner.result()["reason"] == "interrupted by the user"
    assert [trial.state for trial in trials_in(database)] == [TrialState.COMPLETE] * 2 + [TrialState.FAIL]
    assert trials_in(database)[2].user_attrs["outcome"] == "withdrawn"


def test_a_study_goes_on_where_a_tuner_was_killed(database: str, start: Start) -> None:
    victim = start(database, trials=9, hangs_at=4)
    victim.wait_for(lambda: len(victim.said("measuring")) == 4)
    victim.kill()
    other = start(database, trials=9)
    other.result()
    assert "continuing postgresql://tuner:***@" in other.messages
    assert len(measured(trials_in(database))) == 9
    assert repeated([record["config"] for record in measured(trials_in(database))]) == []
    assert TrialState.RUNNING not in [trial.state for trial in trials_in(database)]


# --- a server that goes away ---


def lose(server: Server, tuner: Tuner) -> None:
    """Stop the server in the middle of a run, and let the run go on for some trials; it stays alone."""
    tuner.wait_for(lambda: len(tuner.ended) >= 4)
    server.stop()
    tuner.wait_for(lambda: "the run goes on without it" in tuner.messages)
    tuner.wait_for_more(3)


def test_a_server_that_is_frozen_keeps_no_tuner_waiting(server: Server, database: str, start: Start) -> None:
    tuner = start(database, trials=25, answer=2.0)
    tuner.wait_for(lambda: len(tuner.ended) >= 4)
    server.freeze()
    tuner.wait_for(lambda: "the run goes on without it" in tuner.messages)
    tuner.wait_for_more(3)
    assert re.search("no answer within 2 s|connection timeout expired", tuner.messages)  # by what was asked first
    server.thaw()
    tuner.result()
    (path,) = tuner.files
    assert numbers(read_study(path)) == sorted(trial["number"] for trial in tuner.ended)
    assert len(tuner.ended) == 25


def test_a_server_that_stays_away_leaves_the_study_in_a_file(server: Server, database: str, start: Start) -> None:
    tuner = start(database, trials=12)
    lose(server, tuner)
    notes = tuner.result()["notes"]
    (path,) = tuner.files
    (note,) = [note for note in notes if "could not be written there" in note]
    assert f"autotune report {path.name} shows it, --storage {path.name} continues it" in note
    assert PASSWORD not in json.dumps(tuner.events)
    study = read_study(path)
    assert len(study.history) == len(tuner.said("finished"))
    assert len(numbers(study)) == len(set(numbers(study))) == 12
    assert study.result is not None
    keeper = Keeper(path)
    kept = keeper.open(identify(FACTS, host(), SPACE.fingerprint))
    keeper.close()
    assert len(kept.trials) == 12
    assert kept.probes


def test_a_tuner_that_is_killed_while_the_server_is_away_loses_nothing(
    server: Server, database: str, start: Start
) -> None:
    tuner = start(database, trials=30)
    lose(server, tuner)
    tuner.kill()
    (path,) = tuner.files
    assert numbers(read_study(path)) == sorted(trial["number"] for trial in tuner.ended)


# --- the command line ---

FLAGS = ("--device", "cpu", "--trials", "4", "--batch-size", "8", "--baseline", "batch_size=8", "--quiet")
KNOBS = ("--num-workers", "0..2", "--prefetch-factor", "2", "--threads", "1", "--amp", "off", "--budget", "30s")


def test_two_command_lines_fill_one_study_and_each_writes_its_answer(database: str, tmp_path: Path) -> None:
    flags = (*workload("sleeping"), *FLAGS, *KNOBS, "--storage", database)
    runs = [start_python(tmp_path / name, "autotune", *flags) for name in ("one", "other")]
    for run in runs:
        out, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors
        assert errors == ""
        assert 'load_config("autotune.yaml")' in out
    for name in ("one", "other"):
        assert load_config(tmp_path / name / "autotune.yaml").measured
        assert [path.name for path in (tmp_path / name).iterdir()] == ["autotune.yaml"]
    done = measured(trials_in(database))
    assert [record["kind"] for record in done][:1] == ["baseline"]
    assert repeated([record["config"] for record in done]) == []
    assert TrialState.RUNNING not in {trial.state for trial in trials_in(database)}
    report = start_python(tmp_path, "autotune", "report", database)
    _, errors = report.communicate(timeout=120)
    assert report.returncode == 0, errors
    assert PASSWORD not in errors + next(tmp_path.glob("*.html")).read_text()


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("password", 'FATAL: password authentication failed for user "tuner"'),
        ("server", "Connection refused Is the server running on that host and accepting TCP/IP connections?"),
        ("driver", "its driver is missing: pip install 'torch-autotune[postgresql]'"),
    ],
)
def test_what_keeps_from_the_server_is_one_line_before_anything_is_measured(
    server: Server, database: str, tmp_path: Path, problem: str, said: str
) -> None:
    url = {
        "password": server.url("postgres", password="another-s3cret"),
        "server": database.replace(f":{server.port}/", f":{free_port()}/"),
    }.get(problem, database)
    hidden = "import sys; sys.modules['psycopg'] = None; " if problem == "driver" else "import sys; "
    code = f"{hidden}from autotune.cli import main; sys.exit(main())"
    flags = (*workload("small"), *(flag for flag in FLAGS if flag != "--quiet"), *KNOBS, "--storage", url)
    done = run_python("-c", code, *flags, folder=tmp_path, seconds=120.0, **environment())
    assert done.returncode == 5, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("autotune: error: --storage postgresql://tuner:***@127.0.0.1:")
    assert said in done.stderr
    assert "s3cret" not in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())
