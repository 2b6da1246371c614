from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial

from autotune.config import Config
from autotune.errors import StorageError
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.records import SCHEMA, Attempt, Probe, Trial
from autotune.storage.identity import Identity, identify
from autotune.storage.open import StudyStorage
from autotune.storage.trials import RECORD, frozen_trial, history_of, looks_of, write_look
from tests import examples
from tests.simulated import gpu_facts, host, space_of

PARTS = {"records": str(SCHEMA), "workload": "abc", "torch": "2.13.0", "CPU": "a CPU"}
HERE = Identity(parts=PARTS)
PROBE = Probe(part="compute", config=Config(), attempt=Attempt(outcome=Outcome.OK, payload=examples.compute_probe()))


def trial(number: int, **changes: Any) -> Trial:
    kind = "search" if number else "baseline"
    return examples.trial(number=number, kind=kind, config=Config(batch_size=32 + number), **changes)


def frozen(record: Trial) -> FrozenTrial:
    settings = {"batch_size": record.config.batch_size}
    return frozen_trial(record, settings, {"batch_size": IntDistribution(1, 4096)}, -0.5)


@contextmanager
def opened(
    location: Path | str, identity: Identity = HERE, messages: Messages | None = None, **options: Any
) -> Iterator[StudyStorage]:
    storage = StudyStorage(location, **options)
    try:
        yield storage.open(identity, messages=messages)
    finally:
        storage.close()


def add(storage: StudyStorage, *numbers: int) -> None:
    for number in numbers:
        storage.do(lambda study, number=number: study.add_trial(frozen(trial(number))))


def history_at(location: Path | str, **options: Any) -> tuple[Trial, ...]:
    with opened(location, **options) as storage:
        return history_of(storage.trials)


def batches_at(location: Path | str, **options: Any) -> list[int]:
    """The numbers that the trials were made with: their batch sizes tell."""
    return [each.config.batch_size - 32 for each in history_at(location, **options)]


def keep(location: Path | str, *numbers: int, finish: bool = False, **options: Any) -> None:
    with opened(location, **options) as storage:
        add(storage, *numbers)
        if finish:
            storage.finish()
        assert storage.failure is None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.study"


@pytest.fixture(params=["file", "database"])
def location(request: pytest.FixtureRequest, path: Path) -> Path | str:
    return path if request.param == "file" else f"sqlite:///{path.with_suffix('.db')}"


def test_everything_that_was_kept_is_there_again(location: Path | str) -> None:
    told: list[Progress] = []
    assert history_at(location, messages=Messages(on_progress=told.append)) == ()
    confirmation = examples.trial(number=1, kind="confirm", round="a-0", entry=0, planned=8)
    with opened(location) as storage:
        add(storage, 0)
        storage.do(lambda study: study.add_trial(frozen(confirmation)))
        storage.do(lambda study: write_look(study, PROBE))
        add(storage, 2)
    with opened(location, messages=Messages(on_progress=told.append)) as storage:
        assert history_of(storage.trials) == (trial(0), trial(2), confirmation)
        assert looks_of(storage.attributes, {}) == (PROBE,)
    (said,) = told
    assert "2 trials, the last of 20" in str(said.message)


def test_a_look_that_was_taken_twice_is_kept_once_and_a_failed_one_beside_the_next(location: Path | str) -> None:
    failed = replace(PROBE, part="numerics", attempt=Attempt(outcome=Outcome.TIMEOUT, message="too long"))
    with opened(location) as storage:
        for probe in (PROBE, failed, failed, PROBE, replace(PROBE, config=Config(amp="bf16"))):
            storage.do(lambda study, probe=probe: write_look(study, probe))
        found = looks_of(storage.attributes, {})
    assert [(each.part, each.config.amp) for each in found].count(("compute", "off")) == 1
    assert len(found) == 4


# --- whose study it is ---


