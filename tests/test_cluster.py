"""The tuner on a real Ray cluster: nodes of Ray's own test cluster, all on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.raycluster import RayCluster, ray_cluster
from tests.server import environment, free_port

pytestmark = pytest.mark.server

PATIENCE = 300.0
"""Seconds after which something that must happen has not happened."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(2) as found:
        yield found


def run_python(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_an_outpost_is_lost_opened_again_cancelled_and_given_back(cluster: RayCluster, tmp_path: Path) -> None:
    done = run_python(tmp_path, "-m", "tests.outposts", "tests.workloads:telling_threads", RAY_ADDRESS=cluster.address)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert len(set(found["names"])) == 2
    assert found["notes"] == []
    assert all(loss < 10 for loss in found["loss"])  # no OMP_NUM_THREADS reaches what is measured
    assert found["priorities"]
    assert set(found["priorities"]) == {0} or os.geteuid() != 0  # Ray makes its workers nice
    assert found["jobs"] == ["autotune"]  # no command line, in which a password may be
    assert found["killed"][0] == found["without"][0] == found["cancelled"][0] == "lost"
    assert f"lost with its host, {found['names'][0]}: " in found["killed"][1]
    assert found["reopened"]
    assert found["again"][0] in ("ok", "suspect")
    assert found["after"][0] in ("ok", "suspect")
    assert found["closing"] < 10
    assert found["left"] == []
    assert not found["is_started"]


FLAGS = ("-m", "autotune", "--model", "tests.workloads:sleeping", "--engine", "ray")


def test_without_a_cluster_it_is_said_how_to_start_one(tmp_path: Path) -> None:
    done = run_python(tmp_path, *FLAGS, RAY_ADDRESS=f"127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("autotune: error: --engine ray: no Ray cluster answers at RAY_ADDRESS 127.0.0.1:")
    assert "ray start --head" in line


def test_without_ray_it_is_said_how_to_install_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from autotune.cli import main; sys.exit(main())"
    done = run_python(tmp_path, "-c", code, *FLAGS[2:])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "autotune: error: --engine ray: Ray is missing: pip install 'torch-autotune[ray]'\n"


def test_an_unknown_engine_is_wrong_use(tmp_path: Path) -> None:
    done = run_python(tmp_path, *FLAGS[:-1], "spark")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--engine" in done.stderr
