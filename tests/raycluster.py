"""Ray's own test cluster, several nodes on this machine, in a process of its own that is told what to do with it.

    python -m tests.raycluster FOLDER 2

Its first line of output is the address; each line of its input is a command, answered by a line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.server import environment

NODE = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 80 * 2**20}


class RayCluster:
    """A cluster, seen from a test."""

    def __init__(self, folder: str, nodes: int, cpus: int = 2) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.raycluster", folder, str(nodes), str(cpus)],
            env=environment(RAY_TMPDIR=folder, RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0"),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._line()

    def tell(self, command: str) -> str:
        """Give a command, and return what it says."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._line()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("> "):
                return line[2:].strip()
        raise RuntimeError("the cluster is gone")


@contextmanager
def ray_cluster(nodes: int = 2, cpus: int = 2) -> Iterator[RayCluster]:
    """A cluster in a folder of its own, whose name is short: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder, "ray").mkdir()
        cluster = RayCluster(folder, nodes, cpus)
        try:
            yield cluster
        finally:
            cluster.close()


def say(text: str) -> None:
    sys.stdout.write(f"> {text}\n")
    sys.stdout.flush()


def measuring() -> int:
    """How many of autotune's measuring processes run below the cluster's, once they had time to end."""
    end = time.monotonic() + 20
    while time.monotonic() < end and count_measuring():
        time.sleep(0.1)
    return count_measuring()


def count_measuring() -> int:
    def is_one(process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            is_here = process.environ().get("RAY_TMPDIR") == os.environ["RAY_TMPDIR"]
            return is_here and "autotune.measure.worker" in process.cmdline()
        return False

    return sum(map(is_one, psutil.process_iter()))


def main(folder: str, nodes: str, cpus: str) -> None:
    from ray.cluster_utils import Cluster

    kind: dict[str, Any] = {**NODE, "num_cpus": int(cpus)}
    cluster = Cluster(initialize_head=True, head_node_args={**kind, "include_dashboard": False})
    others = [cluster.add_node(**kind) for _ in range(int(nodes) - 1)]
    say(cluster.address)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "next":  # which node is killed next
            say(others[-1].node_id)
        elif command == "kill":  # a node other than the head, as a power cut does
            cluster.remove_node(others.pop(), allow_graceful=False)
            say("killed")
        elif command == "add":
            others.append(cluster.add_node(**{**kind, "num_cpus": int(words[0])} if words else kind))
            say("added")
        elif command == "measuring":
            say(str(measuring()))
        elif command == "kill-head":
            for processes in cluster.head_node.all_processes.values():
                for each in processes:
                    os.kill(each.process.pid, 9)
            say("killed")
        else:
            say(f"what is {command}?")
    cluster.shutdown()
    time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
