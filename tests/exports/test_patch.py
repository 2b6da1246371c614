from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from autotune.cli import main
from autotune.config import Config, learning_rate_of
from autotune.errors import ConfigFileError
from autotune.exports.patch import Patch, patch_of
from autotune.sites import Site, stand_in_for_loaders
from autotune.workload import Script

BEFORE: dict[str, Any] = {"batch_size": 16, "num_workers": 0, "pin_memory": False, "intra_op_threads": None}
ANSWER = Config(
    batch_size=16,
    num_workers=3,
    prefetch_factor=4,
    persistent_workers=True,
    intra_op_threads=2,
    measured={"baseline": BEFORE, "samples_per_second": 1326.0, "verdict": "faster", "speedup": 3.41},
)
HEAD = (
    "import argparse\nimport functools\nfrom functools import partial\nimport torch\nimport torch.utils.data as data\n"
)
HEAD += (
    "from torch.utils.data import DataLoader\nfrom torch.utils.data import DataLoader as Loader\nds = list(range(96))\n"
)
ARGS = "p = argparse.ArgumentParser()\np.add_argument('-j', '--workers', type=int, default=0)\n"
ARGS += "p.add_argument('--bs', dest='size', type=int, default=16)\nargs = p.parse_args([])\n"

CHANGED = {
    "on one line": "loader = DataLoader(ds, batch_size=16, shuffle=True)\n",
    "by its module": "loader = torch.utils.data.DataLoader(ds, batch_size=16)\n",
    "by another name": "loader = Loader(ds, 16)\n",
    "by a module's name": "loader = data.DataLoader(dataset=ds, batch_size=16)\n",
    "by position": "loader = DataLoader(ds, 16, True, None, None, 1)\n",
    "on several lines": "loader = DataLoader(\n    ds,\n    batch_size=16,\n    shuffle=True,\n)\n",
    "without a comma at the end": "loader = DataLoader(\n    ds,\n    batch_size=16\n)\n",
    "with comments": "loader = DataLoader(  # trains\n    ds,  # all\n    batch_size=16,  # small\n    # the end\n)\n",
    "with a comment at the end": "loader = DataLoader(\n    ds,\n    batch_size=16  # small\n)\n",
    "below its parenthesis": "loader = DataLoader(ds,\n                    batch_size=16)\n",
    "with tabs": "def make():\n\treturn DataLoader(\n\t\tds,\n\t\tbatch_size=16,\n\t)\nloader = make()\n",
    "with carriage returns": "loader = DataLoader(\r\n    ds,\r\n    batch_size=16,\r\n)\r\n",
    "without a line end": "loader = DataLoader(ds, batch_size=16)",
    "beside an f-string": "loader = DataLoader(ds, batch_size=int(f'{16:d}')); text = f\"{len('DataLoader(')}\"\n",
    "with other workers": "loader = DataLoader(ds, 16, num_workers=1, prefetch_factor=2, persistent_workers=False)\n",
    "a long line": "loader = DataLoader(ds, batch_size=16, shuffle=False, drop_last=True, timeout=0, generator=None)\n",
    "an expression": "loader = DataLoader(ds, batch_size=8 * 2, num_workers=False) if ds else None\n",
    "a partial": "make = partial(DataLoader, batch_size=16)\nloader = make(ds, shuffle=True)\n",
    "a partial at once": "loader = functools.partial(DataLoader, batch_size=16)(ds)\n",
    "a subclass": "class Mine(DataLoader):\n    pass\nloader = Mine(ds, batch_size=16)\n",
    "a subclass that passes all on": "class Mine(DataLoader):\n    def __init__(self, *args, **kwargs):\n"
    "        super().__init__(*args, **kwargs)\nloader = Mine(ds, batch_size=16)\n",
    "two on one line": "other, loader = DataLoader(ds, 16), DataLoader(ds, 16)\n",
    "nested in a list": "loaders = [\n    DataLoader(ds, batch_size=16),\n    None,\n]\nloader = loaders[0]\n",
    "whole batches": "loader = DataLoader(ds, batch_size=None, shuffle=True)\n",
    "with a batch sampler": "sampler = torch.utils.data.BatchSampler(range(96), 8, False)\n"
    "loader = DataLoader(ds, batch_sampler=sampler)\n",
}
"""Sources that make a ``loader``, which a patch gives its settings."""

