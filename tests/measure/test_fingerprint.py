from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, RandomSampler, Subset, default_collate

from autotune import Workload
from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.measure.device import CpuDevice
from autotune.measure.workload_facts import fingerprint, inspect
from autotune.search.space import build_space
from autotune.workload import describe, load
from tests.datasets import CountingUp, Squares
from tests.measure.test_loader import WithoutEnd
from tests.processes import printed

SOURCE = textwrap.dedent(
    """
    import functools
    import torch
    from torch import nn
    from torch.utils.data import Dataset
    from autotune import Workload

    SCALE = 2.0

    @functools.cache
    def helper(x):
        return x * SCALE

    class Resize:
        def __init__(self, size):
            self.size = size

    class Steps:
        def __init__(self, *steps):
            self.transforms = list(steps)

    class Data(Dataset):
        def __init__(self, crop):
            self.crop = crop
            self.transform = Steps(Resize((8, 8)), Resize(4))
            self._opened = 17
        def __len__(self):
            return 64
        def __getitem__(self, index):
            return helper(torch.ones(1)), torch.ones(1)

    class Inner(nn.Module):
        def forward(self, x):
            return x + 1.0

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.pool = nn.MaxPool1d(1, stride=1)
            self.inner = Inner()
        def forward(self, x):
            y = self.inner(self.layer(x))
            return y if "a" in {"a", "b", "c", "d"} else -y

    def loss(output, target, weight=0.5):
        square = lambda value: value ** 2
        return weight * square(output - target).mean()

    def step(model, batch):
        return loss(model(batch[0]), batch[1])

    def build():
        sgd = functools.partial(torch.optim.SGD, lr=0.1)
        return Workload(Net(), Data(crop=2), loss=loss, training_step=step, optimizer=sgd)
    """
)
EDITS = {
    "a constant of the loss": ("weight=0.5", "weight=0.6"),
    "a lambda in the loss": ("value ** 2", "value ** 4"),
    "the model's forward": ("else -y", "else y"),
    "an inner module's": ("x + 1.0", "x + 2.0"),
    "the dataset": ("helper(torch.ones(1)), torch", "helper(torch.zeros(1)), torch"),
    "a function that it calls": ("return x * SCALE", "return x / SCALE"),
    "a global constant": ("SCALE = 2.0", "SCALE = 3.0"),
    "an argument of the optimizer": ("lr=0.1", "lr=0.2"),
    "an argument of the dataset": ("Data(crop=2)", "Data(crop=3)"),
    "an argument of its transform": ("Resize((8, 8))", "Resize((8, 9))"),
    "an argument of a layer": ("stride=1", "stride=2"),
}


def workload(source: str = SOURCE) -> Workload:
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(source, "train.py", "exec"), names)
    made: Workload = names["build"]()
    return made


def built(source: str = SOURCE) -> str:
    return fingerprint(workload(source), 64)


def of(*arguments: Any, **options: Any) -> str:
    return fingerprint(Workload(nn.Linear(1, 1), *arguments, **options), 8)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_of_what_runs_is_another_workload(edit: tuple[str, str]) -> None:
    assert SOURCE.count(edit[0]) == 1
    assert built(SOURCE.replace(*edit)) != built()


@pytest.mark.parametrize("line", ["import functools", "def step"])
def test_lines_and_comments_do_not_matter(line: str) -> None:
    assert built(SOURCE.replace(line, f"\n\n# a comment\n{line}")) == built()


PROJECT = {
    "settings.py": "SCALE = 2.0\n",
    "shop/__init__.py": "",
    "shop/data.py": "from torch.utils.data import Dataset\nfrom shop import (  # theirs\n    steps,\n)\n"
    "class Data(Dataset):\n    def __init__(self):\n        self.transform = steps.Crop()\n"
    "    def __len__(self):\n        return 8\n    def __getitem__(self, index):\n        return 1.0, 2.0\n",
    "shop/steps.py": "class Crop:\n    size = 2\n",
    "shop/losses.py": "from settings import SCALE\n\ndef scaled(output, target):\n    return output * SCALE\n",
    "shop/build.py": "from torch import nn\nfrom autotune import Workload\nfrom .data import Data\n"
    "def build():\n    from . import losses\n    return Workload(nn.Linear(1, 1), Data(), loss=losses.scaled)\n",
    "later.py": "",
}
"""Files of a user's project; the last one has nothing to do with the workload."""
BUILT = "from autotune.measure.workload_facts import fingerprint; from autotune.workload import describe, load\n"
IMPORTED_AND_LIVE = BUILT + (
    "print(fingerprint(load(describe('shop.build:build')), 8))\n"
    "import later, shop.losses, shop.data; from torch import nn; from autotune import Workload\n"
    "def loss(output, target): return shop.losses.scaled(output, target)\n"
    "made = Workload(nn.Linear(1, 1), shop.data.Data(), loss=loss)\n"
    "print(fingerprint(load(describe(made)), 8))"
)


