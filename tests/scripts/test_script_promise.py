"""A file that holds for a script, and no more once the script sleeps; what limits a script."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import comparison, diagnostics
from autotune.cli import main
from autotune.config import Config
from autotune.diagnosis.findings import Cause
from autotune.workload import Script

pytestmark = pytest.mark.machine

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4), torch.ones(1)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x, y in DataLoader(Samples(), batch_size=4):
    time.sleep(float(sys.argv[1]))
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    open("log.txt", "a").write(f"{loss.item()}\\n")
"""
LINE = 1 + next(number for number, line in enumerate(SCRIPT.splitlines()) if "DataLoader(" in line)
STEP = "    time.sleep(float(sys.argv[1]))\n"
SLOWER = SCRIPT.replace("import sys, time\n", "import sys, time\n\n").replace(STEP, f"{STEP}    time.sleep(0.2)\n")
"""The script with a sleep in its step, beside which loading hardly counts."""
OWN = Config(batch_size=4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a script and its file; the script is measured for moments, and leaves nothing there."""
    (tmp_path / "train.py").write_text(SCRIPT)
    promised = {"speedup": 2.0, "speedup_ci95": [1.4, 2.5], "baseline": {"batch_size": OWN.batch_size}}
    made_on = {"loader": f"train.py:{LINE} Samples[4000]"}
    replace(replace(OWN, num_workers=2), measured=promised, made_on=made_on).save(tmp_path / "autotune.yaml")
    monkeypatch.chdir(tmp_path)
    for module, name in ((comparison, "WINDOW"), (diagnostics, "WINDOW"), (diagnostics, "PART")):
        monkeypatch.setattr(module, f"{name}_SECONDS", 0.5)
    return tmp_path


@pytest.mark.parametrize(("script", "code"), [(SCRIPT, 0), (SLOWER, 1)], ids=["as it was", "slower"])
def test_a_promise_holds_until_the_script_sleeps(
    folder: Path, capsys: pytest.CaptureFixture[str], script: str, code: int
) -> None:
    Path("train.py").write_text(script)
    ended = main(["check", "--json", "autotune.yaml", "train.py", "0.01"])
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert ended == code, found
    assert "What train.py writes goes to" in told.err
    moves = any("apply finds no DataLoader like train.py:" in note for note in found["notes"])
    assert moves == (script is SLOWER)  # its line is another now
    assert sorted(path.name for path in folder.iterdir()) == ["autotune.yaml", "train.py"]


def test_a_diagnosis_of_a_script_names_its_limit_and_its_code(folder: Path) -> None:
    found = diagnostics.diagnose(Script(path="train.py", arguments=("0.002",)))
    assert found.bottleneck in (Cause.WAITING, Cause.NEIGHBOURS), found.findings  # beside busy ones nothing else counts
    assert found.config == OWN
    places = [place for each in found.findings if each.cause is Cause.SYNCHRONISATION for place in each.evidence]
    assert any("train.py" in place for place in places), found.findings
    assert sorted(path.name for path in folder.iterdir()) == ["autotune.yaml", "train.py"]
