"""A script may be named by a path with symbolic links: places and patches are those of the files themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.exports.patch import patch_of
from autotune.workload import Script
from tests.processes import printed
from tests.scripts.holding import InTurn, in_turn

SCRIPT = """
import sys
found = [sys.argv[0], __file__, sys.path[0]]
if sys.argv[1:] and found != sys.argv[1:]:
    raise ValueError(f"plain Python has {sys.argv[1:]}, not {found}")
if not sys.argv[1:]:
    print(*found)
    sys.exit()
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(960, 1)), batch_size=8)
print(loader.batch_size)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
for (batch,) in loader:
    model(batch).sum().backward()
    optimizer.step()
"""
LINE = 1 + SCRIPT.splitlines().index(next(line for line in SCRIPT.splitlines() if line.startswith("loader")))
SPELLINGS = ("true/train.py", "linked/train.py", "work/other_name.py", "true/beside.py", "true/parts/../train.py")
"""The file itself, in a linked folder, as a linked file elsewhere and beside it, and with a detour."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InTurn]:
    with in_turn(tmp_path_factory.mktemp("linked")) as runner:
        for each in ("true/parts", "work"):
            Path(each).mkdir(parents=True)
        Path("true/train.py").write_text(SCRIPT)
        Path("linked").symlink_to("true")
        Path("work/other_name.py").symlink_to("../true/train.py")
        Path("true/beside.py").symlink_to("train.py")
        yield runner


@pytest.mark.machine
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_place_is_relative_the_patch_works_and_the_answer_is_applied(spelling: str, runner: InTurn) -> None:
    plain = printed("-B", spelling, folder=Path.cwd()).split()
    runner.turn_to(Script(path=spelling, arguments=tuple(plain)))
    site = runner.inspect(Config()).loader_site
    assert site == f"train.py:{LINE} TensorDataset[960]"
    answer = Config(batch_size=16, made_on={"loader": site, "batch_size": 8})
    patch = patch_of(answer, Script.of([spelling]))
    assert [path.relative_to(Path.cwd()).as_posix() for path in patch.files] == ["true/train.py"]
    answer.save("a.yaml")
    apply = ("-B", "-W", "ignore", "-m", "autotune", "apply", "--strict", "a.yaml", spelling, *plain)
    assert printed(*apply, folder=Path.cwd()) == "16"
