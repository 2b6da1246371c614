from __future__ import annotations

import pickle
import runpy
import sys
import threading
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from autotune.errors import UsageError
from autotune.workload import ImportedWorkload, PickledWorkload, Workload, describe, load
from tests.datasets import CountingUp, Squares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


USERS_MODULE = """
from torch import nn
from torch.utils.data import DataLoader
from autotune import Workload
from tests.datasets import CountingUp, Squares

class Net(nn.Linear):
    def __init__(self):
        super().__init__(1, 1)

class Data(Squares):
    pass

class Namespace:
    make = Net

net = Net()
data = Data()
stream = CountingUp(4)
workload = Workload(net, data)
number = 3

def build_model(): return Net()
def build_data(): return Data()
def build(): return Net(), Data()
def build_workload(): return Workload(Net(), Data())
def build_of(folder, *, size, seed=0):
    pass


def build_nothing(): return None
def build_three(): return 1, 2, 3
def build_swapped(): return Data(), Net()
def build_without_data(): return Net(), None
def build_empty(): return Net(), Squares(0)
def build_with_loader(): return Net(), DataLoader(Data())
def build_list(): return Net(), [1, 2, 3]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, current and first on the path; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "mine.py").write_text(USERS_MODULE)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def write(path: Path, code: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(code))
    return path


def loaded(model: str, dataset: str | None = None) -> Workload:
    return load(describe(model, dataset))


def names(workload: Workload) -> tuple[str, str]:
    return type(workload.model).__name__, type(workload.dataset).__name__


# --- describing ---


def test_describing_a_reference_imports_nothing(folder: Path) -> None:
    write(folder / "explosive.py", "raise SystemExit('imported')")
    source = describe("explosive:build", "explosive:data")
    assert isinstance(source, ImportedWorkload)
    assert (source.model, source.dataset) == ("explosive:build", "explosive:data")
    assert "explosive" not in sys.modules


def test_the_callers_path_travels_with_absolute_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert describe("a:b").path[0] == str(Path.cwd())


@pytest.mark.parametrize("reference", ["mine", "mine:", ":build", "", "path/to/file.py"])
@pytest.mark.parametrize("flag", ["--model", "--dataset"])
def test_what_is_no_reference_is_refused_with_its_flag(flag: str, reference: str) -> None:
    model, dataset = (reference, None) if flag == "--model" else ("a:b", reference)
    with pytest.raises(UsageError) as caught:
        describe(model, dataset)
    assert str(caught.value) == (
        f"{flag} {reference}: not a reference; allowed: module:attribute or path/to/file.py:attribute"
    )


class Holds(Squares):
    def __init__(self, thing: object) -> None:
        super().__init__()
        self.thing = thing


def test_objects_that_cannot_travel_are_refused_with_the_name_of_their_field(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        wrong: dict[str, Workload] = {
            "dataset (Holds)": Workload(nn.Linear(1, 1), Holds(threading.Lock())),
            "loss (function)": Workload(nn.Linear(1, 1), Squares(), loss=lambda output, _: file and output),
            "collate_fn (function)": Workload(nn.Linear(1, 1), Squares(), collate_fn=lambda _: file),
        }
        for field, workload in wrong.items():
            with pytest.raises(UsageError) as caught:
                describe(workload)
            assert f"the {field} cannot be sent to the measuring process: " in str(caught.value)
            assert "open files, locks or connections have to create them on first use" in str(caught.value)


# --- loading by name ---


@pytest.mark.parametrize(
    ("model", "dataset", "classes"),
    [
        ("mine:build", None, ("Net", "Data")),
        ("mine:build_workload", None, ("Net", "Data")),
        ("mine:Net", "mine:Data", ("Net", "Data")),
        ("mine:build_model", "mine:build_data", ("Net", "Data")),
        ("mine:Namespace.make", "mine:data", ("Net", "Data")),
        ("mine:workload", "mine:stream", ("Net", "CountingUp")),
        ("mine:build_list", None, ("Net", "list")),
        ("mine.py:build", None, ("Net", "Data")),
        ("./mine.py:Net", "mine.py:Data", ("Net", "Data")),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_reference_leads_to_a_workload(model: str, dataset: str | None, classes: tuple[str, str]) -> None:
    assert names(loaded(model, dataset)) == classes


def test_a_module_in_a_package_is_found_and_a_file_elsewhere_finds_its_siblings(folder: Path) -> None:
    write(folder / "package" / "__init__.py", "")
    write(folder / "package" / "train.py", "from mine import build")
    write(folder / "else where" / "sibling_of_train.py", "from mine import Net, Data")
    code = "from sibling_of_train import Data, Net\ndef build(): return Net(), Data()"
    script = write(folder / "else where" / "train_with_sibling.py", code)
    for reference in ("package.train:build", f"{script}:build", "else where/train_with_sibling.py:build"):
        assert names(loaded(reference)) == ("Net", "Data")


@pytest.mark.parametrize("name", ["train_once.py", "json.py"])
def test_a_file_that_gives_model_and_dataset_runs_once(folder: Path, name: str) -> None:
    write(folder / "sub" / name, "from mine import Data, Net\nwith open('runs', 'a') as file: file.write('x')")
    loaded(f"sub/{name}:Net", f"sub/{name}:Data")
    assert (folder / "runs").read_text() == "x"


def test_files_of_one_name_are_kept_apart(folder: Path) -> None:
    for name in ("one", "two", "three"):
        write(folder / name / "same_name.py", f"from mine import Net\nfrom tests.datasets import Squares as {name}")
    for name in ("one", "two", "three", "one"):
        assert names(loaded("mine:Net", f"{name}/same_name.py:{name}")) == ("Net", "Squares")


def test_a_file_named_like_an_imported_module_leaves_it_alone_and_its_objects_can_be_pickled_by_workers(
    folder: Path,
) -> None:
    import json

    write(folder / "sub" / "json.py", "from mine import Data, Net\nclass D(Data): pass")
    found = loaded("sub/json.py:Net", "sub/json.py:D")
    assert names(found) == ("Net", "D")
    assert sys.modules["json"] is json
    assert type(pickle.loads(pickle.dumps(found.dataset))) is type(found.dataset)


def test_the_callers_path_is_searched_last(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    write(other / "only_there.py", "from mine import build")
    source = ImportedWorkload(model="only_there:build", dataset=None, path=(str(other),))
    assert names(load(source)) == ("Net", "Data")
    assert sys.path[-1] == str(other)
    del sys.modules["only_there"]


# --- references that lead nowhere ---

ALLOWED = "allowed: a torch.nn.Module, (model, dataset) or autotune.Workload"
PASS_ONE = "pass --dataset module:attribute, or return (model, dataset)"
NOT_A_DATASET = (
    "allowed: an object with __getitem__ and __len__, or a torch.utils.data.IterableDataset "
    "(pass the dataset, not a DataLoader)"
)


NOT_CALLABLE = "which cannot be called"
CALLED = "and is called without arguments: name a function that takes none"


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        ("no_such_module:build", None, "--model no_such_module: no module named 'no_such_module' here"),
        ("no_such_file.py:build", None, "--model no_such_file.py: no such file"),
        ("mine:buildd", None, "--model mine:buildd: mine has no attribute 'buildd'; did you mean 'build'?"),
        (
            "mine.py:Namespace.mak",
            None,
            "--model mine.py:Namespace.mak: mine.py has no attribute 'mak'; did you mean 'make'?",
        ),
        ("mine:number", None, f"--model mine:number: number is int, {NOT_CALLABLE}"),
        ("mine:build_of", None, f"--model mine:build_of: build_of needs folder, size, {CALLED}"),
        ("mine:build_nothing", None, f"mine:build_nothing returned NoneType; {ALLOWED}"),
        ("mine:build_three", None, f"mine:build_three returned tuple; {ALLOWED}"),
        ("mine:build_swapped", None, "mine:build_swapped: the model is Data, not a torch.nn.Module"),
        ("mine:net", None, f"mine:net gives a model but no dataset: {PASS_ONE}"),
        ("mine:build_without_data", None, f"mine:build_without_data: the dataset is NoneType; {NOT_A_DATASET}"),
        ("mine:build_empty", None, "mine:build_empty: the dataset is empty (its length is 0)"),
        ("mine:build_with_loader", None, f"mine:build_with_loader: the dataset is DataLoader; {NOT_A_DATASET}"),
        ("mine:net", "mine:dataa", "--dataset mine:dataa: mine has no attribute 'dataa'; did you mean 'data'?"),
        ("mine:net", "mine:number", f"--dataset mine:number: number is int, {NOT_CALLABLE}"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_reference_says_what_is_wrong(model: str, dataset: str | None, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(model, dataset)
    way_out = "; run from the folder that holds it, or pass path/to/file.py:attribute"
    assert str(caught.value) == message + (way_out if message.endswith("here") else "")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import no_such_dependency", "No module named 'no_such_dependency'"),
        ("import fails.no_such_part", "No module named 'fails.no_such_part'"),
        ("from json import no_such_name", "cannot import name 'no_such_name'"),
        ("1 / 0", "division by zero"),
    ],
)
@pytest.mark.parametrize("reference", ["fails:build", "fails.py:build"])
def test_a_module_that_fails_raises_its_own_error(folder: Path, reference: str, code: str, error: str) -> None:
    write(folder / "fails.py", code)
    with pytest.raises((ImportError, ZeroDivisionError), match=error):
        loaded(reference)


# --- live objects ---


def roundtrip(workload: Workload) -> Workload:
    return load(describe(workload))


def test_live_objects_arrive_as_copies() -> None:
    workload = Workload(nn.Linear(2, 1), Squares(), loss=lambda output, target: (output - target).sum())
    there = roundtrip(workload)
    assert there.model is not workload.model
    assert all(map(torch.equal, there.model.state_dict().values(), workload.model.state_dict().values()))
    assert there.loss is not None
    assert float(there.loss(torch.tensor(3.0), torch.tensor(1.0))) == 2
    assert isinstance(roundtrip(Workload(nn.Linear(1, 1), CountingUp(3))).dataset, CountingUp)  # it has no length


def test_what_was_pickled_on_another_device_comes_on_the_sessions_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("nowhere", torch.zeros(3, device="meta"))
    usual = torch.serialization._package_registry
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "_package_registry", list(usual))
        torch.serialization.register_package(
            0, lambda storage: "cuda:7" if storage.device.type == "cpu" else None, lambda storage, location: None
        )
        source = describe(Workload(model, Squares()))
    assert isinstance(source, PickledWorkload)
    with pytest.raises(RuntimeError, match="on a CUDA device"):
        pickle.loads(bytes(source.blob))
    there = load(source, "cpu")
    assert {name: value.device.type for name, value in there.model.state_dict().items()} == {
        "weight": "cpu", "bias": "cpu", "nowhere": "meta"
    }  # fmt: skip
    assert torch.equal(there.model.get_parameter("weight"), model.weight)
    assert {value.device.type for value in load(source, "meta").model.parameters()} == {"meta"}


def test_an_optimizer_arrives_bound_to_the_model_that_arrives() -> None:
    model = nn.Linear(2, 1)
    there = roundtrip(Workload(model, Squares(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))
    assert isinstance(there.optimizer, torch.optim.Optimizer)
    bound = there.optimizer.param_groups[0]["params"]
    assert [id(parameter) for parameter in bound] == [id(parameter) for parameter in there.model.parameters()]


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (lambda: Workload(nn.Linear(1, 1), Squares(0)), "the workload: the dataset is empty (its length is 0)"),
        (lambda: Workload(nn.Linear(1, 1), DataLoader(Squares())), "the workload: the dataset is DataLoader; allowed"),
        (lambda: Workload(3, Squares()), "the workload: the model is int, not a torch.nn.Module"),  # type: ignore[arg-type]
        *(
            (
                partial(Workload, nn.Linear(1, 1), Squares(8), epoch_batches=limit),
                f"the workload: epoch_batches is {limit!r}; allowed",
            )
            for limit in (0, -1, True, 0.0, 1.5, "10")
        ),
        (lambda: "a model", "the workload is str, not an autotune.Workload"),
    ],
)
def test_live_objects_are_checked_too(workload: Callable[[], Any], message: str) -> None:
    import cloudpickle

    with pytest.raises(UsageError) as caught:
        load(PickledWorkload(blob=cloudpickle.dumps(workload()), path=()))
    assert str(caught.value).startswith(message)


def test_classes_of_a_script_travel_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write(
        tmp_path / "script_of_the_user.py",
        """
        import sys
        from torch import nn
        from torch.utils.data import Dataset
        from autotune.workload import Workload, describe

        SCALE = 3.0

        class Net(nn.Linear):
            def forward(self, x):
                return super().forward(x) * SCALE

        class Data(Dataset):
            def __len__(self): return 5
            def __getitem__(self, index): return float(index) * SCALE

        def loss(output, target): return (output - target).abs().sum()

        source = describe(Workload(Net(1, 1), Data(), loss=loss))
        with open(sys.argv[1], "wb") as file: file.write(source.blob)
        """,
    )
    blob = tmp_path / "blob"
    monkeypatch.setattr(sys, "argv", [str(script), str(blob)])
    runpy.run_path(str(script), run_name="__main__")
    workload = load(PickledWorkload(blob=blob.read_bytes(), path=()))
    assert (type(workload.model).__module__, *names(workload)) == ("__main__", "Net", "Data")
    assert workload.dataset[4] == 12.0
    assert workload.model(torch.zeros(1, 1)).shape == (1, 1)
    assert "script_of_the_user" not in sys.modules