OWN = "class Mine(DataLoader):\n    def __init__(self, data):\n        super().__init__(data, batch_size=16)\n"
REFUSED = {
    "options": (
        "options = {'batch_size': 16}\nloader = DataLoader(ds, **options)\n",
        "takes **options: put num_workers=3",
    ),
    "a sequence": ("given = [ds, 16]\nloader = DataLoader(*given)\n", "takes *given: put num_workers=3"),
    "a subclass with parameters of its own": (
        OWN + "loader = Mine(ds)\n",
        "Mine has parameters of its own: have it pass on num_workers=3",
    ),
    "a subclass of a class with parameters of its own": (
        OWN + "class Other(Mine):\n    pass\nloader = Other(ds)\n",
        "Mine has parameters of its own: have it pass on num_workers=3",
    ),
    "a subclass that gives its own workers": (
        (
            "class Mine(DataLoader):\n    def __init__(self, *args, **options):\n"
            "        super().__init__(*args, num_workers=0, **options)\nloader = Mine(ds, 16)\n"
        ),
        "Mine gives num_workers=0 itself: have it pass on num_workers=3",
    ),
    "a class by a variable": (
        "kind = [DataLoader][0]\nloader = kind(ds, batch_size=16)\n",
        "kind(...) is not known to be a DataLoader: pass num_workers=3",
    ),
    "several calls on a line": (
        "kind = [DataLoader][0]\nloader = kind(data.Subset(ds, range(96)), batch_size=16)\n",
        "no call on this line is known to make a DataLoader: pass num_workers=3",
    ),
    "a flag": (
        ARGS + "loader = DataLoader(ds, batch_size=args.size, num_workers=args.workers)\n",
        "num_workers=args.workers comes from the command line: python train.py ... --workers 3",
    ),
    "a variable": (
        "WORKERS = 0\nloader = DataLoader(ds, batch_size=16, num_workers=WORKERS)\n",
        "num_workers=WORKERS is set in line 9: make it 3",
    ),
    "a function": (
        "loader = DataLoader(ds, batch_size=16, num_workers=max(0, len(ds) - 96))\n",
        "num_workers=max(0, len(ds) - 96) is not a plain value: have it give 3",
    ),
}
"""Sources, and what is said of them: a patch does not change where the values come from."""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(source: bytes) -> tuple[Any, Site]:
    """Run a source as ``train.py`` here, and return its loader and the place that made it."""
    found: list[Site] = []
    make = DataLoader.__init__

    def note(init: Any, site: Site, loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
        init(loader, **arguments)
        found.append(site)

    path = Path("train.py").absolute()
    path.write_bytes(source)
    scope: dict[str, Any] = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DataLoader, "__init__", make)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            patched.setenv(name, "1")
        stand_in_for_loaders(Script(path=str(path)), note)
        exec(compile(path.read_bytes(), str(path), "exec"), scope)
    return scope["loader"], found[0] if len(found) == 1 or "kind" in scope else found[-1]


def git(*words: str) -> None:
    subprocess.run(["git", "apply", *words, "autotune.patch"], check=True, capture_output=True)


def answer_at(site: Site, config: Config = ANSWER) -> Config:
    return replace(config, made_on={"loader": site.key, "threads": 2, "cpus": 2})


def patch_here(config: Config) -> Patch:
    return patch_of(config, Script.of(["train.py"]))


def settings(loader: DataLoader[Any]) -> tuple[Any, ...]:
    return loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.persistent_workers


@pytest.mark.parametrize("name", CHANGED)
def test_a_patch_gives_a_call_its_settings_and_taken_back_leaves_no_trace(name: str) -> None:
    source = (HEAD + CHANGED[name]).encode()
    before, site = made(source)
    patch = patch_here(answer_at(site))
    assert patch.remarks == ()
    (edit,) = patch.edits
    assert edit.startswith(f"train.py:{site.line}")
    assert "(..., num_workers=3, prefetch_factor=4, persistent_workers=True" in edit
    Path("autotune.patch").write_bytes(patch.text)
    git()
    changed = Path("train.py").read_bytes()
    loader, _ = made(changed)
    assert settings(loader) == (before.batch_size, 3, 4, True)
    assert all(comment in changed for comment in (b"# small",) if comment in source)
    git("-R")
    assert Path("train.py").read_bytes() == source


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_cannot_be_changed_is_named_with_what_to_do(name: str) -> None:
    source, said = REFUSED[name]
    _, site = made((HEAD + source).encode())
    patch = patch_here(answer_at(site))
    (remark,) = patch.remarks
    assert remark.startswith(f"train.py:{site.line}: ")
    assert said in remark
    for _, after in patch.files.values():  # options of workers beside a number that comes from elsewhere
        loader, _ = made(after)
        assert settings(loader) == (16, 0, None, False)


