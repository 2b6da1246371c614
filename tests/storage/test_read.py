"""Studies that are read while they lie where they were kept: nothing is changed, nothing is created."""

from __future__ import annotations

import time
from pathlib import Path

import optuna
import pytest

from autotune.errors import StorageError, UsageError
from autotune.records import SCHEMA
from autotune.search.read import read_study
from autotune.storage.identity import Identity
from autotune.storage.open import StudyStorage
from autotune.storage.server import without_password
from autotune.storage.trials import END
from tests.report.results import kept_study
from tests.storage.test_open import HERE, add, frozen, keep, opened, trial

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.study"


@pytest.fixture(params=["", "sqlite:///"], ids=["file", "database"])
def location(request: pytest.FixtureRequest, path: Path) -> str:
    return f"{request.param}{path}"


def test_reading_neither_waits_for_a_run_nor_changes_its_file(path: Path) -> None:
    with opened(path) as storage:
        add(storage, 0)
        before = path.read_bytes() + b'{"op_code": 4, "half a l'  # as a run that is writing now
        path.write_bytes(before)
        assert read_study(path).history == (trial(0),)
        assert path.read_bytes() == before


def test_a_study_is_read_as_it_was_kept_and_of_several_the_newest_or_the_one_that_is_named(location: str) -> None:
    keep(location, 0, 1)
    study = read_study(location)
    assert (study.history, study.result) == ((trial(0), trial(1)), None)
    assert (study.location, study.made_on) == (location, dict(HERE.parts))
    elsewhere = Identity(parts={**HERE.parts, "CPU": "another"})
    keep(location, 0, 1, 2, identity=elsewhere)
    first, second = HERE.name, elsewhere.name
    studies = [read_study(location, name) for name in (None, first, second)]
    assert [len(study.history) for study in studies] == [3, 2, 3]
    assert studies[0].others == (first,)
    with pytest.raises(StorageError, match=f"holds no study x; there are {first}, {second}"):
        read_study(location, "x")


def test_a_study_of_another_version_is_refused(path: Path) -> None:
    keep(str(path), 0, identity=Identity(parts={**HERE.parts, "records": str(SCHEMA - 1)}))
    with pytest.raises(StorageError, match="was written by another version of autotune"):
        read_study(path)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*/recorded/*.study")), ids=lambda path: path.parts[-3])
def test_every_recorded_study_can_be_shown(path: Path) -> None:
    study = read_study(path)
    assert study.result is not None
    assert len(study.history) >= 10


def test_the_newest_study_is_the_one_that_ended_last_wherever_its_host_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    names = []
    try:
        for number, zone in enumerate(("Etc/GMT-14", "Etc/GMT+12")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TZ", zone)
                time.tzset()
                identity = Identity(parts={**HERE.parts, "workload": str(number)})
                keep(url, 0, identity=identity)
                names.append(identity.name)
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
    for opens in (read_study, StudyStorage):
        with pytest.raises(UsageError, match=r"cannot be read; .* %40 for @") as caught:
            opens(url)
        assert "s3" not in str(caught.value)
        assert "cret" not in str(caught.value)


def test_measurements_since_the_result_are_counted(path: Path) -> None:
    kept_study(path)
    study = read_study(path)
    assert study.since == 0
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    optuna.load_study(study_name=study.name, storage=storage).add_trial(frozen(trial(99)))
    assert read_study(path).since == 1


@pytest.mark.parametrize(
    ("content", "location", "said"),
    [
        (None, "a.study", r"a\.study: cannot be read: No such file or directory"),
        (None, "sqlite:///a.study", r"a\.study: cannot be read: there is no such file"),
        (b"batch_size: 3\n", "a.study", "the file exists and is not a study"),
        (b"", "sqlite:///a.study", r"a\.study: "),
        (None, "nothing://user:secret@host/name", "cannot be read"),
    ],
)
def test_what_is_no_study_is_said_and_nothing_is_created(
    path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, location: str, said: str
) -> None:
    monkeypatch.chdir(path.parent)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StorageError, match=said):
        read_study(location)
    assert content is not None or list(path.parent.iterdir()) == []


def test_a_file_of_other_studies_holds_none_of_ours(path: Path) -> None:
    optuna.create_study(storage=f"sqlite:///{path}", study_name="theirs")
    with pytest.raises(StorageError, match="holds no study of autotune"):
        read_study(f"sqlite:///{path}")


def test_a_damaged_end_is_a_clear_error(path: Path) -> None:
    kept_study(path)
    text = path.read_text()
    assert END in text
    path.write_text(text.replace('"ending":"', '"ending":"certainly '))
    with pytest.raises(StorageError, match=r"is damaged: end\.run\.stop\.ending: is 'certainly"):
        read_study(path)
