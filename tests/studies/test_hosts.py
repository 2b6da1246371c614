"""The example jobs for Slurm do what they say, with stand-ins for Slurm's commands on one machine.

Each host of a job is a process here; all but the first are told another job id, for a temp folder of their own.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.processes import are_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOSTS = Path(__file__).resolve().parents[2] / "studies" / "hosts"
RAY, POSTGRESQL = HOSTS / "ray.sbatch", HOSTS / "postgresql.sbatch"
BINARIES = Path(sys.executable).parent
JOBS = itertools.count(10_000_000 + os.getpid() % 100_000 * 100)
PATIENT = """
trap 'echo "tuner ends" >> "$RECORD"; kill $!; exit 130' TERM
sleep 600 &
touch "$STATE/at-${SLURMD_NODENAME:-}"
wait $!
"""
SECRET = "of-the-tuners"
URL = f"postgresql://tuner:{SECRET}@127.0.0.1:1/studies"

RECORD = 'printf "%s" "$(basename "$0")" >> "$RECORD"; printf " %q" "$@" >> "$RECORD"; echo >> "$RECORD"\n'
STAND_INS = {
    "scontrol": "printf '%s\\n' $NODES\n",
    "hostname": 'case $1 in --ip-address) echo "127.0.1.1 fe80::1" ;; *) echo "fd00::2 192.0.2.7 10.0.0.7 " ;; esac\n',
    # One process for each host that is asked for; signals are handed on; the highest exit code counts.
    "srun": """
hosts=$NODES
while [[ $1 == -* ]]; do
  case $1 in
    -w) hosts=$2; shift ;;
    --exclude=*) hosts=${NODES#"${1#*=} "} ;;
  esac
  shift
done
pids=() highest=0 told=
trap 'told=1; kill "${pids[@]}" 2> /dev/null' TERM
for host in $hosts; do
  job=$SLURM_JOB_ID
  [ "$host" = "${NODES%% *}" ] || job=$SLURM_JOB_ID-$host
  SLURMD_NODENAME=$host SLURM_JOB_ID=$job "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do
  while code=0; wait "$pid" || code=$?; [ -n "$told" ]; do
    told=
  done
  ((code <= highest)) || highest=$code
done
exit "$highest"
""",
    "ray": """
temp=$(printf '%s\\n' "$@" | sed -n 's/^--temp-dir=//p')
[ "$SLURMD_NODENAME" != "${LOST:-}" ] || exit 1
stat -c 'temp %n %a' "$temp" >> "$RECORD"
stat -c 'token %n %a' "$RAY_AUTH_TOKEN_PATH" "$(dirname "$RAY_AUTH_TOKEN_PATH")" >> "$RECORD"
cat "$RAY_AUTH_TOKEN_PATH" > "$STATE/token"
env > "$STATE/environment-of-ray-$SLURMD_NODENAME"
mkdir -m 777 "$temp/session"
touch "$STATE/joined-$SLURMD_NODENAME"
trap 'echo "ray ends on $SLURMD_NODENAME" >> "$RECORD"; kill $!; exit 1' TERM
sleep 600 &
wait $!
""",
    "python": """
case $* in
  *ray.nodes*) find "$STATE" -name 'joined-*' | wc -l ;;
  *grpc*) exit "${WITHOUT_GRPC:-0}" ;;
  *)
    env > "$STATE/environment-of-tuner-${SLURMD_NODENAME:-}"
    eval "${TUNER:-}"
    ;;
