"""The tuner on a real Ray cluster while nodes, the head node and tuners go and come: some ten minutes.

pytest studies/hosts/test_cluster.py
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.search.losses import owed, settled
from autotune.search.reading import read_study
from tests.raycluster import RayCluster, ray_cluster
from tests.server import environment

pytestmark = pytest.mark.server

PATIENCE = 300.0
"""Seconds after which something that must happen has not happened."""
KNOBS = {"amp": "off", "threads": 1, "baseline": {"batch_size": 8}}


class Tuner:
    """A process, and what it says."""

    def __init__(self, folder: Path, address: str, changes: dict[str, str] | None = None, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.folder = folder
        options = {"workload": "tests.workloads:sleeping", **KNOBS, **options}
        with (folder / "errors").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.clustertuner", json.dumps(options)],
                cwd=folder,
                env=environment(RAY_ADDRESS=address, **(changes or {})),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.events.append(json.loads(line))  # nothing of Ray's own is among it

    def said(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]

    @property
    def messages(self) -> str:
        return "\n".join(each["text"] for each in self.said("message"))

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text()

    @property
    def measured_on(self) -> set[str]:
        return {each["host"] for each in self.said("finished")}

    def wait_for(self, claim: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not claim():
            assert time.monotonic() < end, (self.errors, self.events[-3:])
            assert self.process.poll() is None, (self.errors, self.events[-3:])
            time.sleep(0.05)

    def end(self, code: int = 0) -> dict[str, Any]:
        """Wait for the end of it; return its last event."""
        assert self.process.wait(PATIENCE) == code, (self.errors, self.events[-3:])
        self._reader.join()
        assert self.errors == ""
        return self.events[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join()


Start = Callable[..., Tuner]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts tuners; what still runs at the end is killed."""
    started: list[Tuner] = []

    def start(address: str, **options: Any) -> Tuner:
        started.append(Tuner(tmp_path, address, **options))
        return started[-1]

    yield start
    for tuner in started:
        tuner.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(2) as found:
        yield found


def name_of(node_id: str, names: set[str]) -> str:
    """What a node is called: nodes of one machine differ in the end of their names only."""
    return next((name for name in names if name.endswith(f"-{node_id[:6]}")), min(names, key=len))


def test_a_study_loses_a_node_and_nothing_else(start: Start, tmp_path: Path) -> None:
    with ray_cluster(2) as cluster:
        tuner = start(
            cluster.address,
            workload="tests.clusterworkloads:one_line",
            storage=str(tmp_path / "kept.study"),
            trials=20,
            hope=5.0,
            budget=600,
            batch_size="8,16,32",
            num_workers="0..4",
            prefetch_factor="2,4",
        )
        tuner.wait_for(lambda: len(tuner.said("finished")) >= 6 and len(tuner.measured_on) == 2)
        victim = name_of(cluster.tell("next"), tuner.measured_on)
        tuner.wait_for(lambda: tuner.said("finished")[-1]["host"] == victim)
        time.sleep(1.0)  # it measures the next one by now
        cluster.tell("kill")
        result = tuner.end()
    records = [trial for trial in read_study(tmp_path / "kept.study").history if trial.kind in ("baseline", "search")]
    lost = [trial for trial in records if trial.outcome == "lost"]
    assert lost
    for trial in lost:
        again = [other for other in records if other.config == trial.config and other.outcome != "lost"]
        assert [other.host != trial.host for other in again] == [True]
        assert trial.message.startswith(f"lost with its host, {trial.host}: ")
    assert owed(records) == ()
    done = settled(records)
    assert len(done) == len({trial.config for trial in done}) == 20
    asked = [each["config"] for each in tuner.said("running") if each["phase"] == "search"]
    assert all(config in [trial.config.to_document() for trial in records] for config in asked)
    assert result["reason"] == "20 trials were asked for"
    assert result["verdict"] == "faster"
    assert result["rounds"] >= 2
    (note,) = [note for note in result["notes"] if "lost" in note]
    assert note.startswith(f"host {lost[0].host}: lost with its host, ")


