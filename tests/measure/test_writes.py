"""What is said of writes that are held: the way, and the reason of an error that comes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from autotune.measure.writes import Means, means_of_kernel
from autotune.outcome import Outcome
from autotune.workload import HELD, Script

IN_COPIES = """
import os, subprocess, sys
from pathlib import Path
from autotune.measure.copies import Copies
from autotune.measure.writes import Hold
folder = Path(sys.argv[1])
(folder / "copies").mkdir()
copies = Copies(str(folder / "copies"), ["/dev", "/proc"])
copies.install()
os.chdir(folder)
Path("rows.arrow").write_text("new")
Path("missing rows").mkdir()
import pyarrow.fs
try:
    {}
except Exception as error:
    print(Hold("kernel", copies=copies).explain(error))
"""
OF_LARGE_MEMORY = """
import resource
import sys
import torch
from torch.utils.data import DataLoader
from autotune.measure.failures import classify
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, -1))
try:
    {}
except Exception as error:
    print(*classify(error)[:2])
"""


def said(code: str, *given: object) -> str:
    done = subprocess.run([sys.executable, "-c", code, *map(str, given)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "read",
    [
        "pyarrow.fs.LocalFileSystem().open_input_file('rows.arrow')",
        "pyarrow.fs.LocalFileSystem().open_input_file(str(folder / 'rows.arrow'))",
        "subprocess.run(['cat', 'rows.arrow'], check=True)",
        "subprocess.run('cat <rows.arrow', shell=True, check=True)",
        "subprocess.run(['sh', '-c', 'exec cat --  rows.arrow'], check=True)",
    ],
)
def test_an_error_about_a_copy_that_is_not_seen_names_it_and_the_way_out(read: str, tmp_path: Path) -> None:
    message = said(IN_COPIES.format(read), tmp_path)
    assert f" {tmp_path / 'rows.arrow'} is a copy" in message
    assert ".. " not in message
    assert "--allow-writes" in message


@pytest.mark.parametrize(
    "read",
    [
        "open('apart.arrow')",
        "subprocess.run(['cat', 'apart.arrow'], check=True)",
        "subprocess.run(['false'], check=True)",
        "raise ValueError('not found: missing rows')",
        "raise ValueError('rows.arrow has no rows')",
    ],
)
def test_other_errors_stay_as_they_are(read: str, tmp_path: Path) -> None:
    assert "--allow-writes" not in said(IN_COPIES.format(read), tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only there are files limited")
@pytest.mark.parametrize(
    ("fill", "outcome"),
    [
        ("torch.zeros(2**20).share_memory_()", Outcome.SHM),
        ("next(iter(DataLoader(torch.zeros(2, 2**20), batch_size=2, num_workers=1)))", Outcome.SHM),
        ("open(sys.argv[1] + '/large', 'wb').truncate(2**21)", Outcome.USER_ERROR),
    ],
)
def test_memory_or_a_file_that_the_limit_of_files_refuses_is_said_to_be_so(
    fill: str, outcome: Outcome, tmp_path: Path
) -> None:
    message = said(OF_LARGE_MEMORY.format(fill), tmp_path)
    assert message.startswith(f"{outcome} "), message
    assert "File too large" in message
    assert "a limit of files (ulimit -f)" in message


def test_each_way_has_its_sentence_and_a_kernel_without_all_rights_claims_less() -> None:
    assert set(HELD) == set(get_args(Means))
    assert [means_of_kernel(version) for version in (0, 1, 2, 3, 6)] == [
        "python", "older kernel", "older kernel", "kernel", "kernel",
    ]  # fmt: skip
    (told,) = Script(path="train.py").told(None, (), "older kernel")
    assert told is not None
    assert "held" not in told