@pytest.mark.parametrize("source", [*(source for source, _ in REFUSED.values()), CHANGED["on one line"]])
def test_of_a_call_that_has_the_answer_already_nothing_is_said(source: str) -> None:
    _, site = made((HEAD + source).encode())
    answer = answer_at(site, Config(batch_size=16, num_workers=0, intra_op_threads=2, measured={"baseline": BEFORE}))
    for made_on in (answer.made_on, {**answer.made_on, "shared_lines": [site.text]}):
        patch = patch_here(replace(answer, made_on=made_on))
        assert (patch.remarks, patch.files) == ((), {})


@pytest.mark.parametrize(
    ("source", "kept", "changed", "remarks"),
    [
        ("SIZE = 8\nloader = DataLoader(ds, batch_size=SIZE)\n", True, "batch_size=SIZE, num_workers=3", ()),
        ("loader = DataLoader(ds, batch_size=8)\n", True, "batch_size=8, num_workers=3", ()),
        (
            "loader = DataLoader(ds, batch_size=8)\n",
            False,
            "batch_size=8, num_workers=3",
            ("train.py:9: batch_size=8 stays: 4 was measured",),
        ),
    ],
    ids=["kept, by a name", "kept, another one", "changed, another one"],
)
def test_a_batch_size_changes_only_where_the_answer_has_another_one_for_it(
    source: str, kept: bool, changed: str, remarks: tuple[str, ...]
) -> None:
    _, site = made((HEAD + source).encode())
    answer = replace(ANSWER, measured={"baseline": BEFORE | {"batch_size": 16 if kept else 4}})
    patch = patch_here(answer_at(site, answer))
    (_, after), *_ = patch.files.values()
    assert changed in after.decode()
    assert patch.remarks == remarks


@pytest.mark.parametrize("batch_size", [16, 32])
def test_a_line_that_makes_other_loaders_too_is_told_and_left_where_the_batch_changes(batch_size: int) -> None:
    _, site = made((HEAD + "loader = DataLoader(ds, batch_size=16)\n").encode())
    answer = answer_at(site, replace(ANSWER, batch_size=batch_size))
    shared = replace(answer, made_on={**answer.made_on, "shared_lines": [site.text]})
    patch = patch_here(shared)
    (_, after), *_ = patch.files.values() or [(b"", b"")]
    assert (b"num_workers=3" in after) == (batch_size == 16)
    assert [
        remark for remark in patch.remarks if f"{site.text}: " in remark and "makes other DataLoaders too" in remark
    ]


OF_CLASSES = {
    "another parameter": ("self, dataset, rank, **kw", "dataset, **kw", "Mine(ds, 1{})"),
    "of a partial": ("self, dataset, rank, **kw", "dataset, **kw", "functools.partial(Mine, timeout=0)(ds, 1{})"),
    "of a base": ("self, dataset, rank, **kw", "dataset, **kw", "Other(ds, 1{})"),
    "those of a DataLoader behind": ("self, rank, *rest, **kw", "*rest, **kw", "Mine(3, ds, 1, True{})"),
    "a partial's workers": ("self, data, **kw", "data, **kw", "partial(Mine, num_workers=2)(ds{})"),
    "its own workers": ("self, data, num_workers=2, **kw", "data, num_workers=num_workers, **kw", "Mine(ds{})"),
}
"""Parameters of a subclass, those that it passes on, and a call."""


