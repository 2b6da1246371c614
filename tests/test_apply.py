"""A script with the answer of a config file: the same losses, the settings at the one loader that they are for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from autotune.apply import read_answer
from autotune.config import Config
from autotune.errors import ConfigFileError
from autotune.sites import Site, changed
from tests.processes import run_python

JOBS = Path(__file__).resolve().parents[1] / "studies" / "scripts" / "jobs"
ANSWER = Config(batch_size=24, num_workers=2, prefetch_factor=4, persistent_workers=True, intra_op_threads=1)


def test_only_settings_change_and_what_needs_workers_goes_with_them() -> None:
    given = {"dataset": [1], "batch_size": 8, "shuffle": True, "num_workers": 4, "timeout": 5.0, "prefetch_factor": 3}
    assert changed(given, Config(batch_size=16)) == {
        "dataset": [1],
        "batch_size": 16,
        "shuffle": True,
        "num_workers": 0,
        "pin_memory": False,
    }
    sampler = BatchSampler(SequentialSampler([1, 2]), 2, drop_last=False)
    assert "batch_size" not in changed({"dataset": [1, 2], "batch_sampler": sampler}, ANSWER)
    assert changed({"dataset": [1, 2], "batch_size": None, "shuffle": True}, ANSWER)["batch_size"] is None
    assert changed(given, ANSWER)["timeout"] == 5.0


@pytest.mark.parametrize(
    ("measured", "made"),
    [
        (None, [24, 24, 24]),  # nobody knows the present size
        ({"verdict": "no gain"}, [8, 16, 32]),
        ({"baseline": {"batch_size": 24}}, [8, 16, 32]),
        ({"baseline": {"batch_size": 16}}, [8, 24, 32]),
    ],
)
def test_a_batch_size_is_set_where_the_answer_changed_it_and_the_call_gives_the_present_one(
    measured: dict[str, Any] | None, made: list[int]
) -> None:
    config = replace(ANSWER, measured=measured)
    found = [{"batch_size": size} | changed({"dataset": [1], "batch_size": size}, config) for size in (8, 16, 32)]
    assert [each["batch_size"] for each in found] == made
    assert {each["num_workers"] for each in found} == {2}


def test_a_file_that_names_no_loader_is_refused(tmp_path: Path) -> None:
    ANSWER.save(tmp_path / "autotune.yaml")
    with pytest.raises(ConfigFileError, match="names no DataLoader of a script"):
        read_answer(str(tmp_path / "autotune.yaml"))


@pytest.mark.machine
@pytest.mark.parametrize("seen", [None, 768])
def test_it_is_said_once_that_a_rate_is_known_for_the_beginning_of_an_epoch_only(
    tmp_path: Path, seen: int | None
) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    made = {"loader": "train.py:1 Stream[]"}
    replace(ANSWER, measured={"beginning_samples": seen}, made_on=made).save(tmp_path / "autotune.yaml")
    done = run_python("-m", "autotune", "apply", "autotune.yaml", "train.py", folder=tmp_path, seconds=120)
    assert done.stdout == "trained\n"
    told = "autotune: autotune.yaml: its rate is known, for the first 768 samples of an epoch, and not for the rest"
    assert done.stderr.splitlines().count(told) == (seen is not None)


def test_the_call_is_the_packages_where_one_makes_the_loader() -> None:
    of_package = Site(file="job.py", line=60, inside=("train", "get_train_dataloader"), dataset="D", length=3)
    assert of_package.call == "job.py:60: train"
    own = Site(file="gan.py", line=7, inside=(), dataset="D", length=None)
    assert own.call == "gan.py:7: DataLoader"
    assert own.key == "gan.py:7 D[]"


def output_of(*command: str, folder: Path) -> str:
    done = run_python(*command, folder=folder, seconds=120, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.machine
def test_losses_are_those_of_a_plain_run_and_a_loader_that_is_not_there_is_said(tmp_path: Path) -> None:
    lines = (JOBS / "epochs.py").read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "DataLoader(dataset" in line)
    script = (str(JOBS / "epochs.py"), "--epochs", "1")
    (plain,) = losses_in(output_of(*script, folder=tmp_path))
    for line, is_there in ((number, True), (1, False)):
        answer = {"loader": f"epochs.py:{line} Readings[1920]"}
        config = Config(**{**ANSWER.dataloader_kwargs(), "intra_op_threads": 1}, made_on=answer)
        config.save(tmp_path / "autotune.yaml")
        applied = output_of("-m", "autotune", "apply", "autotune.yaml", *script, folder=tmp_path)
        assert losses_in(applied) == [pytest.approx(plain, rel=1e-4)]
        assert ("was not applied" in applied) == (not is_there)


def losses_in(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss ([^,]+),", text)]


BOTH = """
import sys, torch
from torch.utils.data import DataLoader, random_split, TensorDataset
def loader(data):
    made = DataLoader(data, batch_size=8)
    print(len(data), made.batch_size, made.num_workers)
    return made
