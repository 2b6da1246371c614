"""Kill one node of a Ray cluster in the middle of a study: is every trial accounted for, and the answer confirmed?

    python -m studies.hosts.lose_a_node

Two nodes of Ray's own test cluster, on this machine; the node that is killed is not the head. Writes
``recorded/lost_node.json`` and the study, ``recorded/lost_node.study``, beside this script.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import autotune
from autotune.host import inspect_host
from autotune.records import Progress, Trial
from autotune.result import Result
from autotune.search import outlook
from tests.raycluster import RayCluster, ray_cluster

RECORDED = Path(__file__).resolve().parent / "recorded"
STUDY = RECORDED / "lost_node.study"
TRIALS = 24
BEFORE = 8
"""Trials after which a node is killed, as soon as it measures the next one."""
HOPE = 5.0
"""A search that hopes for so much makes all the trials that were asked for, and does not stop at a good answer."""


class Victim:
    """The node that is killed once it measures; hears of every trial."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._node = cluster.tell("next")[:6]
        self._hosts: set[str] = set()
        self._finished = 0
        self._is_killed = False

    def hear(self, progress: Progress) -> None:
        """Kill the node a moment after it has finished a trial, when it measures the next."""
        trial = progress.finished
        if trial is None or trial.host is None or self._is_killed:
            return
        print(json.dumps(told(trial)), file=sys.stderr)
        self._finished += 1
        self._hosts.add(trial.host)
        if self._finished >= BEFORE and len(self._hosts) == 2 and self._is_here(trial.host):
            self._is_killed = True
            threading.Thread(target=self._kill).start()

    def _is_here(self, host: str) -> bool:
        """Tell whether a host is that node; of two on one machine the second has a longer name."""
        named = [name for name in self._hosts if name.endswith(self._node)]
        return host == (named[0] if named else min(self._hosts, key=len))

    def _kill(self) -> None:
        time.sleep(1.0)
        print(self._cluster.tell("kill"), file=sys.stderr)


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    STUDY.unlink(missing_ok=True)
    outlook.HOPE = HOPE
    with ray_cluster(2) as cluster:
        os.environ["RAY_ADDRESS"] = cluster.address
        result = autotune.tune(
            "tests.clusterworkloads:one_line",
            engine="ray",
            device="cpu",
            budget=900,
            trials=TRIALS,
            batch_size="8,16,32",
            num_workers="0..4",
            prefetch_factor="2,4",
            amp="off",
            threads=1,
            baseline={"batch_size": 8},
            storage=STUDY,
            on_progress=Victim(cluster).hear,
        )
    RECORDED.joinpath("lost_node.json").write_text(json.dumps(summary(result), indent=2) + "\n", encoding="utf-8")


def summary(result: Result) -> dict[str, object]:
    host = inspect_host()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": {
            "cpu_model": host.cpu_model,
            "cpus": host.cpus,
            "versions": {**host.versions, "ray": version("ray")},
        },
        "verdict": result.verdict,
        "speedup": result.speedup,
        "rounds": result.rounds,
        "stop_reason": result.stop_reason,
        "notes": list(result.notes),
        "trials": [told(trial) for trial in result.history],
    }


def told(trial: Trial) -> dict[str, object]:
    return {
        "number": trial.number,
        "kind": trial.kind,
        "host": trial.host,
        "outcome": trial.outcome,
        "samples_per_second": trial.rate and round(trial.rate, 1),
        "config": trial.config.to_document()["dataloader"],
        "message": trial.message,
    }


if __name__ == "__main__":
    main()