@pytest.mark.parametrize("name", OF_CLASSES)
def test_positions_and_defaults_are_those_of_the_class_that_is_called(name: str) -> None:
    own, passed, call = OF_CLASSES[name]
    source = f"class Mine(DataLoader):\n    def __init__({own}):\n        super().__init__({passed})\n"
    source += "class Other(Mine):\n    pass\n"
    before, site = made(f"{HEAD}{source}loader = {call.format('')}\n".encode())
    present = BEFORE | {"batch_size": 1, "num_workers": before.num_workers}
    answer = Config(batch_size=64, num_workers=0, measured={"baseline": present})
    patch = patch_here(answer_at(site, answer))
    ((_, after),) = patch.files.values()
    loader, _ = made(after)
    assert settings(loader) == (64, 0, None, False)
    said = ", batch_size=64" + (", num_workers=0" if before.num_workers else "")
    wanted = call.format(said) if "True" not in call else call.format("").replace("ds, 1", "ds, 64")
    assert after.decode().splitlines()[-1] == f"loader = {wanted}"


@pytest.mark.parametrize(
    ("line", "column", "changed"),
    [
        ("a, b = DataLoader(ds, 16), DataLoader(ds, 16)", 8, "a, b = DataLoader(ds, 16{}), DataLoader(ds, 16)"),
        ("a, b = DataLoader(ds, 16), DataLoader(ds, 16)", 28, "a, b = DataLoader(ds, 16), DataLoader(ds, 16{})"),
        ("é, b = 'ä', Loader(Loader(ds, 16), 16)", 13, "é, b = 'ä', Loader(Loader(ds, 16), 16{})"),
        (
            "a = iter(partial(DataLoader)(ds)); b = Loader(ds)",
            10,
            "a = iter(partial(DataLoader)(ds{})); b = Loader(ds)",
        ),
    ],
    ids=["the first", "the second", "the outer one", "a partial's"],
)
def test_of_several_dataloaders_on_a_line_that_at_the_column_is_changed(line: str, column: int, changed: str) -> None:
    Path("train.py").write_text(f"{HEAD}{line}\n", encoding="utf-8")
    answer = replace(ANSWER, persistent_workers=False, prefetch_factor=2)
    place = f"train.py:{HEAD.count(chr(10)) + 1}:{column}"
    made_on = {"loader": f"{place} list[96]", "threads": 2, "shared_lines": [place.rpartition(":")[0]]}
    ((_, after),) = patch_here(replace(answer, made_on=made_on)).files.values()
    assert after.decode().removeprefix(HEAD) == changed.format(", num_workers=3") + "\n"
    of_line = replace(answer, made_on={"loader": f"{place.rpartition(':')[0]} list[96]", "threads": 2})
    (remark,) = patch_here(of_line).remarks
    assert remark.endswith("several DataLoaders on one line: pass num_workers=3 to the one that trains")
    beside = replace(answer, made_on={**made_on, "loader": f"{place}0 list[96]"})
    (remark,) = patch_here(beside).remarks
    assert remark.startswith(f"{place}0: no call is here any more: pass num_workers=3")


def test_loaders_on_one_line_that_train_together_are_both_changed() -> None:
    Path("train.py").write_text(f"{HEAD}a, b = DataLoader(ds, 16), DataLoader(ds, 16)\n")
    made_on = {"loader": "train.py:9:8 list[96]", "other_loaders": ["train.py:9:28 list[96]"], "threads": 2}
    patch = patch_here(replace(ANSWER, made_on=made_on))
    assert patch.remarks == ()
    assert patch.text.count(b"num_workers=3") == 2


LINES = "    num_workers=3,\n    prefetch_factor=4,\n    persistent_workers=True,\n"
NONE = Config(batch_size=16, num_workers=0, measured={"baseline": BEFORE | {"num_workers": 2}})


@pytest.mark.parametrize(
    ("source", "answer", "changed"),
    [
        (
            CHANGED["with comments"],
            ANSWER,
            CHANGED["with comments"].replace("small\n", f"small\n{LINES}"),
        ),
        (
            "loader = DataLoader(ds, batch_size=16, num_workers=2, prefetch_factor=4, timeout=3)\n",
            NONE,
            "loader = DataLoader(ds, batch_size=16, num_workers=0)\n",
        ),
        (
            "loader = DataLoader(ds, 16, True, None, None, 2, None, False, False, 3, print)\n",
            NONE,
            "loader = DataLoader(ds, 16, True, None, None, 0, None, False, False, 0, print)\n",
        ),
    ],
    ids=[
        "laid out as those that are there",
        "those of workers go where there are none",
        "by position they keep their place",
    ],
)
def test_arguments_are_written_as_a_user_would(source: str, answer: Config, changed: str) -> None:
    _, site = made((HEAD + source).encode())
    (_, after), *_ = patch_here(answer_at(site, answer)).files.values()
    assert after.decode().removeprefix(HEAD) == changed