torch.set_num_threads(2)
torch.set_num_interop_threads(2)
print(torch.get_num_threads(), "threads")
valid, train = random_split(TensorDataset(torch.ones(48, 1)), [24, 24])
loader(valid)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
for epoch in range(2):
    for batch in loader(train):
        model(batch[0]).sum().backward()
        optimizer.step()
print("trained")
"""


@pytest.mark.machine
@pytest.mark.parametrize("ordinal", [2, 3])
def test_of_two_loaders_that_one_line_makes_the_one_that_trains_gets_the_answer(tmp_path: Path, ordinal: int) -> None:
    (tmp_path / "train.py").write_text(BOTH)
    found = {"loader": f"train.py:5 Subset[24] #{ordinal}"}
    replace(ANSWER, inter_op_threads=1, made_on=found).save(tmp_path / "autotune.yaml")
    done = run_python("-m", "autotune", "apply", "--strict", "autotune.yaml", "train.py", folder=tmp_path, seconds=120)
    assert "1 threads" in done.stdout  # those of the answer, which were measured
    made = [line for line in done.stdout.splitlines() if line.startswith("24 ")]
    is_meant = ordinal == 2
    assert made == ["24 8 0", *(["24 24 2"] * 2 if is_meant else ["24 8 0"])]
    assert ("was not applied" in done.stderr) == (not is_meant)
    assert (done.returncode, "trained" in done.stdout) == ((0, True) if is_meant else (1, False))


TOGETHER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
first = DataLoader(TensorDataset(torch.ones(24, 1)), batch_size=8)
other = DataLoader(TensorDataset(torch.ones(48, 1)), batch_size=4)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
for one, two in zip(first, other):
    (model(one[0]).sum() + model(two[0]).sum()).backward()
    optimizer.step()
print(*((each.batch_size, each.num_workers) for each in (first, other)))
"""


@pytest.mark.machine
@pytest.mark.parametrize("length", [48, 49])
def test_all_loaders_that_feed_the_steps_get_the_answer_and_the_others_keep_their_batches(
    tmp_path: Path, length: int
) -> None:
    (tmp_path / "train.py").write_text(TOGETHER)
    sites = {"loader": "train.py:4 TensorDataset[24]", "other_loaders": [f"train.py:5 TensorDataset[{length}]"]}
    replace(ANSWER, made_on=sites).save(tmp_path / "autotune.yaml")
    said = output_of("-m", "autotune", "apply", "autotune.yaml", "train.py", folder=tmp_path)
    assert ("(24, 2) (4, 2)" if length == 48 else "(24, 2) (4, 0)") in said
    assert ("train.py:5 made no DataLoader" in said) == (length == 49)


RESUMED = """
import torch
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader, TensorDataset
accelerator, model = Accelerator(cpu=True), torch.nn.Linear(1, 1)
loader = DataLoader(TensorDataset(torch.ones(96, 1)), batch_size=8)
optimizer = torch.optim.SGD(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    batches = loader if epoch else skip_first_batches(loader, 2)
    for (batch,) in batches:
        accelerator.backward(model(batch).sum())
        optimizer.step()
    print("epoch of", len(batches), "with", batches.num_workers)
"""


