"""Files that flags name: none that autotune did not write is replaced without --force."""

from __future__ import annotations

import os
import re
import socket
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from autotune import load_config
from autotune.cli import main
from autotune.errors import ConfigFileError
from autotune.messages import Messages
from autotune.output import EXPORT, REPORT, STUDY, Kind, Output, write_file
from autotune.report.table import TABLE
from autotune.storage.identity import Identity
from tests import examples
from tests.report.results import kept_study
from tests.storage.test_open import frozen, trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.messages import Progress
    from autotune.report.result import Result
    from autotune.storage.open import StudyStorage

SCRIPT = "from torch.utils.data import DataLoader\nloader = DataLoader(data, batch_size=8)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    contents = {
        "train.py": SCRIPT,
        "build.py": SCRIPT,
        "data.csv": "age,income\n3,4\n",
        "data.parquet": "PAR1 of theirs PAR1",
        "page.html": "<!doctype html><title>mine</title>",
        "own.yaml": "name: theirs\n",
        "own.json": '{"name": "theirs"}',
        "ours.undecided.yaml": "name: theirs\n",
        "their.patch": "--- a/train.py\n+++ b/train.py\n",
        "zeros.dat": "\0" * 4096,
        "notes.study": "these are my notes\n",
    }
    for name, content in contents.items():
        Path(name).write_text(content)
    for name, target in {"link": "train.py", "link.html": "page.html", "link.yaml": "own.yaml"}.items():
        Path(name).symlink_to(target)
    for name in ("inside", "folder", "folder.html", "folder.yaml"):
        Path(name).mkdir()
    for suffix in ("", ".html", ".yaml", ".csv"):
        os.mkfifo(f"pipe{suffix}")
        make_device(Path(f"null{suffix}"))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    answer = replace(examples.ANSWER, made_on={"loader": "train.py:2 Data[8]"})
    answer.save("autotune.yaml")
    answer.save("ours.yaml")
    kept_study(tmp_path / "kept.study")
    return tmp_path


