"""Training code of an installed package, by ``-m`` or by the command that it brings along: it is the user's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.errors import UsageError
from autotune.records import Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Script, describe
from tests.processes import ROOT, run_python
from tests.scripts.looping import LOOPS, per_second
from tests.search.there import there

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(sys.platform != "linux", reason="scripts are measured in forks"),
]

DATA = """
from package.parts import Samples
from torch.utils.data import DataLoader
def make():
    return DataLoader(Samples(160, 0.005), batch_size=8, shuffle=True)
"""
TRAIN = """
import sys
from package.data import make
from package.parts import train
def main():
    for _ in range(int(sys.argv[1])):
        loader = make()
        for x, y in loader:
            train(x, y, 0.02)
        print(sys.argv[0], loader.num_workers)
if __name__ == "__main__":
    main()
"""
COMMAND = "#!/usr/bin/env python3\nimport sys\nfrom package.train import main\nsys.exit(main())\n"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package and its command, installed outside of the working folder."""
    site = tmp_path / "lib" / "site-packages"
    for name, text in {
        "package/__init__.py": "",
        "package/parts.py": (LOOPS / "parts.py").read_text("utf-8"),
        "package/data.py": DATA,
        "package/train.py": TRAIN,
        "package-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: package\nVersion: 1\n",
        "package-1.dist-info/entry_points.txt": "[console_scripts]\ntrain-it = package.train:main\n",
        "../../bin/train-it": COMMAND,
    }.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (tmp_path / "bin" / "train-it").chmod(0o755)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize("words", [("-m", "package.train"), ("train-it",), ("../bin/train-it",)], ids=" ".join)
def test_its_place_is_named_its_rate_is_true_and_the_answer_is_applied(words: tuple[str, ...]) -> None:
    with ProcessRunner(describe(Script.of((*words, "50")))) as runner:
        site = runner.inspect(Config()).loader_site
        found = there(runner.measure(Config(batch_size=8), Request(seconds=1.0, time_limit=60)).measurement)
    assert site == "package/data.py:5 Samples[160]"
    assert 0.8 * per_second(8, 8 * 5, 20) < found.samples_per_second < 1.02 * per_second(8, 8 * 5, 20)
    answer = Config(batch_size=8, num_workers=2, made_on={"loader": site})
    answer.save("autotune.yaml")
    done = run_python("-m", "autotune", "apply", "--strict", "autotune.yaml", *words, "1", folder=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "2"


@pytest.mark.parametrize(
    ("command", "way"),
    [
        ("torchrun", "write torchrun ... -m autotune run SCRIPT"),
        ("accelerate", "write accelerate ... -m autotune run SCRIPT"),
        ("sh", "is no Python script"),
        ("no-such-command", "no such file"),
    ],
)
def test_a_command_that_is_no_script_is_refused_with_the_way(command: str, way: str) -> None:
    with pytest.raises(UsageError, match=way):
        Script.of((command, "train.py"))