@pytest.mark.machine
def test_a_resumed_epoch_has_the_answer_of_the_loader_whose_first_batches_it_skips(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(RESUMED)
    measured = {"baseline": {"batch_size": 8}}
    site = {"loader": "train.py:6 TensorDataset[96]"}
    replace(ANSWER, measured=measured, made_on=site).save(tmp_path / "autotune.yaml")
    said = output_of("-m", "autotune", "apply", "--strict", "autotune.yaml", "train.py", folder=tmp_path)
    assert [line for line in said.splitlines() if "epoch" in line] == ["epoch of 2 with 2", "epoch of 4 with 2"]


EACH_EPOCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset
def loader(name, size):
    made = DataLoader(TensorDataset(torch.ones(24, 1)), batch_size=size)
    print(name, made.batch_size, flush=True)
    return made
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
kept = []
for epoch in range(3):
    if {both}:
        kept.append(loader("valid", 8))
    kept.append(loader("train", 8))
    for batch in kept[-1]:
        model(batch[0]).sum().backward()
        optimizer.step()
    with torch.no_grad():
        kept.append(loader("test", 8))
"""


@pytest.mark.machine
@pytest.mark.parametrize("both", [False, True])
def test_datasets_that_are_new_in_each_epoch_come_in_the_same_order(tmp_path: Path, both: bool) -> None:
    (tmp_path / "train.py").write_text(EACH_EPOCH.format(both=both))
    key = "train.py:5 TensorDataset[24]" + (" #2" if both else "")
    replace(ANSWER, made_on={"loader": key}).save(tmp_path / "autotune.yaml")
    said = output_of("-m", "autotune", "apply", "autotune.yaml", "train.py", folder=tmp_path).splitlines()
    found = [line for line in said if line.split()[0] in ("train", "valid", "test")]
    assert found == [*["valid 8"][: int(both)], "train 24", "test 8"] * 3


TRAINS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch._utils.cpu_count = lambda: 1
dataset, model = TensorDataset(torch.ones(48, 1)), torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
for batch in DataLoader(dataset, batch_size=24):
    model(batch[0]).sum().backward()
    optimizer.step()
copied = DataLoader(dataset, num_workers=2)
DataLoader(TensorDataset(torch.ones(1)), num_workers=3)
"""


@pytest.mark.machine
def test_torch_advises_against_workers_only_where_they_were_not_measured(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    replace(ANSWER, made_on={"loader": "train.py:7 TensorDataset[48]"}).save(tmp_path / "autotune.yaml")
    said = output_of("-W", "default", "-m", "autotune", "apply", "autotune.yaml", "train.py", folder=tmp_path)
    assert said.count("This DataLoader will create") == 1
    assert "This DataLoader will create 3 worker" in said


IN_RANKS = """
import os, torch
from torch.utils.data import DataLoader
loader = DataLoader([1.0] * 16, batch_size=4)
print(os.environ["RANK"], loader.num_workers, torch.get_num_threads(), loader.batch_size)
"""


@pytest.mark.machine
@pytest.mark.parametrize(
    ("measured_with", "workers", "threads", "told"),
    [(1, 4, 2, True), (1, 1, 1, True), (2, 3, 2, False)],
    ids=["of one process", "with nothing to divide", "of as many ranks"],
)
def test_each_rank_takes_its_share_of_an_answer(
    tmp_path: Path, measured_with: int, workers: int, threads: int, told: bool
) -> None:
    (tmp_path / "train.py").write_text(IN_RANKS)
    answer = replace(ANSWER, num_workers=workers, intra_op_threads=threads, ranks=measured_with)
    replace(answer, made_on={"loader": "train.py:4 list[16]"}).save(tmp_path / "autotune.yaml")
    launch = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "autotune", "apply")
    done = run_python("-m", *launch, "--strict", "autotune.yaml", "train.py", folder=tmp_path, seconds=120)
    share = (workers, threads) if measured_with == 2 else (max(1, workers // 2), max(1, threads // 2))
    assert sorted(done.stdout.split("\n")) == ["", *(f"{rank} {share[0]} {share[1]} 24" for rank in range(2))], (
        done.stderr
    )
    assert done.stderr.count("measured with 1 rank, and this is one of 2: it takes its share") == told


STAGES = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
def fit(loader, seconds):
    for (x,) in loader:
        time.sleep(seconds)
        model(x).sum().backward()
        optimizer.step()
first, second, between = map(float, sys.argv[1:])
fit(DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2), first)
time.sleep(between)
fit(DataLoader(TensorDataset(torch.ones(10, 1)), batch_size=2), second)
"""


@pytest.mark.machine
@pytest.mark.parametrize(
    ("times", "said"),
    [
        (("0.2", "0.01", "0"), None),
        (("0.01", "0.2", "0"), "DataLoader of train.py:14 took .* s: tune it with .* run --loop train.py:14 train.py"),
        (("0.02", "0.02", "1"), "the answer makes the rest no faster"),
    ],
    ids=["most", "another loop", "between its epochs"],
)
def test_the_share_of_the_loop_that_was_tuned_is_said_where_it_is_small(
    times: tuple[str, ...], said: str | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(STAGES, "utf-8")
    Config(batch_size=2, made_on={"loader": "train.py:12 TensorDataset[8]"}).save(tmp_path / "autotune.yaml")
    done = run_python("-m", "autotune", "apply", "--strict", "autotune.yaml", "train.py", *times, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    if said is None:
        assert "the loop that was tuned" not in done.stderr
    else:
        assert re.search(f"autotune: the loop that was tuned took .* of training, .*{said}", done.stderr), done.stderr