def make_device(path: Path) -> None:
    """Make a device of one's own where that is allowed; else nobody here can replace the system's."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        path.symlink_to("/dev/null")


def seen(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Type, mode, time, number and content of everything in a folder; links as they are."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(folder.rglob("*")):
        at = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        is_folder = stat.S_ISDIR(at.st_mode)  # its time changes where a file is tried there
        found[path.name] = (at.st_mode, is_folder or at.st_mtime_ns, at.st_ino, content)
    return found


def instead_of_tune(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Result]) -> None:
    module = ModuleType("autotune.api")
    vars(module)["tune"] = function
    monkeypatch.setitem(sys.modules, "autotune.api", module)


def refused(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    for name, function in (("autotune.api", "tune"), ("autotune.diagnostics", "diagnose")):
        module = ModuleType(name)
        vars(module)[function] = lambda *given, **options: pytest.fail("the run was started")
        monkeypatch.setitem(sys.modules, name, module)
    code = main(line.split())
    out, said = capsys.readouterr()
    assert code == ConfigFileError.exit_code, said
    assert out == ""
    assert said.startswith("autotune: error: ")
    assert said.count("\n") == 1
    return str(said)


FORCED = ", or replace it with --force"


@pytest.mark.parametrize("way", ["", "--force "])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export {}autotune.yaml --to patch train.py --output train.py", "train.py: is the script"),
        ("export {}autotune.yaml --to python --output train.py", "train.py: is the script of the answer"),
        ("run {}--patch=train.py train.py", "--patch train.py: is the script"),
        ("run {}--patch=link train.py", "leads to .*/train.py: is the script, which is never replaced"),
        ("run {}--storage train.py train.py", "--storage train.py: this file is no study of autotune"),
        ("run {}--storage data.csv train.py", "--storage data.csv: this file is no study of autotune; choose another"),
        ("run {}--storage zeros.dat train.py", "--storage zeros.dat: this file is no study of autotune"),
        ("run {}--storage pipe train.py", "no regular file but a FIFO"),
        ("run {}--storage socket train.py", "no regular file but a socket"),
        ("run {}--storage folder train.py", "Is a directory"),
        ("run {}--storage null train.py", "--storage null.* a device"),
        ("run {}--output notes.yaml train.py", "its study notes.study: this file is no study of autotune"),
        ("run {}--patch=kept.study --storage kept.study train.py", "--patch kept.study: is the study"),
        ("run {}--patch=kept.study train.py", "is a study, which is never replaced"),
        ("run {}--patch=new.study --output new.yaml train.py", "--patch new.study: is the study"),
        ("run {}--patch=new.html --report new.html train.py", "--patch new.html: is what --report writes"),
        ("run {}--patch=new.yaml --output new.yaml train.py", "--patch new.yaml: is what --output writes"),
        ("run {}--patch=pipe train.py", "no regular file but a FIFO"),
        ("run {}--patch=folder train.py", "Is a directory"),
        ("run {}--patch=- train.py", "is a stream"),
        ("run {}--patch=/dev/stdout train.py", "is a stream"),
        ("run {}--report pipe.html train.py", "no regular file but a FIFO"),
        ("run {}--report folder.html train.py", "Is a directory"),
        ("run {}--report null.html train.py", "a device"),
        ("run {}--report absent/page.html train.py", "No such file or directory"),
        ("run {}--output pipe.yaml train.py", "no regular file but a FIFO"),
        ("run {}--output folder.yaml train.py", "Is a directory"),
        ("run {}--output null.yaml train.py", "a device"),
        ("export {}autotune.yaml --to shell --output autotune.yaml", "is the file that is read"),
        ("export {}autotune.yaml --to shell --output kept.study", "is a study, which is never replaced"),
        ("export {}autotune.yaml --to shell --output pipe", "no regular file but a FIFO"),
        ("export {}autotune.yaml --to shell --output folder", "Is a directory"),
        ("export {}autotune.yaml --to shell --output -", "is a stream"),
        ("report {}kept.study --output pipe.csv", "no regular file but a FIFO"),
        ("report {}kept.study --output null.csv", "a device"),
        ("report {}kept.study --output folder.html", "Is a directory"),
        ("report {}kept.html --output kept.html", "is the study"),
    ],
)
def test_neither_what_is_read_nor_what_is_no_file_is_replaced_with_or_without_force(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, said: str, way: str
) -> None:
    Path("kept.html").write_bytes(Path("kept.study").read_bytes())
    before = seen(folder)
    message = refused(line.format(way), monkeypatch, capsys)
    assert re.search(said, message), message
    assert "--force" not in message
    assert seen(folder) == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --output own.yaml train.py", "no config of autotune"),
        ("run --output own.json train.py", "no config of autotune"),
        ("run --output link.yaml train.py", "leads to .*/own.yaml: this file is no config of autotune"),
        ("run --output ours.yaml train.py", "ours.undecided.yaml: this file is no config of autotune"),
        ("run --report page.html train.py", "no report of autotune"),
        ("run --report link.html train.py", "leads to .*/page.html: this file is no report of autotune"),
        ("run --patch=data.csv train.py", "no export or patch of autotune"),
        ("run --patch=their.patch train.py", "no export or patch of autotune"),
        ("run --patch=build.py train.py", "no export or patch of autotune"),
        ("--model build:model --report page.html", "no report of autotune"),
        ("export ours.yaml --to python --output build.py", "no export or patch of autotune"),
        ("export ours.yaml --to shell --output autotune.yaml", "no export or patch of autotune"),
        ("export ours.yaml --to deepspeed --output own.json", "no export that can be recognised"),
        ("export ours.yaml --to patch train.py --output their.patch", "no export or patch of autotune"),
        ("report kept.study --output data.csv", "no table of trials of autotune"),
        ("report kept.study --output data.parquet", "no table of trials of autotune"),
        ("report kept.study --output page.html", "no report of autotune"),
    ],
)
def test_what_autotune_did_not_write_is_replaced_by_force_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    before = seen(folder)
    message = refused(line, monkeypatch, capsys)
    assert re.search(said, message), message
    assert message.endswith(f"choose another name{FORCED}\n")
    assert seen(folder) == before
    command, *rest = line.split()
    if command in ("export", "report"):
        changed = Path(rest[rest.index("--output") + 1])
        assert main([command, "--force", *rest]) == 0
        assert seen(folder).pop(changed.name) != before.pop(changed.name)
        assert {**seen(folder), changed.name: None} == {**before, changed.name: None}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "line",
    [
        *(f"export autotune.yaml --to {tool} --output new" for tool in ("python", "shell", "accelerate", "torchrun")),
        "export autotune.yaml --to patch train.py --output new",
        *(f"report kept.study --output new{suffix}" for suffix in (".html", ".csv", ".parquet")),
    ],
)
def test_what_autotune_wrote_is_replaced_where_a_link_leads_to(line: str) -> None:
    name = line.split()[-1]
    assert main(line.split()) == 0
    written = Path(name).read_bytes()
    before = Path(name).stat().st_ino
    Path(f"to-{name}").symlink_to(name)
    assert main(line.replace(name, f"to-{name}").split()) == 0
    assert Path(name).read_bytes() == written
    assert Path(name).stat().st_ino != before
    assert Path(f"to-{name}").is_symlink()


@pytest.mark.usefixtures("folder")
def test_what_a_link_leads_to_is_written_and_the_link_stays() -> None:
    Path("to.yaml").symlink_to("ours.yaml")
    Path("dangling.yaml").symlink_to("inside/new.yaml")
    for name in ("to.yaml", "dangling.yaml"):
        replace(examples.ANSWER, batch_size=7).save(name)
        assert Path(name).is_symlink()
    assert load_config("ours.yaml").batch_size == load_config("inside/new.yaml").batch_size == 7


@pytest.mark.usefixtures("folder")
def test_python_replaces_the_file_that_it_names_and_nothing_that_is_none() -> None:
    examples.ANSWER.save("own.yaml")
    assert load_config("own.yaml") == examples.ANSWER
    for name in ("pipe.yaml", "null.yaml", "socket", "folder"):
        with pytest.raises(ConfigFileError, match=f"{name}: cannot be written: "):
            examples.ANSWER.save(name)
    assert Path("pipe.yaml").is_fifo()
    assert Path("null.yaml").is_char_device()


@pytest.mark.usefixtures("folder")
def test_a_trainers_output_is_refused_before_the_search() -> None:
    from autotune.integrations import transformers

    with pytest.raises(
        ConfigFileError, match=r"output own\.yaml: this file is no config of autotune; choose another name$"
    ):
        transformers.tune(None, output="own.yaml")
    assert Path("own.yaml").read_text() == "name: theirs\n"


@pytest.mark.parametrize(
    ("kind", "name", "content", "is_ours"),
    [
        (TABLE, "a.csv", b"number,kind,mine\n1,2,3\n", False),
        (EXPORT, "a.py", b'"""Exported by autotune."""', False),
        (EXPORT, "a.py", b"", True),
        (REPORT, "a.html", b"\xff" * 100, False),
        (STUDY, "a.study", b'{"op_code":0}\n', True),
    ],
)
def test_a_file_is_known_by_its_content(tmp_path: Path, kind: Kind, name: str, content: bytes, is_ours: bool) -> None:
    output = Output(flag="--output", path=tmp_path / name, kind=kind)
    write_file(output.path, content)
    if is_ours:
        output.require()
        return
    with pytest.raises(ConfigFileError, match="this file is no"):
        output.require()


def test_what_appears_during_a_run_is_found_at_the_write(tmp_path: Path) -> None:
    output = Output(flag="--patch", path=tmp_path / "a.patch", kind=EXPORT)
    output.require()
    output.path.write_text("theirs")
    with pytest.raises(ConfigFileError, match="this file is no export or patch"):
        output.write(b"# Exported by autotune.\n")
    assert output.path.read_text() == "theirs"


@pytest.mark.usefixtures("folder")
def test_a_run_keeps_the_finished_study_of_another_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tune(*, storage: StudyStorage, on_progress: Callable[[Progress], None], **arguments: Any) -> Result:
        messages = Messages(on_progress=on_progress)
        storage.open(Identity(parts={"workload": str(arguments["workload"])}), messages=messages)
        storage.do(lambda study: study.add_trial(frozen(trial(0))))
        return examples.faster_result()

    instead_of_tune(monkeypatch, tune)
    for line, names, said in [
        ("run --output new.yaml train.py", {"new"}, ""),
        ("run --output new.yaml --num-workers 2 train.py", {"new"}, ""),
        ("run --output new.yaml build.py", {"new", "new.1"}, "it is kept as new.1.study"),
        ("run --output new.yaml build.py --epochs 3", {"new", "new.1", "new.2"}, "it is kept as new.2.study"),
        ("--output new.json --model build:model", {"new", "new.1", "new.2", "new.3"}, "it is kept as new.3.study"),
    ]:
        before = Path("new.study").read_bytes() if Path("new.study").exists() else b""
        assert main(line.split()) == 0
        assert {path.stem for path in Path().glob("new*.study")} == names
        err = capsys.readouterr().err
        assert said in err
        assert not said or Path(said.split()[-1]).read_bytes() == before
        assert said or "kept as" not in err


@pytest.mark.usefixtures("folder")
def test_a_run_writes_all_that_it_is_asked_for_and_again_and_by_force_over_what_links_lead_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = replace(examples.ANSWER, made_on={"loader": "train.py:2 Data[8]"})
    instead_of_tune(monkeypatch, lambda **arguments: replace(examples.faster_result(), config=answer))
    for _ in range(2):
        assert main(["run", "--report", "new.html", "--patch=new.patch", "train.py"]) == 0, capsys.readouterr()
        for name in ("new.html", "new.patch", "autotune.yaml"):
            assert Path(name).stat().st_size
    err = capsys.readouterr().err
    assert "Written: new.html\n" in err
    assert "See it" not in err
    assert "autotune.yaml" in Path("new.html").read_text()
    theirs = ["--output", "link.yaml", "--report", "link.html", "--patch=their.patch"]
    assert main(["run", "--force", *theirs, "train.py"]) == 0, capsys.readouterr()
    assert load_config("own.yaml") == answer
    assert Path("page.html").read_text() == Path("new.html").read_text().replace("autotune.yaml", "link.yaml")
    assert Path("their.patch").read_bytes() == Path("new.patch").read_bytes()
    assert Path("link.yaml").is_symlink()
    assert Path("link.html").is_symlink()