esac
""",
}


@dataclass(frozen=True)
class Job:
    """What a script is run with, and what its commands have recorded."""

    folder: Path
    environment: dict[str, str]

    def run(self, script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with self.start(script, *arguments, **environment) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, script: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(script), *arguments],
            env=self.environment | environment,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @property
    def id(self) -> int:
        return int(self.environment["SLURM_JOB_ID"])

    @property
    def lines(self) -> list[str]:
        record = Path(self.environment["RECORD"])
        return record.read_text(encoding="utf-8").splitlines() if record.exists() else []

    def calls(self, command: str) -> list[str]:
        return [line for line in self.lines if line.startswith(command + " ")]

    def told(self, of: str) -> dict[str, str]:
        text = (self.folder / "state" / f"environment-of-{of}").read_text(encoding="utf-8")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def temps(self) -> list[Path]:
        return sorted(Path("/tmp").glob(f"ray-{self.id}*"))

    def tokens(self) -> list[Path]:
        return list((self.folder / "shared").iterdir())

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not is_there():
            assert time.monotonic() < end, self.lines
            time.sleep(0.05)


def make_job(folder: Path, *stand_ins: str) -> Job:
    binaries = folder / "bin"
    for made in (binaries, folder / "shared", folder / "state"):
        made.mkdir()
    for name in stand_ins:
        path = binaries / name
        path.write_text(f"#!/bin/bash\n{RECORD}{STAND_INS[name]}", encoding="utf-8")
        path.chmod(0o755)
    slurm = {
        "SLURM_JOB_ID": str(next(JOBS)),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "NODES": "node1 node2",
    }
    others = {"RECORD": folder / "record", "STATE": folder / "state", "SHARED_FOLDER": folder / "shared"}
    path = f"{binaries}:{BINARIES}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM"))}
    return Job(folder, kept | slurm | {name: str(value) for name, value in others.items()} | {"PATH": path})


def clean(job: Job) -> None:
    for temp in job.temps():
        shutil.rmtree(temp)


@pytest.fixture
def job(tmp_path: Path, processes: Callable[[], list[psutil.Process]]) -> Iterator[Job]:
    made = make_job(tmp_path, *STAND_INS)
    yield made
    clean(made)
    assert are_gone(processes)


@pytest.fixture(params=[RAY, POSTGRESQL], ids=lambda path: path.name)
def script(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_bash_and_shellcheck_find_nothing(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    checked = subprocess.run([BINARIES / "shellcheck", str(script)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_options_of_sbatch_come_before_the_first_command_and_take_whole_nodes(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    assert {"--nodes=2", "--ntasks-per-node=1", "--exclusive", "--mem=0"} <= set(options)
    assert any(re.fullmatch(r"--time=\d\d:\d\d:\d\d", option) for option in options)
    assert not any(option.startswith(("--cpus-per-task", "--gpus")) for option in options)
    assert lines[first] == "set -euo pipefail"


def test_ray_starts_on_the_first_node_then_on_the_others_then_the_tuner_runs(job: Job) -> None:
    done = job.run(RAY, "--model", "my module:build")
    assert done.returncode == 0, done.stderr
    starts = [line for line in job.lines if line.startswith(("ray start", "python -m"))]
    port = 20000 + job.id % 4000 * 3
    assert len(starts) == 3
    assert f"--head --node-ip-address=192.0.2.7 --port={port} --include-dashboard=false" in starts[0]
    assert f"--ray-client-server-port={port + 2}" in starts[0]
    assert starts[1].endswith(f"--address=192.0.2.7:{port}")
    assert starts[2] == r"python -m autotune --engine ray --model my\ module:build"
    assert all(f"--dashboard-agent-listen-port={port + 1} " in line for line in starts[:2])
    assert {line for line in job.lines if "ends" in line} == {"ray ends on node1", "ray ends on node2"}
    assert "2 of 2 nodes joined" in done.stderr
    assert job.told("tuner-")["RAY_ADDRESS"] == f"192.0.2.7:{port}"


def test_steps_of_slurm_take_the_nodes_they_are_for(job: Job) -> None:
    job.run(RAY)
    steps = job.calls("srun")
    assert all("--overlap --cpu-bind=none --kill-on-bad-exit=0" in step for step in steps)
    assert all("--nodes=1 --ntasks=1 -w node1 " in step for step in steps[:-1])
    assert "--nodes=1 --ntasks=1 --exclude=node1 bash " in steps[-1]


def test_the_token_is_in_a_file_that_only_its_owner_reads_and_on_no_command_line(job: Job) -> None:
    job.run(RAY)
    token = (job.folder / "state" / "token").read_text()
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert not any(token in line for line in job.lines)
    modes = {Path(line.split()[1]).name == "token": line.split()[2] for line in job.calls("token")}
    assert modes == {True: "600", False: "700"}
    assert job.tokens() == []


def test_ray_is_told_of_the_token_and_of_nothing_it_should_not_change(job: Job) -> None:
    job.run(RAY, OMP_NUM_THREADS="3", RAY_AUTH_TOKEN="of another cluster", RAY_ADDRESS="another:1")
    for environment in (job.told("ray-node1"), job.told("ray-node2"), job.told("tuner-")):
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_AUTH_TOKEN_PATH"].startswith(str(job.folder / "shared"))
        assert environment["RAY_ADDRESS"].startswith("192.0.2.7:")
        assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
        assert environment["OMP_NUM_THREADS"] == "3"
        assert "RAY_AUTH_TOKEN" not in environment
    assert all("--disable-usage-stats" in call for call in job.calls("ray start"))


def test_threads_stay_unset_where_they_were(job: Job) -> None:
    job.environment.pop("OMP_NUM_THREADS", None)
    job.run(RAY)
    assert "OMP_NUM_THREADS" not in job.told("ray-node1")
    assert "OMP_NUM_THREADS" not in job.told("tuner-")


def test_the_clients_port_is_not_asked_for_where_ray_would_refuse_it(job: Job) -> None:
    assert job.run(RAY, WITHOUT_GRPC="1").returncode == 0
    assert not any("client" in call for call in job.calls("ray start"))


@pytest.mark.parametrize("code", [0, 3])
def test_the_tuners_exit_code_is_handed_on_and_nothing_stays(job: Job, code: int) -> None:
    tuner = f'ls -d /tmp/ray-{job.id}* > "$STATE/temps"; exit {code}'
    assert job.run(RAY, TUNER=tuner).returncode == code
    assert len((job.folder / "state" / "temps").read_text().split()) == 2
    assert [line.split()[2] for line in job.calls("temp")] == ["700", "700"]
    assert job.temps() == []
    assert job.tokens() == []


def test_on_sigterm_the_tuner_ends_first_and_nothing_stays(job: Job) -> None:
    with job.start(RAY, TUNER=PATIENT) as process:
        job.wait_for((job.folder / "state" / "at-").exists)
        assert len(job.temps()) == 2
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - began < 10
    assert next(line for line in job.lines if " ends" in line) == "tuner ends"
    assert len([line for line in job.lines if line.startswith("ray ends")]) == 2
    assert job.temps() == []
    assert job.tokens() == []


def test_when_slurm_tells_every_process_to_end_nothing_stays(job: Job) -> None:
    """As scancel does: all get the signal, and those that hand it on send it twice."""
    with job.start(RAY, TUNER='touch "$STATE/at-"; exec sleep 600') as process:
        job.wait_for((job.folder / "state" / "at-").exists)
        tell_to_end(process.pid)
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert job.temps() == []
    assert job.tokens() == []


def tell_to_end(pid: int) -> None:
    parent = psutil.Process(pid)
    for one in [parent, *parent.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGTERM)


def test_a_temp_folder_of_somebody_else_is_neither_used_nor_removed(job: Job) -> None:
    theirs = Path(f"/tmp/ray-{job.id}")
    theirs.mkdir()
    done = job.run(RAY)
    assert done.returncode == 1
    assert f"{theirs}" in done.stderr
    assert "none of 2 nodes joined: Ray did not start on node1" in done.stderr
    assert job.calls("ray") == job.calls("python -m") == []
    assert job.temps() == [theirs]


def test_a_node_that_does_not_come_is_waited_for_so_long_and_then_done_without(job: Job) -> None:
    began = time.monotonic()
    done = job.run(RAY, LOST="node2", PATIENCE="3")
    assert done.returncode == 0
    assert 3 <= time.monotonic() - began < 15
    assert "warning: 1 of 2 nodes joined in 3 seconds" in done.stderr
    assert len(job.calls("python -m")) == 1


def test_where_no_node_comes_the_tuner_does_not_start(job: Job) -> None:
    done = job.run(RAY, LOST="node1")
    assert done.returncode == 1
    assert "none of 2 nodes joined" in done.stderr
    assert len(job.calls("ray start")) == 1
    assert job.calls("python -m") == []
    assert job.temps() == job.tokens() == []


def test_a_node_that_does_not_see_the_token_says_so(job: Job) -> None:
    blind = "while [[ $1 == -* ]]; do [[ $1 != -w ]] || shift; shift; done; RAY_AUTH_TOKEN_PATH=/nowhere exec env "
    (job.folder / "bin" / "srun").write_text(f'#!/bin/bash\n{blind} "$@"\n')
    done = job.run(RAY)
    assert done.returncode == 1
    assert "does not see /nowhere: set SHARED_FOLDER" in done.stderr


def test_a_job_of_one_node_starts_no_others(job: Job) -> None:
    done = job.run(RAY, NODES="node1")
    assert done.returncode == 0
    assert "1 of 1 nodes joined" in done.stderr
    assert len(job.calls("ray start")) == 1


def test_a_node_with_no_address_that_others_reach_ends_the_job(job: Job) -> None:
    (job.folder / "bin" / "hostname").write_text("#!/bin/bash\necho 127.0.0.1 ::1\n")
    done = job.run(RAY)
    assert done.returncode == 1
    assert "node1 has no IPv4 address" in done.stderr
    assert job.tokens() == []


def test_each_node_has_a_tuner_with_an_output_of_its_own_on_one_study(job: Job) -> None:
    done = job.run(POSTGRESQL, "--model", "mymodule:build", AUTOTUNE_STORAGE=URL, OMP_NUM_THREADS="3")
    assert done.returncode == 0, done.stderr
    (step,) = job.calls("srun")
    assert "--nodes=2 --ntasks-per-node=1" in step
    assert "--kill-on-bad-exit=0 --wait=0" in step
    outputs = sorted(re.findall(r"--output (\S+) --model mymodule:build", "\n".join(job.calls("python"))))
    assert outputs == ["autotune-node1.yaml", "autotune-node2.yaml"]
    for name in ("tuner-node1", "tuner-node2"):
        assert job.told(name)["AUTOTUNE_STORAGE"] == URL
        assert job.told(name)["OMP_NUM_THREADS"] == "3"
    assert SECRET not in "\n".join(job.lines)


def test_the_highest_exit_code_of_the_tuners_is_handed_on(job: Job) -> None:
    assert job.run(POSTGRESQL, AUTOTUNE_STORAGE=URL, TUNER="[ $SLURMD_NODENAME = node1 ] || exit 4").returncode == 4


def test_tuners_on_all_nodes_are_told_to_end(job: Job) -> None:
    with job.start(POSTGRESQL, AUTOTUNE_STORAGE=URL, TUNER=PATIENT) as process:
        job.wait_for(lambda: len(list((job.folder / "state").glob("at-*"))) == 2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert job.lines.count("tuner ends") == 2


@pytest.mark.parametrize("url", ["", "sqlite:///study.db"])
def test_without_the_url_of_a_database_nothing_starts(job: Job, url: str) -> None:
    done = job.run(POSTGRESQL, AUTOTUNE_STORAGE=url)
    assert done.returncode == 2
    assert "export AUTOTUNE_STORAGE=postgresql://USER:PASSWORD@HOST/DATABASE" in done.stderr
    assert job.lines == []


def test_the_tuner_itself_takes_the_url_from_the_environment(tmp_path: Path) -> None:
    """It refuses one that another driver is for, without showing the password."""
    job = make_job(tmp_path, "srun")
    (tmp_path / "mymodule.py").write_text("def build():\n    raise AssertionError\n")
    url = URL.replace("postgresql", "postgresql+other")
    done = job.run(POSTGRESQL, "--model", "mymodule:build", AUTOTUNE_STORAGE=url, PYTHONPATH=str(HOSTS.parents[1]))
    assert done.returncode == 2
    assert done.stderr.count("autotune: error: --storage postgresql+other://…") == 2, done.stderr
    assert SECRET not in done.stderr + done.stdout


TRIVIAL = """
import os, ray, subprocess, sys
ray.init(logging_level="error", log_to_driver=False)
for path in [f"/proc/{pid}/cmdline" for pid in os.listdir("/proc") if pid.isdigit()]:
    try:
        words = open(path, "rb").read()
    except OSError:
        continue
    assert open(os.environ["RAY_AUTH_TOKEN_PATH"], "rb").read() not in words, path
