"""Environment variables that a script sets before it imports torch count as in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.processes import printed, run_python
from tests.scripts.holding import InTurn, in_turn

LOOP = """
import os
import sys
from torch.utils.data import DataLoader, TensorDataset

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
torch.ones(10**6).exp()
found = 100 * torch.get_num_threads() + 10 * (threads() - before) + torch._dynamo.config.disable
print(found)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
loader = DataLoader(TensorDataset(torch.ones(960, 1)), batch_size=8)
for epoch in range(int(os.environ.get("EPOCHS", "100"))):
    for (batch,) in loader:
        (model(batch).sum() * 0 + found).backward()
        optimizer.step()
"""
BUILT = "return torch.nn.Linear(1, 1), torch.utils.data.TensorDataset(torch.ones(9, 1), torch.ones(9, 1))"
IMPORT = "import torch, torch._dynamo"
ONE = 'import os\nos.environ["OMP_NUM_THREADS"] = "1"\n'
IF_NOT_ONE = 'import os\nif os.environ["OMP_NUM_THREADS"] != "1":\n    os.environ["OMP_NUM_THREADS"] = "1"\n'
SCRIPTS = {
    "at the top": ONE + IMPORT,
    "after the import": f"{IMPORT}\n{ONE}",
    "in a module": f"import sys\nsys.dont_write_bytecode = True\nimport first\n{IMPORT}",
    "by its name": f'{ONE}os.environ["TORCH_NOW"] = str(os.getpid())\n'
    f'import importlib\nimportlib.import_module("torch")\n{IMPORT}',
    "deleted": f'import os\ndel os.environ["OMP_NUM_THREADS"], os.environ["TORCH_COMPILE_DISABLE"]\n{IMPORT}',
    "whatever torch does": f"{ONE}try:\n    {IMPORT}\nexcept:\n    {IMPORT}",
    "asked of torch": f"{IMPORT}\ntorch.set_num_threads(1)",
    "none": IMPORT,
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InTurn]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        patch.setenv("TORCH_COMPILE_DISABLE", "1")
        with in_turn(tmp_path_factory.mktemp("threads")) as runner:
            yield runner


@pytest.mark.machine
@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_computes_in_as_many_threads_as_in_plain_python(kind: str, runner: InTurn) -> None:
    Path("first.py").write_text(IF_NOT_ONE)
    Path("train.py").write_text(SCRIPTS[kind] + LOOP)
    plain = int(printed("train.py", folder=Path.cwd(), EPOCHS="0"))
    runner.turn_to(Path("train.py"))
    facts = runner.inspect(Config())
    assert facts.intra_op_threads == plain // 100
    assert set(runner.losses(Config(), 60.0)) == {float(plain)}
    if kind == "at the top":
        assert set(runner.losses(Config(intra_op_threads=2), 60.0)) == {211.0}


@pytest.mark.machine
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_function_computes_in_as_many_threads_as_in_plain_python(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.py").write_text(f"{ONE}import torch\ndef build():\n    {BUILT}\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with ProcessRunner(describe(f"{tmp_path / 'job.py'}:build"), oversubscribe_ranks=True) as runner:
        assert runner.inspect(Config(ranks=ranks)).intra_op_threads == 1


@pytest.mark.machine
def test_the_answers_threads_come_before_those_of_the_script_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS["at the top"] + LOOP)
    lines = (tmp_path / "train.py").read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.startswith("loader"))
    for threads, found in ((None, 100), (2, 210)):
        answer = {"loader": f"train.py:{number} TensorDataset[960]"}
        Config(batch_size=4, intra_op_threads=threads, made_on=answer).save(tmp_path / "a.yaml")
        command = ("-m", "autotune", "apply", "--strict", "a.yaml", "train.py")
        variables = {"OMP_NUM_THREADS": "2", "TORCH_COMPILE_DISABLE": "0", "PYTHONWARNINGS": "ignore"}
        done = run_python(*command, folder=tmp_path, EPOCHS="1", **variables)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{found}\n", "")