def test_a_named_study_goes_on_for_ever_and_what_hears_of_it_may_fail(location: Path | str) -> None:
    keep(location, 0, 1, finish=True)

    def broken(progress: Progress) -> None:
        raise ValueError("a callback of the user's")

    with pytest.raises(ValueError, match="a callback"), opened(location, messages=Messages(on_progress=broken)):
        pass
    assert batches_at(location) == [0, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"torch": "2.12.0"}, "made with torch 2.12.0, here is 2.13.0: it is not continued, a new study begins"),
        ({"records": "1"}, "made with another version of autotune: it is not continued"),
        ({"workload": "other"}, "made with another model, dataset or training code: it is not"),
        ({"CPU": "x", "torch": "1"}, "made with torch 1, here is 2.13.0; CPU x, here is a CPU: it is not"),
    ],
)
def test_a_study_of_something_else_is_not_continued_and_the_difference_is_said(
    path: Path, change: dict[str, str], said: str
) -> None:
    keep(path, 0, 1, identity=Identity(parts=PARTS | change))
    told: list[Progress] = []
    messages = Messages(on_progress=told.append)
    with opened(path, messages=messages) as storage:
        assert storage.trials == ()
        assert messages.notes == tuple(progress.message for progress in told)
        assert len(messages.notes) == 1
        assert said in messages.notes[0]
        add(storage, 0)
    assert batches_at(path) == [0]
    assert batches_at(path, identity=Identity(parts=PARTS | change)) == [0, 1]  # nothing is lost


@pytest.mark.parametrize(
    ("facts", "part"),
    [
        (gpu_facts(fingerprint="f" * 16), "workload"),
        (gpu_facts(device_name="another"), "device"),
        (gpu_facts(versions={"python": "3.11.9", "torch": "2.12.0"}), "torch"),
        (gpu_facts(versions={"python": "3.12.1", "torch": "2.13.0"}), "Python"),
    ],
)
def test_an_identity_tells_apart_what_must_not_be_mixed(facts: Any, part: str) -> None:
    here, there = (identify(each, host(8), space_of(gpu_facts()).fingerprint) for each in (gpu_facts(), facts))
    assert here.name != there.name
    assert [name for name in here.parts if here.parts[name] != there.parts[name]] == [part]


# --- the file of one command ---


def test_the_file_of_one_command_goes_where_nothing_was_measured(path: Path) -> None:
    keep(path, for_one_run=True)
    assert not path.exists()
    keep(path, 0, for_one_run=True)
    assert path.exists()


def test_a_run_that_was_cut_off_goes_on_and_one_that_ended_begins_anew(path: Path) -> None:
    keep(path, 0, 1, for_one_run=True)
    assert batches_at(path, for_one_run=True) == [0, 1]
    keep(path, 2, for_one_run=True, finish=True)
    with opened(path, for_one_run=True) as storage:
        assert storage.trials == ()
        add(storage, 0)
    assert batches_at(path, for_one_run=True) == [0]
    assert optuna_studies(path) == [HERE.name]  # the finished one was replaced


def optuna_studies(path: Path) -> list[str]:
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.get_all_study_names(optuna.storages.JournalStorage(backend))


def test_an_unfinished_study_of_another_workload_stays_in_the_file(path: Path) -> None:
    other = Identity(parts=PARTS | {"workload": "other"})
    keep(path, 0, 1, identity=other, for_one_run=True)
    keep(path, 0, for_one_run=True, finish=True)
    keep(path, 0, for_one_run=True)
    assert batches_at(path, identity=other, for_one_run=True) == [0, 1]
    assert batches_at(path, for_one_run=True) == [0]


def test_the_finished_study_of_another_command_is_moved_aside_and_that_of_the_same_is_replaced(path: Path) -> None:
    other, notes = Identity(parts=PARTS | {"workload": "other"}), list[str]()
    keep(path, 0, 1, for_one_run=True, command="a", finish=True)
    kept = path.read_bytes()
    aside = path.with_name("a.2.study")
    path.with_name("a.1.study").symlink_to("nowhere")  # a name that is taken
    messages = Messages()
    keep(path, 0, for_one_run=True, command="b", identity=other, messages=messages, finish=True)
    notes += messages.notes
    assert notes == [f"{path} was the study of another command: it is kept as {aside}, and a new one begins"]
    assert aside.read_bytes() == kept
    changed = Identity(parts=PARTS | {"workload": "the same script, edited"})
    keep(path, 0, 1, 2, for_one_run=True, command="b", identity=changed, finish=True)
    assert optuna_studies(path) == [changed.name]
    assert sorted(each.name for each in path.parent.iterdir()) == ["a.1.study", "a.2.study", "a.study"]


def test_where_the_same_workload_is_another_commands_its_finished_study_is_kept(path: Path) -> None:
    keep(path, 0, 1, for_one_run=True, command="a", finish=True)
    keep(path, 0, for_one_run=True, command="b")
    assert batches_at(path.with_name("a.1.study")) == [0, 1]
    assert batches_at(path, for_one_run=True, command="b") == [0]