hosts = [node for node in ray.nodes() if node["Alive"]]
assert ray.get(ray.remote(lambda: 42).remote()) == 42
wrong = os.environ["STATE"] + "/wrong"
open(wrong, "w").write("0" * 64)
for given in ({}, {"RAY_AUTH_TOKEN_PATH": wrong}, {"RAY_AUTH_MODE": "disabled"}):
    asked = subprocess.run(["ray", "status"], env=os.environ | given, capture_output=True, text=True)
    print("let in" if asked.returncode == 0 else "refused" if "Authentication" in asked.stderr else asked.stderr)
print(len(hosts), "hosts", flush=True)
sys.exit(3)
"""


@pytest.mark.slow
def test_a_real_cluster_of_two_on_this_machine(tmp_path: Path, processes: Callable[[], list[psutil.Process]]) -> None:
    """Only Slurm is a stand-in, and so is what runs in the tuner's place."""
    pytest.importorskip("ray")
    job = make_job(tmp_path, "srun", "scontrol")
    python = f'#!/bin/bash\n[ "$1" != -m ] || exec {sys.executable} "$STATE/trivial.py"\nexec {sys.executable} "$@"\n'
    (tmp_path / "bin" / "python").write_text(python)
    (tmp_path / "bin" / "python").chmod(0o755)
    (tmp_path / "state" / "trivial.py").write_text(TRIVIAL)
    try:
        with job.start(RAY, PATIENCE="90") as process:
            out, err = process.communicate(timeout=150)
        assert "2 of 2 nodes joined" in err, err + out
        assert "let in\nrefused\nrefused\n2 hosts\n" in out, err + out
        assert process.returncode == 3
        assert job.temps() == job.tokens() == []
        assert are_gone(processes)
    finally:
        clean(job)