INTERRUPTED = {"workload": "tests.clusterworkloads:one_line", "hope": 5.0, "budget": 600, "confirming": 45.0}


def test_an_interrupt_confirms_what_is_known_and_leaves_nothing_on_the_hosts(start: Start) -> None:
    with ray_cluster(2) as cluster:
        tuner = start(cluster.address, **INTERRUPTED)
        tuner.wait_for(lambda: len(tuner.said("finished")) >= 5 and len(tuner.measured_on) == 2)
        tuner.process.send_signal(signal.SIGINT)
        result = tuner.end()
        assert result["reason"] == "interrupted by the user"
        assert not [each for each in tuner.said("finished") if each["outcome"] == "lost"]
        confirmed = {each["host"] for each in tuner.said("finished") if each["kind"] == "confirm"}
        assert len(confirmed) == 1
        assert cluster.tell("measuring") == "0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_ends_at_once(start: Start, number: signal.Signals) -> None:
    with ray_cluster(2) as cluster:
        tuner = start(cluster.address, **INTERRUPTED)
        tuner.wait_for(lambda: len(tuner.said("finished")) >= 3)
        tuner.process.send_signal(number)
        tuner.wait_for(lambda: "once more stops at once" in tuner.messages)
        time.sleep(1.0)
        tuner.process.send_signal(number)
        begin = time.monotonic()
        assert tuner.process.wait(PATIENCE) != 0
        assert time.monotonic() - begin < 30
        assert cluster.tell("measuring") == "0"


def test_without_the_head_node_the_tuner_ends_with_an_error_and_the_study_is_kept(start: Start, tmp_path: Path) -> None:
    with ray_cluster(2) as cluster:
        path = tmp_path / "kept.study"
        tuner = start(
            cluster.address, workload="tests.clusterworkloads:one_line", hope=5.0, budget=600, storage=str(path)
        )
        tuner.wait_for(lambda: len(tuner.said("finished")) >= 4)
        cluster.tell("kill-head")
        error = tuner.end(6)
    assert error["kind"] == "ClusterError"
    assert "is gone: start the cluster again" in error["text"]
    assert len(read_study(path).history) >= 4


def test_a_host_that_comes_later_takes_part(start: Start) -> None:
    with ray_cluster(1) as cluster:
        tuner = start(cluster.address, workload="tests.clusterworkloads:one_line", hope=5.0, budget=600)
        tuner.wait_for(lambda: len(tuner.said("finished")) >= 2)
        cluster.tell("add")
        tuner.wait_for(lambda: len(tuner.measured_on) == 2)
        assert "takes part from here on" in tuner.messages


def test_a_host_that_is_reserved_is_waited_for_and_is_free_when_its_tuner_is_killed(start: Start) -> None:
    with ray_cluster(1) as cluster:
        first = start(cluster.address, workload="tests.clusterworkloads:one_line", hope=5.0, budget=600)
        first.wait_for(lambda: first.said("finished"))
        second = start(cluster.address, budget=30)
        error = second.end(2)
        assert "reserved by other work in the Ray cluster for the " in error["text"]
        assert "other work has reserved it, or it is starting" in second.messages
        first.kill()
        assert cluster.tell("measuring") == "0"


def test_ranks_train_together_on_one_host(start: Start) -> None:
    with ray_cluster(2) as cluster:
        tuner = start(cluster.address, trials=3, budget=120, ranks=2, num_workers="0,1", batch_size=8)
        result = tuner.end()
    assert result["reason"] in (
        "3 trials were asked for",
        "the best that was not tried is expected to be less than 2% faster",
    )
    assert {each["config"]["training"].get("ranks") for each in tuner.said("finished")} == {2}
    assert {each["outcome"] for each in tuner.said("finished")} <= {"ok", "suspect"}