def test_threads_are_set_before_torch_is_imported_unless_the_script_does() -> None:
    path, config = Path("train.py").absolute(), replace(ANSWER, intra_op_threads=1)
    config = replace(config, made_on={"loader": "train.py:4 list[96]", "threads": 2})
    body = "from torch.utils.data import DataLoader\nloader = DataLoader([], batch_size=16)\n"
    path.write_text(f'"""Trains."""\nfrom __future__ import annotations\n{body}')
    patch = patch_of(config, Script.of([str(path)]))
    (_, after), *_ = patch.files.values()
    assert after.decode().startswith(
        '"""Trains."""\nfrom __future__ import annotations\n\nimport os\n'
        'os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # before torch is imported, as measured\n'
        "from torch.utils.data import DataLoader\n"
    )
    told = "train.py: OMP_NUM_THREADS=1 before torch is imported, without which the rate does not hold"
    assert patch.edits[-1] == told
    path.write_text(f"import torch\ntorch.set_num_threads(4)\n{body}")
    patch = patch_of(config, Script.of([str(path)]))
    assert patch.remarks == ("train.py:2: sets the number of threads itself: make it 1, as measured",)
    assert b"environ" not in patch.text


TRAINER = """\
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments("out", per_device_train_batch_size=16, dataloader_pin_memory=False)
Trainer(model, arguments, train_dataset=data).train()
"""


def test_a_trainer_gets_its_own_names() -> None:
    Path("train.py").write_text(TRAINER)
    made_on = {"loader": "train.py:4 train _inner_training_loop get_train_dataloader list[96]", "threads": 2}
    patch = patch_here(replace(ANSWER, made_on=made_on))
    assert (
        b'+arguments = TrainingArguments("out", per_device_train_batch_size=16, dataloader_pin_memory=False,\n'
        b"+                              dataloader_num_workers=3, dataloader_prefetch_factor=4, "
        b"dataloader_persistent_workers=True)\n" in patch.text
    )
    settings = "dataloader_num_workers=3, dataloader_prefetch_factor=4, dataloader_persistent_workers=True"
    assert patch.edits == (f"train.py:3: TrainingArguments(..., {settings})",)
    Path("train.py").write_text(TRAINER.replace("arguments = TrainingArguments(", "arguments = parsed("))
    patch = patch_here(replace(ANSWER, made_on=made_on))
    assert patch.remarks == (
        (
            "train.py:4: the trainer's arguments come from elsewhere: pass it --dataloader_num_workers 3 "
            "--dataloader_prefetch_factor 4 --dataloader_persistent_workers True"
        ),
    )


