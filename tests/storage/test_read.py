"""Studies that are read while they lie where they were kept: nothing is changed, nothing is created."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from autotune.encoding import to_json
from autotune.errors import StorageError, UsageError
from autotune.records import EARLIEST_SCHEMA, SCHEMA, Attempt, Outcome
from autotune.storage.read import read_study
from autotune.storage.shared_keeper import open_keeper
from autotune.storage.study_records import (
    CONFIRMATION,
    LOOK,
    RESULT,
    Identity,
    append,
    key_of,
    numbered_apart,
    read,
    read_result,
    without_password,
    write_result,
)
from tests import examples
from tests.report.results import kept_study
from tests.storage.test_keeper import HERE, PROBE, frozen, keep, opened, trial

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.study"


@pytest.fixture(params=["", "sqlite:///"], ids=["file", "database"])
def location(request: pytest.FixtureRequest, path: Path) -> str:
    return f"{request.param}{path}"


def test_a_study_is_read_as_it_was_kept(location: str) -> None:
    keep(location, 0, 1, 2)
    study = read_study(location)
    assert study.history == (trial(0), trial(1), trial(2))
    assert study.result is None
    assert study.location == location
    assert study.made_on == dict(HERE.parts)


def test_the_result_of_a_run_is_there_to_the_last_bit(path: Path) -> None:
    assert kept_study(path) == read_study(path).result


def test_reading_neither_waits_for_a_run_nor_changes_its_file(path: Path) -> None:
    with opened(path) as (keeper, _):
        keeper.trial(frozen(trial(0)))
        before = path.read_bytes() + b'{"op_code": 4, "half a l'  # as a run that is writing now
        path.write_bytes(before)
        assert read_study(path).history == (trial(0),)
        assert path.read_bytes() == before


def test_the_newest_of_several_is_read_or_the_one_that_is_named(location: str) -> None:
    keep(location, 0, 1)
    elsewhere = Identity(parts={**HERE.parts, "CPU": "another"})
    keep(location, 0, 1, 2, identity=elsewhere)
    first, second = f"{HERE.name}-1", f"{elsewhere.name}-1"
    studies = [read_study(location, name) for name in (None, first, second)]
    assert [len(study.history) for study in studies] == [3, 2, 3]
    assert studies[0].others == (first,)
    with pytest.raises(StorageError, match=f"holds no study x; there are {first}, {second}"):
        read_study(location, "x")


def test_a_study_of_older_records_is_shown_and_one_of_unknown_records_is_refused(tmp_path: Path) -> None:
    for version in range(EARLIEST_SCHEMA - 1, SCHEMA + 2):
        path = tmp_path / f"{version}.study"
        keep(str(path), 0, identity=Identity(parts={**HERE.parts, "records": str(version)}))
        if EARLIEST_SCHEMA <= version <= SCHEMA:
            assert read_study(path).history == (trial(0),)
        else:
            with pytest.raises(StorageError, match="was written by another version of autotune"):
                read_study(path)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*/recorded/*.study")), ids=lambda path: path.parts[-3])
def test_every_recorded_study_can_be_shown(path: Path) -> None:
    study = read_study(path)
    assert study.result is not None
    assert len(study.history) >= 10


def test_what_is_not_there_is_said_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a\.study: cannot be read: No such file or directory"):
        read_study(tmp_path / "a.study")
    with pytest.raises(StorageError, match=r"a\.db: cannot be read: there is no such file"):
        read_study(f"sqlite:///{tmp_path / 'a.db'}")
    assert list(tmp_path.iterdir()) == []


def test_a_database_whose_tables_are_being_made_holds_no_study_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    def race(*_: object, **options: object) -> None:
        raise IntegrityError("CREATE TABLE alembic_version", None, Exception("duplicate key"))

    monkeypatch.setattr("autotune.storage.server.RDBStorage", race)
    with pytest.raises(StorageError, match="holds no study of autotune"):
        read_study("postgresql://localhost/studies")


def test_what_is_no_study_is_said(path: Path) -> None:
    path.write_text("batch_size: 3\n")
    with pytest.raises(StorageError, match="the file exists and is not a study"):
        read_study(path)
    path.write_bytes(b"")
    with pytest.raises(StorageError, match=r"a\.study: "):
        read_study(f"sqlite:///{path}")
    with pytest.raises(StorageError, match=r"cannot be read"):
        read_study("nothing://user:secret@host/name")


@pytest.mark.parametrize("zones", [("Etc/GMT-14", "Etc/GMT+12"), ("Etc/GMT+12", "Etc/GMT-14")])
def test_the_newest_study_is_the_one_that_ended_last_wherever_its_host_is(
    zones: tuple[str, str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    names = []
    try:
        for number, zone in enumerate(zones):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TZ", zone)
                time.tzset()
                identity = Identity(parts={**HERE.parts, "workload": str(number)})
                with opened(url, identity) as (keeper, _):
                    keeper.trial(frozen(trial(0)))
                    names.append(keeper.name)
    finally:
        time.tzset()
    assert read_study(url).name == names[-1]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p/w@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?user=u&password=secret", "postgresql://h/db?password=***&user=u"),
        ("redis://:secret@h:6379/0", "redis://:***@h:6379/0"),
        ("nothing at all://u:secret@h", "nothing at all://***@h"),
        ("sqlite:///a b.db", "sqlite:///a b.db"),
        ("a:b@c.study", "a:b@c.study"),
        ("postgresql://u:s3@cret/s3@h/db", "postgresql://***@h/db"),
        ("postgresql://u:s3@cret@h:port/db?password=s3", "postgresql://***@h:port/db?password=***"),
        ("postgresql://h/db?user=a@b&password=s3@cret@", "postgresql://h/db?password=***&user=a%40b"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3@cret@db.example/studies",
        "postgresql://me:s3cret@db.example:s3cret/studies",
        "postgresql://me@cret:s3@db.example/studies",
        "sq lite://me:s3cret@db.example/studies",
    ],
)
def test_a_url_in_which_a_password_may_lie_anywhere_is_refused_and_not_shown(url: str) -> None:
    for opens in (read_study, open_keeper):
        with pytest.raises(UsageError, match=r"cannot be read; .* %40 for @") as caught:
            opens(url)
        assert "s3" not in str(caught.value)
        assert "cret" not in str(caught.value)


def test_measurements_since_are_counted_without_what_was_skipped(path: Path) -> None:
    result, study = kept_study(path), read_study(path)
    assert study.since == 0
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    study_id = storage.get_study_id_from_name(study.name)
    append(storage, study_id, CONFIRMATION, trial(99))
    append(
        storage, study_id, CONFIRMATION, replace(trial(100), kind="skipped", attempt=Attempt(outcome=Outcome.SKIPPED))
    )
    assert read_study(path).since == 1
    assert read_result(storage, study_id, result.history[:3])[1] == 0  # a run that ends while it is read


def test_a_file_of_other_studies_holds_none_of_ours(path: Path) -> None:
    optuna.create_study(storage=f"sqlite:///{path}", study_name="theirs")
    with pytest.raises(StorageError, match="holds no study of autotune"):
        read_study(f"sqlite:///{path}")


def test_a_damaged_result_is_a_clear_error(path: Path) -> None:
    kept_study(path)
    text = path.read_text()
    assert RESULT in text
    path.write_text(text.replace('"verdict":"faster","control"', '"verdict":"certainly","control"'))
    with pytest.raises(StorageError, match=r"is damaged: result\.verdict: is 'certainly'"):
        read_study(path)


def empty_study() -> tuple[optuna.storages.BaseStorage, int]:
    storage = optuna.storages.InMemoryStorage()
    return storage, storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE])


def test_the_latest_of_several_tuners_results_is_shown(path: Path) -> None:
    result, (storage, study_id) = kept_study(path), empty_study()
    for tuner in ("b", "a", "c"):  # their names say nothing of the order
        write_result(storage, study_id, replace(result, stop_reason=f"by {tuner}"), tuner)
        found, _ = read_result(storage, study_id, result.history)
        assert found == replace(result, stop_reason=f"by {tuner}")


def test_looks_of_tuners_that_count_alike_are_all_read_in_order() -> None:
    storage, study_id = empty_study()
    for number, tuner in ((1, "b"), (2, "a"), (1, "a"), (0, "")):
        probe = examples.changed(PROBE, message=f"{number}{tuner}")
        storage.set_study_system_attr(study_id, key_of(LOOK, number, tuner), to_json(probe))
    assert [probe.attempt.message for probe in read(storage, study_id).probes] == ["0", "1a", "1b", "2a"]


@given(trials=st.sets(st.integers(0, 12)), confirmations=st.lists(st.integers(0, 12)))
def test_no_two_records_have_one_number(trials: set[int], confirmations: list[int]) -> None:
    found = numbered_apart(map(trial, trials), map(trial, confirmations))
    numbers = [each.number for each in found]
    assert len({*numbers, *trials}) == len(numbers) + len(trials)
    kept = [now for now, before in zip(numbers, confirmations, strict=True) if before not in trials and now == before]
    assert len(kept) >= len(set(confirmations) - trials)
