"""Commands that start the script once more, or ranks, as Python's audit hooks tell of them; no program is started."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.machine.launcher import heed_launches

PYTHON = sys.executable


class Heard(Exception):
    """A launch was heard; the program does not start."""


def refuse() -> None:
    raise Heard


def does_launch(event: str, *given: Any) -> bool:
    try:
        sys.audit(event, *given)
    except Heard:
        return True
    return False


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``train.py``, which can be executed; a hook of audits stays until Python ends."""
    folder = tmp_path_factory.mktemp("project").resolve()
    (folder / "train.py").write_text("#!/usr/bin/env python\n")
    (folder / "train.py").chmod(0o755)
    (folder / "other.py").write_text("")
    (folder / "runs").mkdir()
    heed_launches(str(folder / "train.py"), "package.train", refuse)
    return folder


@pytest.fixture(autouse=True)
def _inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


BOTH = {
    "python train.py": True,
    f"{PYTHON} -u ./train.py --lr 1": True,
    "python3.12 -W ignore -m package.train": True,
    "python -Wignore -X dev -B train.py": True,
    "python -um package.train": True,
    "python -m torch.distributed.run --nproc-per-node 2 other.py": True,
    "env A=1 python train.py": True,
    "env -i -u B A=1 python train.py": True,
    "numactl --cpunodebind=0 python train.py": True,
    "numactl -N 0 -m 0 python train.py": True,
    "taskset -c 0-3 python train.py": True,
    "nohup nice -n 5 python train.py": True,
    "timeout -k 3 5m python train.py": True,
    "srun -p gpu -n 2 python train.py": True,
    "conda run -n torch python train.py": True,
    "conda run --no-capture-output torchrun other.py": True,
    "srun --pty bash -c 'python train.py'": True,
    "accelerate launch --num_processes 2 other.py": True,
    "/usr/bin/env accelerate launch other.py": True,
    "torchrun --nproc-per-node 2 other.py": True,
    "deepspeed other.py": True,
    "mpirun -np 2 python other.py": True,
    "horovodrun -np 2 python other.py": True,
    "./train.py --lr 1": True,
    "bash -c 'python train.py'": True,
    "bash -o pipefail -ec 'set -x; python train.py'": True,
    "cp main.py runs/": False,
    "cp train.py runs/": False,
    "nohup cp ./train.py runs/": False,
    "git log -- train.py": False,
    "tar czf code.tgz train.py": False,
    "sha256sum train.py": False,
    "grep -n python train.py": False,
    "pip show accelerate": False,
    "which torchrun": False,
    "accelerate config": False,
    "accelerate env": False,
    "mpirun -np 2 ./solve": False,
    "nvidia-smi": False,
    "python -m compileall train.py": False,
    "python -m pip install torch.distributed.run": False,
    "python other.py train.py": False,
    "python -W ignore other.py -m package.train": False,
    "python -c 'print(1)' train.py": False,
    "python - train.py": False,
    "python": False,
    "python -m": False,
    "bash": False,
    "bash run.sh -c": False,
    "bash -c": False,
    "env A=1": False,
    "nice -n 5": False,
}
"""Commands that are the same with a shell and without."""
IN_SHELLS = {
    "A=1 B='x y' python train.py": True,
    "nohup python train.py &": True,
    "cd runs && python ../train.py": True,
    "cd / ; cd $PROJECT && python train.py": True,
    "python train.py; echo": True,
    "(python train.py | tee log)": True,
    "cp train.py runs/\npython \\\n  train.py": True,
    "if ! python train.py; then exit 1; fi": True,
    "for i in 1 2; do time python train.py > log 2>&1; done": True,
    "x=$(python train.py)": True,
    "echo `python train.py`": True,
    "python train.py; echo it's": True,
    "cp train.py runs/ && echo python train.py": False,
    "ls; # python train.py": False,
    "echo 'a; python train.py'": False,
    "python 'train.py": False,
    "cat < train.py": False,
    "": False,
}


@pytest.mark.parametrize(("text", "is_launch"), [*BOTH.items(), *IN_SHELLS.items()])
def test_a_shells_text_is_a_launch_by_the_programs_in_it(
    text: str, is_launch: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT", str(project))
    shell = ["/bin/sh", "-c", text]
    assert does_launch("os.system", text.encode()) is is_launch
    assert does_launch("subprocess.Popen", "/bin/sh", shell, None, None) is is_launch


@pytest.mark.parametrize(("text", "is_launch"), BOTH.items())
def test_a_program_is_a_launch_by_its_file_and_the_script_argument(text: str, is_launch: bool) -> None:
    words = shlex.split(text)
    assert does_launch("subprocess.Popen", words[0], words, None, None) is is_launch
    assert does_launch("os.exec", words[0], [b"other name", *words[1:]], None) is is_launch
    assert does_launch("os.posix_spawn", os.fsencode(words[0]), tuple(words), {}) is is_launch


def run(*words: str) -> Callable[[], object]:
    return lambda: subprocess.run(words, check=True)


def test_a_copy_of_the_script_is_made_and_the_script_is_not_started() -> None:
    run("cp", "train.py", "runs/")()
    assert os.system("cp other.py runs/ && sha256sum train.py > runs/sums") == 0
    assert sorted(os.listdir("runs")) == ["other.py", "sums", "train.py"]
    for start in (run(PYTHON, "train.py"), lambda: os.system("echo && python train.py"), run("torchrun", "other.py")):
        with pytest.raises(Heard):
            start()


WORDS = st.text() | st.binary() | st.sampled_from(["python", "-m", "-W", "env", "sh", "-c", "cd", ";", "'", "\0", "--"])


@given(st.sampled_from(["subprocess.Popen", "os.exec", "os.posix_spawn"]), st.lists(WORDS), WORDS)
def test_no_command_raises(event: str, words: list[str | bytes], text: str | bytes) -> None:
    assert not does_launch(event, text, words, None, None)
    assert not does_launch("os.system", text)
    assert not does_launch("os.system", " ".join(map(os.fsdecode, words)))


@pytest.mark.parametrize("given", [(), (None,), ("python", None, None, None), (3, [4], None, None)], ids=str)
def test_an_event_of_another_shape_raises_nothing(given: tuple[Any, ...]) -> None:
    assert not does_launch("subprocess.Popen", *given)
    assert not does_launch("os.system", *given)