def test_the_command_line_writes_a_patch_and_says_what_is_not_in_it(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    _, site = made((HEAD + REFUSED["a flag"][0]).encode())
    answer_at(site).save("autotune.yaml")
    assert main(["export", "autotune.yaml", "--to", "patch", "train.py"]) == 0
    shown = capfdbinary.readouterr().out
    assert shown.startswith(b"# Exported by autotune: 1,326 samples/s, 3.41 times the baseline.\n# train.py:")
    assert main(["export", "autotune.yaml", "--to", "patch", "--output", "autotune.patch", "train.py"]) == 0
    told = capfdbinary.readouterr().err.decode()
    assert "Written: autotune.patch; git apply autotune.patch changes the script, git apply -R" in told
    assert "Not in the patch: train.py:13: num_workers=args.workers comes from the command line" in told
    assert Path("autotune.patch").read_bytes() == shown
    git()
    assert main(["export", "autotune.yaml", "--to", "patch"]) == 2
    assert b"name the script to patch" in capfdbinary.readouterr().err


def test_the_factor_of_the_learning_rate_and_an_autocast_that_is_left_out_are_left_to_the_user() -> None:
    _, site = made((HEAD + "loader = DataLoader(ds, batch_size=16)\n").encode())
    scaled = replace(ANSWER, measured=ANSWER.measured | {"learning_rate": learning_rate_of("SGD", 4, 16)})
    answer = answer_at(site, scaled)
    assert patch_here(replace(answer, made_on=answer.made_on | {"autocast": "train.py:40"})).remarks == (
        "train.py:40: train without autocast",
        "multiply the learning rate by 4 (linear rule of SGD)",
    )


@pytest.mark.parametrize(
    ("line", "made_by", "said"),
    [
        (
            "loader = create_loader(data)",
            "create_loader ImageFolder",
            "create_loader(...) makes the loader: pass it {} by its own names",
        ),
        ("", "list", "no call is here any more: pass {} where it is made"),
    ],
)
def test_where_the_loader_is_not_made_by_a_call_it_is_said(line: str, made_by: str, said: str) -> None:
    Path("train.py").write_text(f"{line}\n")
    patch = patch_here(replace(ANSWER, made_on={"loader": f"train.py:1 {made_by}[96]", "threads": 2}))
    settings = "num_workers=3, prefetch_factor=4, persistent_workers=True"
    assert patch.remarks == (f"train.py:1: {said.format(settings)}",)
    assert not patch.files
    with pytest.raises(ConfigFileError, match="names no DataLoader of a script"):
        patch_here(ANSWER)


TRAINERS = {
    "lightning": (
        "import lightning as L\n",
        "L.Trainer(max_epochs=3)",
        'L.Trainer(max_epochs=3, precision="bf16-mixed")',
    ),
    "accelerate": (
        "from accelerate import Accelerator\n",
        'Accelerator(mixed_precision="no", cpu=True)',
        'Accelerator(mixed_precision="bf16", cpu=True)',
    ),
    "calls in calls": (
        "import lightning as L\nfrom accelerate import Accelerator\n",
        "L.Trainer(callbacks=[Accelerator()], max_epochs=3)",
        'L.Trainer(callbacks=[Accelerator(mixed_precision="bf16")], max_epochs=3, precision="bf16-mixed")',
    ),
    "transformers": (
        "from transformers import Trainer, TrainingArguments\n",
        'Trainer(model, TrainingArguments("out"))',
        'Trainer(model, TrainingArguments("out", bf16=True))',
    ),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_is_told_the_precision(name: str) -> None:
    imports, before, after = TRAINERS[name]
    body = "from torch.utils.data import DataLoader\nloader = DataLoader([], batch_size=16)\ntrainer = "
    Path("train.py").write_text(f"{imports}{body}{before}\n")
    line = imports.count("\n") + 2
    half = replace(
        ANSWER, amp="bf16", made_on={"loader": f"train.py:{line} list[96]", "threads": 2, "autocast": "added"}
    )
    patch = patch_here(half)
    ((_, changed),) = patch.files.values()
    assert changed.decode().splitlines()[-1] == f"trainer = {after}"
    assert patch.remarks == ()
    assert all(f"train.py:{line + 1}: " in each for each in patch.edits[1:])
    Path("train.py").write_text(f"{body}None\n")
    half = replace(half, made_on={**(half.made_on or {}), "loader": "train.py:2 list[96]"})
    (remark,) = patch_here(half).remarks
    assert remark == "bf16: put the forward in torch.autocast(device, dtype=torch.bfloat16), and its output in fp32"


def test_a_dataloader_of_a_star_import_is_known() -> None:
    star = "from torch.utils.data import *\nds = list(range(96))\n"
    _, site = made(f"{star}loader = DataLoader(Subset(ds, range(96)), batch_size=16)\n".encode())
    patch = patch_here(answer_at(site))
    assert patch.remarks == ()
    assert b"range(96)), batch_size=16,\n+                    num_workers=3, prefetch" in patch.text


UNREADABLE = {
    "a notebook's magic": b"%matplotlib inline\nloader = DataLoader(ds)\n",
    "not UTF-8": b"name = '\xff'\nloader = DataLoader(ds)\n",
    "an unknown encoding": b"# coding: nope\nloader = DataLoader(ds)\n",
    "a zero": b"name = 1\0\nloader = DataLoader(ds)\n",
    "a deep expression": b"n = 1" + b" + 1" * 1100 + b"\nloader = DataLoader(ds)\n",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_script_that_cannot_be_read_is_a_remark(name: str) -> None:
    Path("train.py").write_bytes(UNREADABLE[name])
    made_on = {"loader": "train.py:2 list[96]", "threads": 4}
    patch = patch_here(replace(ANSWER, made_on=made_on))
    assert not patch.files
    of_loader, of_threads = patch.remarks
    assert of_loader.startswith("train.py cannot be read (")
    assert of_loader.endswith("): pass num_workers=3, prefetch_factor=4, persistent_workers=True in line 2")
    assert of_threads.startswith("train.py cannot be read (")
    assert of_threads.endswith("): set OMP_NUM_THREADS=2 before it imports torch")
    assert "\n" not in of_loader + of_threads
    same_threads = replace(ANSWER, made_on={**made_on, "threads": 2})
    assert patch_here(same_threads).remarks == (of_loader,)


@pytest.mark.parametrize("is_repository", [False, True])
@pytest.mark.parametrize("place", ["project", "project/src", "project/a dir", "."])
def test_the_command_that_is_said_works_where_it_is_said(
    place: str, is_repository: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = Path.cwd()
    for folder in ("project/src", "project/a dir"):
        Path(folder).mkdir(parents=True)
    if is_repository:
        subprocess.run(["git", "init", "-q", "project"], check=True)
    monkeypatch.chdir("project/src")
    source = HEAD + "loader = DataLoader(ds, batch_size=16)\n"
    _, site = made(source.encode())
    monkeypatch.chdir(root / place)
    answer_at(site).save("autotune.yaml")
    script = os.path.relpath(root / "project/src/train.py")
    assert main(["export", "autotune.yaml", "--to", "patch", "--output", "my answer.patch", script]) == 0
    (said,) = re.findall(r"; (git .+) changes the script, (git .+) changes it back\.", capfd.readouterr().err)
    subprocess.run(shlex.split(said[0]), check=True)
    changed = (root / "project/src/train.py").read_text()
    assert changed == source.replace(
        "batch_size=16", "batch_size=16, num_workers=3, prefetch_factor=4, persistent_workers=True"
    )
    subprocess.run(shlex.split(said[1]), check=True)
    assert (root / "project/src/train.py").read_text() == source


HYDRA = """\
import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader

class Job:
    def __init__(self, ds, cfg):
        self.cfg = cfg

    def loader(self, ds):
        return DataLoader(ds, num_workers=self.cfg.loader.num_workers)

@hydra.main(config_path=None, version_base=None)
def main(cfg: DictConfig) -> None:
    loader = cfg["loader"]
    workers = cfg.other.num_workers
    DataLoader(ds, num_workers=cfg.loader.num_workers)
    DataLoader(ds, num_workers=loader.num_workers)
    DataLoader(ds, num_workers=workers)
    DataLoader(ds, **cfg.loader)
    DataLoader(ds, **OmegaConf.to_container(loader, resolve=True))
    instantiate(cfg.loader, dataset=instantiate(cfg.data))
    Job(ds, cfg=cfg)

main()
"""
OVERRIDES = "++loader.num_workers=3 ++loader.prefetch_factor=4 ++loader.persistent_workers=True"
OF_HYDRA = {
    "a value": ("num_workers=cfg.loader.num_workers)", "loader.num_workers=3"),
    "of a variable": ("num_workers=loader.num_workers)", "loader.num_workers=3"),
    "in a variable": ("num_workers=workers)", "other.num_workers=3"),
    "of an attribute": ("num_workers=self.cfg.loader.num_workers)", "loader.num_workers=3"),
    "all": ("**cfg.loader)", OVERRIDES),
    "all, plain": (
        "**OmegaConf.to_container(loader, resolve=True))",
        OVERRIDES,
    ),
    "the loader": ("instantiate(cfg.loader, dataset=instantiate(cfg.data))", OVERRIDES),
}
"""The end of a line of the script, and the overrides that give its loader three workers."""


@pytest.mark.parametrize("name", OF_HYDRA)
def test_an_override_of_hydra_is_named_where_its_configuration_has_the_value(name: str) -> None:
    end, overrides = OF_HYDRA[name]
    Path("train.py").write_text(HYDRA)
    (number,) = [number for number, line in enumerate(HYDRA.splitlines(), 1) if line.endswith(end)]
    inside = " instantiate instantiate_node _call_target" if name == "the loader" else ""
    made_on = {"loader": f"train.py:{number}{inside} list[96]", "threads": 2}
    (remark,) = patch_here(replace(ANSWER, made_on=made_on)).remarks
    said = end if name == "the loader" else end.removesuffix(")")
    assert remark == f"train.py:{number}: {said} comes from the command line: python train.py ... {overrides}"


def test_hydra_takes_the_overrides_that_are_said(tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    lines = ["import hydra", "@hydra.main(config_path='.', config_name='job', version_base=None)", "def main(cfg):"]
    Path("train.py").write_text("\n".join([*lines, "    print(dict(cfg.loader))", "main()", ""]))
    Path("job.yaml").write_text("loader: {num_workers: 0}\n")
    words = [*OVERRIDES.split(), "hydra.run.dir=."]
    done = subprocess.run([sys.executable, "train.py", *words], check=True, capture_output=True, text=True)
    assert done.stdout == "{'num_workers': 3, 'prefetch_factor': 4, 'persistent_workers': True}\n"


LIGHTNING = """\
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader

class {kind}({base}):
    def __init__(self, {given}: int = 0):
        super().__init__()
        self.save_hyperparameters()
        self.{given} = {given}

    def train_dataloader(self):
        return DataLoader(ds, num_workers={value})

LightningCLI(Model, Data)
"""


@pytest.mark.parametrize(
    ("kind", "base", "given", "value", "flag"),
    [
        ("Data", "LightningDataModule", "workers", "self.workers", "--data.workers 3"),
        ("Data", "LightningDataModule", "workers", "self.hparams.workers", "--data.workers 3"),
        ("Model", "LightningModule", "num_workers", "self.num_workers", "--model.num_workers 3"),
        ("Other", "object", "many", "self.many", None),
    ],
)
def test_a_flag_of_lightningcli_is_named_where_it_makes_the_module(
    kind: str, base: str, given: str, value: str, flag: str | None
) -> None:
    source = LIGHTNING.format(kind=kind, base=base, given=given, value=value)
    Path("train.py").write_text(source)
    answer = replace(ANSWER, made_on={"loader": "train.py:12 list[96]", "threads": 2})
    (remark,) = patch_here(answer).remarks
    said, plain = f"train.py:12: num_workers={value}", "is not a plain value: have it give 3"
    assert remark == f"{said} {f'comes from the command line: python train.py ... {flag}' if flag else plain}"
    Path("train.py").write_text(source.replace("LightningCLI", "print"))
    assert patch_here(answer).remarks == (f"{said} {plain}",)


OF_NET = "import skorch\nnet = skorch.NeuralNetClassifier(Model, batch_size=16)\nnet.fit(x, y)\n"
SKORCH = Site(
    file="train.py",
    line=3,
    inside=("fit", "fit", "partial_fit", "fit_loop", "get_iterator"),
    dataset="Subset",
    length=96,
)


def test_a_net_of_skorch_gets_its_own_names() -> None:
    Path("train.py").write_text(OF_NET)
    (remark,) = patch_here(answer_at(SKORCH)).remarks
    settings = [f"iterator_train__{each}" for each in ("num_workers=3", "prefetch_factor=4", "persistent_workers=True")]
    assert remark == f"train.py:3: skorch makes the loader: pass the net {', '.join(settings)}"


def test_skorch_makes_its_loader_where_a_net_is_known_by() -> None:
    skorch = pytest.importorskip("skorch")
    source = "import numpy, skorch, torch\nnet = skorch.NeuralNetRegressor(torch.nn.Linear, module__in_features=1, "
    source += "module__out_features=1, max_epochs=1, train_split=None, verbose=0, iterator_train__num_workers=0)\n"
    source += "ones = numpy.ones((96, 1), 'float32')\nloader = net.get_iterator(net.get_dataset(ones), training=True)\n"
    source += "net.fit(ones, ones)\n"
    loader, site = made(source.encode())
    assert (loader.num_workers, skorch.NeuralNet.__name__) == (0, "NeuralNet")
    assert {"fit_loop", "get_iterator"} <= set(site.inside)
