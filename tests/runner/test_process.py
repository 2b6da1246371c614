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
from autotune.records import Outcome
from autotune.runner.descendants import MARK
from autotune.runner.process import MeasuringProcess, ProcessLostError


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


def test_a_configurations_threads_come_before_those_of_the_users_shell(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OF_THE_USER", "kept")
    with pytest.raises(ProcessLostError, match="no process can be started"):
        MeasuringProcess({"OMP_NUM_THREADS": "2"})
    assert started["command"] == [sys.executable, "-m", "autotune.measure.worker"]
    assert (started["env"]["OMP_NUM_THREADS"], started["env"]["OF_THE_USER"]) == ("2", "kept")
    assert started["process_group"] == 0
    assert not started.get("start_new_session")  # the scheduler would treat it otherwise than training
    assert Path(started["env"][MARK]).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_not_installed_is_found_by_the_child(
    started: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "theirs")
    with pytest.raises(ProcessLostError):
        MeasuringProcess({})
    root = str(Path(autotune.__file__).parent.parent)
    assert started["env"]["PYTHONPATH"].split(os.pathsep) == [root, "theirs"]


# --- replies of a child that says what it is told to ---


CHILD = """#!{python}
import os, sys
sys.path.insert(0, {root!r})
from autotune.runner.protocol import encode, frames
for number, message in frames(open(0, "rb", buffering=0)):
    session = number if message["op"] == "open" else session
    of_ranks = {{2: {{"closed": -11}}, 3: {{"failed": {{"error": "usage"}}}}}}
    usual = of_ranks.get(message.get("ranks"), {{"reply": number}})
    for document, offset in message.get("say", [(usual, 0)]):
        sent = encode(session if offset is None else number + offset, document)
        os.write(1, sent[: message.get("length", len(sent))] + message.get("noise", "").encode())
    if "exit" in message:
        os._exit(message["exit"])
"""


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MeasuringProcess]:
    """A measuring process whose child is a script that answers as its request says; without torch it starts at once."""
    child = tmp_path / "child"
    root = str(Path(autotune.__file__).parent.parent)
    child.write_text(CHILD.format(python=sys.executable, root=root))
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    monkeypatch.setattr("autotune.runner.process.UNREADABLE_SECONDS", 0.2)
    made = MeasuringProcess({})
    yield made
    made.stop()


def lost(process: MeasuringProcess, **message: Any) -> tuple[Outcome, str]:
    """What becomes of a request, and that its session cannot be used any more."""
    with pytest.raises(ProcessLostError) as caught:
        process.ask({"op": "measure", **message}, 10.0)
    assert not process.close()
    return caught.value.outcome, str(caught.value)


def test_each_request_gets_the_reply_of_its_number(process: MeasuringProcess) -> None:
    assert process.open() == {"reply": 1}
    assert [process.ask({"op": "measure"}, 10.0) for _ in range(3)] == [{"reply": number} for number in (2, 3, 4)]


@pytest.mark.parametrize("offset", [-1, 1, 1000])
def test_a_reply_to_another_request_is_taken_for_none(process: MeasuringProcess, offset: int) -> None:
    process.open()
    outcome, message = lost(process, say=[({"reply": 7}, offset)])
    assert outcome is Outcome.CRASHED
    assert message.startswith(f"the reply was to request {2 + offset}, not to 2: ")


@pytest.mark.parametrize("length", [1, 5, 12, 20, 30])
def test_a_reply_that_is_cut_is_a_crash(process: MeasuringProcess, length: int) -> None:
    process.open()
    outcome, message = lost(process, length=length, noise="\n" if length > 1 else "x\n")
    assert (outcome, message[:28]) == (Outcome.CRASHED, "the reply could not be read ")


def test_a_child_that_ends_in_the_middle_of_a_reply_has_ended(process: MeasuringProcess) -> None:
    process.open()
    outcome, message = lost(process, length=20, exit=3)
    assert (outcome, message) == (Outcome.CRASHED, "the process ended without an answer (exit code 3)")


def test_how_a_session_has_ended_is_heard_after_half_a_reply(process: MeasuringProcess) -> None:
    process.open()
    outcome, message = lost(process, say=[({"closed": -9}, None)], noise="")
    assert (outcome, message[:33]) == (Outcome.HOST_OOM, "the process was killed (signal 9)")


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