def test_a_link_to_a_study_stays_and_the_study_is_kept_where_it_was(path: Path) -> None:
    link, place = path.with_name("link.study"), path.with_name("place")
    place.mkdir()
    link.symlink_to(place / "a.study")
    keep(link, for_one_run=True)
    assert list(place.iterdir()) == []
    for command in ("a", "a", "b"):
        keep(link, 0, for_one_run=True, command=command, finish=True)
        assert link.is_symlink()
    assert sorted(each.name for each in place.iterdir()) == ["a.1.study", "a.study"]


# --- damage ---


@pytest.mark.machine
def test_wherever_the_last_trial_was_cut_off_the_others_are_there_and_the_study_goes_on(path: Path) -> None:
    keep(path, 0, 1)
    whole = path.stat().st_size
    keep(path, 2)
    content = path.read_bytes()
    for cut in range(whole, len(content)):
        path.write_bytes(content[:cut])
        keep(path, 3)
        assert batches_at(path) == [0, 1, 3]
    assert [each.name for each in path.parent.iterdir()] == ["a.study"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"op_c', b"\0" * 4096], ids=["empty", "one", "torn", "zeros"])
def test_a_file_whose_first_line_was_cut_off_is_a_new_one(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    keep(path, 0)
    assert batches_at(path) == [0]


@pytest.mark.parametrize("for_one_run", [False, True])
def test_a_damaged_line_is_said_and_the_file_stays_as_it_is(path: Path, for_one_run: bool) -> None:
    keep(path, 0, 1, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    (damaged,) = [index for index, line in enumerate(lines) if b'"batch_size":33' in line]
    lines[damaged] = lines[damaged][:100] + b"\xff\0" + lines[damaged][102:]
    content = b"".join(lines) + b"half a li"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=f"line {damaged + 1} is damaged; move it away, or name another file"):
        keep(path, 3, for_one_run=for_one_run)
    assert [each.name for each in path.parent.iterdir()] == ["a.study"]
    assert path.read_bytes() == content


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    record = next(line["system_attrs"][RECORD] for line in lines if RECORD in line.get("system_attrs", {}))
    change(record)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def numbers(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = record["attempt"]["payload"]["measurement"]
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record["attempt"].update(payload=3), "payload: is 3; allowed: one of measurement"),
        (lambda record: numbers(record).update(samples_per_second="x"), "samples_per_second: is 'x'"),
        (lambda record: numbers(record).update(samples_per_second=-1), "-1.0 was never measured"),
        (lambda record: numbers(record).update(memory_limit_bytes=10**400), "memory_limit_bytes: is 1000"),
        (lambda record: numbers(record).pop("steps"), "lacks one of steps"),
        (lambda record: record.update(config={"dataloader": {"batch_size": -1}}), "allowed: a configuration"),
        (lambda record: record.update(kind="search"), "the baseline's trial is missing"),
        (lambda record: record.update(surprise=1), "unknown field 'surprise'"),
    ],
)
def test_a_record_that_is_none_is_a_clear_error(
    path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    keep(path, 0, 1)
    changed(path, change)
    before = path.read_bytes()
    with pytest.raises(StorageError, match="cannot be opened") as caught, opened(path):
        pass
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


NO_OPERATIONS = [
    *(b'{"op_code":99}', b'{"op_code":4}', b'{"op_code":"x","worker_id":{}}', b'{"op_code":null}'),
    b'{"op_code":8,"trial_id":77,"user_attr":{}}',
    b'{"op_code":0,"study_name":["a"],"directions":5,"worker_id":"w"}',
]


@pytest.mark.parametrize("line", NO_OPERATIONS)
def test_an_operation_that_is_none_is_a_clear_error(path: Path, line: bytes) -> None:
    keep(path, 0)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(StorageError, match="cannot be opened"), opened(path):
        pass


NO_STUDIES = [("a.study", content) for content in (b"these are my notes\n", b"SQLite format 3\0", b"notes")]
NO_STUDIES += [("labels.dat", content) for content in (b"{", b"\0" * 4096)]


@pytest.mark.parametrize(("name", "content"), NO_STUDIES)
@pytest.mark.parametrize("for_one_run", [False, True])
def test_a_file_that_is_no_study_is_refused_and_left_alone(
    tmp_path: Path, name: str, content: bytes, for_one_run: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"the file exists and is not a study.*another file"):
        history_at(path, for_one_run=for_one_run)
    assert path.read_bytes() == content


def test_a_file_that_is_far_too_large_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.storage.journal.MAX_BYTES", 100)
    path.write_bytes(b'{"op_code":0}\n' * 100)
    with pytest.raises(StorageError, match="larger than 100 bytes"):
        history_at(path)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        *((each, each) for each in ("missing/folder/a.study", ".", "sqlite:////no/folder/s.db", "/dev/null")),
        ("nosuch://me:secret@host/db", "nosuch://me:***@host/db"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_named_without_its_password(
    location: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=re.escape(f"--storage {shown}: cannot be opened: ")) as caught:
        history_at(location)
    assert "secret" not in str(caught.value)


def test_a_damaged_database_is_a_clear_error(path: Path) -> None:
    keep(f"sqlite:///{path}", 0)
    path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 20_000)
    with pytest.raises(StorageError, match="cannot be opened"):
        history_at(f"sqlite:///{path}")


# --- what fails while the search goes on ---


@contextmanager
def full_disk(largest: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_is_said_once_and_nothing_is_torn_or_lost(path: Path) -> None:
    said: list[Progress] = []
    with opened(path, messages=Messages(on_progress=said.append)) as storage:
        add(storage, 0)
        size = path.stat().st_size
        with full_disk(size + 500):
            add(storage, 1)
        assert storage.failure == f"the study could not be saved: {path}: {os.strerror(errno.EFBIG)}"
        add(storage, 2)
        assert not storage.is_kept
        assert [each.batch_size - 32 for each in (t.config for t in history_of(storage.trials))] == [0, 1, 2]
    assert [each.message for each in said] == [storage.failure]
    assert path.stat().st_size == size
    assert batches_at(path) == [0]


@pytest.mark.parametrize("vanish", [Path.unlink, lambda path: path.rename(f"{path}.moved")])
def test_a_file_that_is_taken_away_is_said_and_not_made_again(path: Path, vanish: Callable[[Path], object]) -> None:
    with opened(path) as storage:
        add(storage, 0)
        vanish(path)
        add(storage, 1)
        assert "was removed or replaced meanwhile" in str(storage.failure)
        assert len(history_of(storage.trials)) == 2
    assert not path.exists()


def test_a_database_that_is_gone_goes_on_in_a_file(path: Path) -> None:
    with opened(f"sqlite:///{path}", local=path.with_name("autotune.study")) as storage:
        add(storage, 0)
        path.write_bytes(b"\xff" * 9000)
        add(storage, 1)
        assert "the run goes on without it" in str(storage.failure)
    (local,) = path.parent.glob("autotune-*.study")
    assert f"--storage {local} continues it" in str(storage.failure)
    assert batches_at(local) == [0, 1]


def test_what_cannot_be_created_where_nobody_named_it_is_a_note(tmp_path: Path) -> None:
    storage = StudyStorage(tmp_path / "missing" / "a.study", for_one_run=True)
    storage.open(HERE)
    add(storage, 0)
    assert storage.failure == f"the study could not be saved: {tmp_path}/missing/a.study: No such file or directory"
    assert len(storage.trials) == 1


# --- other processes ---


def test_a_second_run_is_told_who_holds_the_file(path: Path) -> None:
    with opened(path) as storage:
        with pytest.raises(StorageError, match=f"process {os.getpid()} is writing it; wait until that has ended"):
            history_at(path)
        add(storage, 0)
    assert batches_at(path) == [0]


HOLDING = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from autotune.storage.journal import StudyFile
    file = StudyFile(Path(sys.argv[1]))
    Path(sys.argv[1] + ".lock").symlink_to(sys.argv[1])  # as Optuna locks
    print("locked", flush=True)
    time.sleep(600)
    """
)


def test_a_run_that_was_killed_holds_nothing(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(StorageError, match=f"process {process.pid} is writing it"):
            history_at(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        keep(path, 0)  # at once, in spite of the lock that Optuna would wait half a minute for
    assert batches_at(path) == [0]


def test_a_study_that_was_closed_is_free_although_a_forked_process_lives_on(path: Path) -> None:
    with opened(path) as storage:
        add(storage, 0)
        child = os.fork()
        if not child:
            signal.pause()
    try:
        assert batches_at(path) == [0]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_keeps_studies_too(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    keep(path, 0)
    assert batches_at(path) == [0]
