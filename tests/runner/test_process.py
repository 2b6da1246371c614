"""The tuner's end of the pipe: what a measuring process is started with, and what becomes of its replies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.machine.descendants import MARK
from autotune.outcome import Outcome
from autotune.runner.process import MeasuringProcess, ProcessLostError

ROOT = str(Path(autotune.__file__).parent.parent)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the system is asked to start, which it refuses."""
    asked: dict[str, Any] = {}

    def start(command: list[str], **options: Any) -> None:
        asked.update(options, command=command)
        raise BlockingIOError

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return asked


def test_threads_come_before_those_of_the_users_shell_and_a_package_that_is_not_installed_is_found(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"OMP_NUM_THREADS": "7", "OF_THE_USER": "kept", "PYTHONPATH": "theirs"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProcessLostError, match="no process can be started"):
        MeasuringProcess({"OMP_NUM_THREADS": "2"})
    assert started["command"][:-1] == [sys.executable, "-m", "autotune.measure.worker"]
    assert started["pass_fds"] == (int(started["command"][-1]),)
    assert (started["env"]["OMP_NUM_THREADS"], started["env"]["OF_THE_USER"]) == ("2", "kept")
    assert started["env"]["PYTHONPATH"].split(os.pathsep) == [ROOT, "theirs"]
    assert started["process_group"] == 0
    assert not started.get("start_new_session")  # the scheduler would treat it otherwise than training
    assert Path(started["env"][MARK]).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


CHILD = """#!{python}
import os, sys
sys.path.insert(0, {root!r})
from autotune.protocol import Channel
from tests.corrupting import encode
channel = Channel(int(sys.argv[-1]))
while True:
    number, message = channel.receive()
    session = number if message["op"] == "open" else session
    of_ranks = {{2: {{"closed": -11}}, 3: {{"failed": {{"error": "usage"}}}}}}
    usual = of_ranks.get(message.get("ranks"), {{"reply": number}})
    for document, offset in message.get("say", [(usual, 0)]):
        sent = encode(session if offset is None else number + offset, document)
        os.write(channel.fileno(), sent[: message.get("length", len(sent))] + message.get("noise", "").encode())
    if "exit" in message:
        os._exit(message["exit"])
"""


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MeasuringProcess]:
    """A measuring process whose child is a script that answers as its request says; without torch it starts at once."""
    child = tmp_path / "child"
    child.write_text(CHILD.format(python=sys.executable, root=ROOT))
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setattr("autotune.runner.process.UNREADABLE_SECONDS", 0.5)
    made = MeasuringProcess({})
    yield made
    made.stop()


def lost(process: MeasuringProcess, **message: Any) -> tuple[Outcome, str]:
    """What becomes of a request in a new session, and that it cannot be used any more."""
    process.open()
    with pytest.raises(ProcessLostError) as caught:
        process.ask({"op": "measure", **message}, 10.0)
    assert not process.close()
    return caught.value.outcome, str(caught.value)


def test_each_request_gets_the_reply_of_its_number(process: MeasuringProcess) -> None:
    assert process.open() == {"reply": 1}
    assert [process.ask({"op": "measure"}, 10.0) for _ in range(3)] == [{"reply": number} for number in (2, 3, 4)]


def test_a_child_that_ends_in_the_middle_of_a_reply_has_ended(process: MeasuringProcess) -> None:
    found = lost(process, length=20, exit=3)
    assert found == (Outcome.CRASHED, "the process ended without an answer (exit code 3)")


@pytest.mark.parametrize(
    ("said", "outcome", "message"),
    [
        *(
            ({"say": [({"reply": 7}, offset)]}, Outcome.CRASHED, f"the reply was to request {2 + offset}, not to 2: ")
            for offset in (-1, 1, 1000)
        ),
        *(({"length": length}, Outcome.CRASHED, "the reply could not be read ") for length in (1, 20)),
        ({"say": [({"closed": -9}, None)], "noise": ""}, Outcome.HOST_OOM, "the process was killed (signal 9)"),
    ],
)
def test_what_is_no_reply_to_the_request_or_cut_short_or_the_end_is_an_outcome(
    process: MeasuringProcess, said: dict[str, Any], outcome: Outcome, message: str
) -> None:
    found, text = lost(process, **said)
    assert (found, text[: len(message)]) == (outcome, message)


def test_a_session_may_end_before_it_has_begun(process: MeasuringProcess) -> None:
    """What says so has the number of the request that waits for its beginning."""
    assert process.open(ranks=3) == {"error": "usage"}
    with pytest.raises(ProcessLostError, match="segmentation fault"):
        process.open(ranks=2)


def test_a_rank_that_fails_is_the_reply_to_whatever_was_asked(process: MeasuringProcess) -> None:
    told = {"error": "usage", "message": "--ranks 2: they could not be started"}
    process.open()
    assert process.ask({"op": "measure", "say": [({"failed": told}, None)]}, 10.0) == told
    with pytest.raises(ProcessLostError, match="rank 1: the process was killed"):
        process.ask({"op": "measure", "say": [({"failed": {"closed": -9, "rank": 1}}, None)]}, 10.0)