def project(folder: Path) -> Path:
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def built_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workload]:
    monkeypatch.syspath_prepend(project(tmp_path))
    yield load(describe("shop.build:build"))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("shop", "settings", "later")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["settings.py", "shop/__init__.py", "shop/data.py", "shop/steps.py", "shop/losses.py"])
def test_an_edit_of_an_imported_file_is_another_workload(tmp_path: Path, built_of_files: Workload, name: str) -> None:
    before = fingerprint(built_of_files, 8)
    (tmp_path / name).write_text(PROJECT[name] + "\nMORE = 1\n")
    assert fingerprint(built_of_files, 8) != before


@pytest.mark.machine
def test_neither_the_process_nor_the_folder_matters(tmp_path: Path) -> None:
    one, two = (
        printed("-c", IMPORTED_AND_LIVE, folder=project(tmp_path / seed), PYTHONHASHSEED=seed) for seed in ("1", "2")
    )
    assert one == two
    assert [len(each) for each in one.splitlines()] == [16, 16]


def own(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).abs().mean()


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.scale * own(output, target)

    def method(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return own(output, target)


@functools.lru_cache
def cached(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return own(output, target)


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "none": None,  # type: ignore[dict-item]
    "function": own,
    "lambda": lambda output, target: own(output, target),
    "partial": functools.partial(nn.functional.smooth_l1_loss, beta=0.5),
    "another partial": functools.partial(nn.functional.smooth_l1_loss, beta=0.6),
    "torch": nn.functional.mse_loss,
    "builtin": torch.dist,
    "module": nn.MSELoss(),
    "object": Scaled(1.0),
    "method": Scaled(1.0).method,
    "cached": cached,
    "builtin of Python": max,
}


def test_every_kind_of_callable_is_told_from_the_others() -> None:
    assert len({of(Squares(8), loss) for loss in LOSSES.values()}) == len(LOSSES)


class Twice(Squares):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(1), 2 * torch.ones(1)


@pytest.mark.parametrize("wrap", [lambda data: Subset(data, range(8)), lambda data: ConcatDataset([data, data])])
def test_wrapped_datasets_count(wrap: Callable[[Any], Any]) -> None:
    assert of(wrap(Squares(8))) != of(wrap(Twice(8)))


def test_code_that_refers_to_itself_comes_to_an_end() -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        return step(model, batch)

    assert len(of(Squares(8), training_step=step)) == 16


def test_what_a_dataset_keeps_to_itself_may_be_another_in_every_run() -> None:
    """A cache, a connection, the number of a process: only the code that sets it counts."""
    made: Any = workload()
    made.dataset._opened = 18
    assert fingerprint(made, 64) == built()


def test_how_a_model_is_made_parallel_is_part_of_the_workload() -> None:
    assert of(Squares(8), parallelize=None) != of(Squares(8), parallelize=nn.DataParallel)


@pytest.mark.parametrize(
    ("dataset", "options", "samples"),
    [
        (Squares(48), {}, 48),
        (Squares(48), {"sampler": WithoutEnd()}, None),
        (Squares(48), {"sampler": RandomSampler(range(48), replacement=True, num_samples=5000)}, 5000),
        (Squares(48), {"batch_sampler": lambda size: [[0, 1]]}, 48),
        (CountingUp(48), {}, None),
    ],
    ids=["shuffled", "without end", "longer than the dataset", "in batches", "iterable"],
)
def test_an_epoch_has_the_samples_that_are_iterated_over(
    dataset: Any, options: dict[str, Any], samples: int | None
) -> None:
    facts = inspect(Workload(nn.Linear(1, 1), dataset, **options), CpuDevice())
    assert facts.epoch_samples == samples
    most = max(build_space(facts, 2, Config(batch_size=32), {}).allowed["batch_size"])
    assert most == {48: 32, 5000: 1024, None: 1024}[samples]


def test_the_facts_name_what_the_workload_brings_for_its_loader() -> None:
    def named(**brought: Any) -> tuple[str, ...]:
        return inspect(Workload(nn.Linear(1, 1), Squares(48), **brought), CpuDevice()).loader_arguments

    assert named() == ()
    assert named(sampler=WithoutEnd(), collate_fn=list) == ("sampler", "collate_fn")
    assert named(collate_fn=default_collate) == ()
    batches = {"batch_sampler": lambda size: [[0, 1]], "loader_options": {"drop_last": True, "timeout": 3}}
    assert named(**batches) == ("batch_sampler", "timeout")
    assert named(loader_options={"drop_last": True}) == ("drop_last",)
    assert named(own_batches="dataset") == ("batch_size",)


def test_a_lazy_model_is_refused_until_it_was_called_with_a_batch() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    with pytest.raises(
        UserCodeError, match=r"the model's 0\.weight has no shape yet: call the model with a batch where"
    ):
        inspect(Workload(model, Squares(48)), CpuDevice())
    model(torch.zeros(2, 5))
    assert inspect(Workload(model, Squares(48)), CpuDevice()).parameters == 3 * 5 + 3 + 3 + 1
