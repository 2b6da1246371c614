from __future__ import annotations

import functools
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.measure.batch import move, shallow, tensor_bytes
from autotune.measure.device import CpuDevice
from autotune.measure.step import TrainingStep, infer_loss
from autotune.settings import Amp
from autotune.workload import Workload
from tests.datasets import Squares

ELSEWHERE = torch.device("meta")  # a device that every machine has and that is not the CPU
SGD = functools.partial(torch.optim.SGD, lr=0.1)
PLAIN = Config()
Pair = namedtuple("Pair", "first second")  # both kinds of named tuple exist


class Typed(NamedTuple):
    tensor: torch.Tensor
    name: str


@dataclass
class Inner:
    values: torch.Tensor


@dataclass(frozen=True)
class Outer:
    inner: Inner
    mask: torch.Tensor
    label: str = "a"
    size: int = field(init=False, default=7)


class Graphs:
    """As a graph library's batch: a class of its own with a method ``to``."""

    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> Graphs:
        return Graphs(self.nodes.to(device))


def moved(batch: Any) -> Any:
    return move(batch, ELSEWHERE, non_blocking=False)


def step_of(model: nn.Module, config: Config = PLAIN, **options: Any) -> TrainingStep:
    return TrainingStep(Workload(model, Squares(), **options), config, CpuDevice())


def loss_of(step: TrainingStep, batch: Any) -> torch.Tensor:
    step(batch)
    assert step.loss is not None
    return step.loss


def classifier(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(count: int, size: int = 8) -> list[list[torch.Tensor]]:
    chance = torch.Generator().manual_seed(1)
    return [
        [torch.randn(size, 4, generator=chance), torch.randint(0, 3, (size,), generator=chance)] for _ in range(count)
    ]


[[X, Y]] = batches(1)


def parameters(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.parameters()]


def are_equal(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, parameters(one), parameters(other)))


# --- moving ---


def test_tensors_tuples_and_lists_move_and_keep_their_type_and_names() -> None:
    batch = moved((torch.zeros(2), [torch.zeros(3)]))
    assert (type(batch), type(batch[1])) == (tuple, list)
    assert (batch[0].device, batch[1][0].device) == (ELSEWHERE, ELSEWHERE)
    pair, typed = moved(Pair(torch.zeros(1), 5)), moved(Typed(torch.zeros(1), "a"))
    assert (type(pair), pair.first.device, pair.second) == (Pair, ELSEWHERE, 5)
    assert (type(typed), typed.tensor.device, typed.name) == (Typed, ELSEWHERE, "a")


def test_dictionaries_move_whatever_they_hold() -> None:
    batch = moved({"x": torch.zeros(1), "more": {"y": (torch.zeros(1),)}, "ids": ["a", "b"]})
    assert batch["x"].device == batch["more"]["y"][0].device == ELSEWHERE
    assert batch["ids"] == ["a", "b"]


def test_dataclasses_move_nested_and_frozen_ones_too() -> None:
    batch = Outer(Inner(torch.zeros(1)), torch.zeros(2))
    there = moved(batch)
    assert (there.inner.values.device, there.mask.device, there.label, there.size) == (ELSEWHERE, ELSEWHERE, "a", 7)
    assert batch.inner.values.device.type == "cpu"


def test_an_object_with_a_method_to_moves_itself_and_a_packed_sequence_stays_one() -> None:
    assert moved([Graphs(torch.zeros(1))])[0].nodes.device == ELSEWHERE
    packed = moved(pack_sequence([torch.zeros(3), torch.zeros(2)]))
    assert isinstance(packed, PackedSequence)
    assert packed.data.device == ELSEWHERE


class MovesItself:
    """A batch whose ``to`` moves its own tensors and returns nothing, as chemprop's does."""

    def __init__(self) -> None:
        self.values = torch.zeros(1)

    def to(self, device: torch.device) -> None:
        self.values = self.values.to(device)


def test_an_object_that_moves_its_own_tensors_stays() -> None:
    (batch,) = moved((MovesItself(),))
    assert batch.values.device == ELSEWHERE


@pytest.mark.parametrize("value", [None, 3, 2.5, "text", b"bytes", {1, 2}, Inner, int])
def test_what_is_no_tensor_is_left_as_it_is(value: object) -> None:
    assert moved(value) is value


class Kept(MutableMapping[str, Any]):
    """A mapping that keeps its items in a dictionary of its own, and more beside."""

    def __init__(self, label: str, **items: Any) -> None:
        self.label, self._items = label, items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._items[key] = value

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Unmakeable(dict[str, Any]):
    def __copy__(self) -> Unmakeable:
        raise TypeError("only as its loader makes it")


MAPPINGS: list[Mapping[str, Any]] = [
    OrderedDict(x=[torch.zeros(1)]),
    defaultdict(list, x=[torch.zeros(1)]),
    UserDict(x=[torch.zeros(1)]),
    Counter(x=[torch.zeros(1)]),  # type: ignore[arg-type]  # its update() adds
    ChainMap({"x": [torch.zeros(1)]}, {"y": [torch.zeros(2)]}),
    Kept("a", x=[torch.zeros(1)]),
    MappingProxyType({"x": [torch.zeros(1)]}),
]


@pytest.mark.parametrize("change", [moved, shallow])
@pytest.mark.parametrize("batch", MAPPINGS, ids=lambda batch: type(batch).__name__)
def test_a_mapping_keeps_its_class_and_the_first_one_stays_as_it_was(
    batch: Mapping[str, Any], change: Callable[[Any], Any]
) -> None:
    parts, there = dict(batch), change(batch)
    assert type(there) is type(batch)
    assert list(there) == list(batch)
    assert {key: len(part[0]) for key, part in there.items()} == {key: len(part[0]) for key, part in parts.items()}
    assert all(
        part[0].device == (ELSEWHERE if change is moved else parts[key][0].device) for key, part in there.items()
    )
    assert all(there[key] is not part and batch[key] is part for key, part in parts.items())
    assert getattr(there, "default_factory", None) is getattr(batch, "default_factory", None)
    assert getattr(there, "label", None) == getattr(batch, "label", None)


def test_a_mapping_that_cannot_be_made_again_is_a_dictionary() -> None:
    there = moved(Unmakeable(x=torch.zeros(1)))
    assert (type(there), there["x"].device) == (dict, ELSEWHERE)


SPARSE = torch.zeros(4000, 4000).index_put((torch.tensor([3]), torch.tensor([4])), torch.tensor(1.0))


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize(
    ("layout", "blocks", "size"),
    [
        (torch.sparse_coo, None, 2 * 8 + 4),
        (torch.sparse_csr, None, 4001 * 8 + 8 + 4),
        (torch.sparse_csc, None, 4001 * 8 + 8 + 4),
        (torch.sparse_bsr, (2, 2), 2001 * 8 + 8 + 4 * 4),
        (torch.sparse_bsc, (2, 2), 2001 * 8 + 8 + 4 * 4),
    ],
    ids=str,
)
def test_a_sparse_tensor_stays_sparse_and_counts_by_the_values_it_keeps(
    layout: torch.layout, blocks: tuple[int, int] | None, size: int
) -> None:
    batch = SPARSE.to_sparse(layout=layout, blocksize=blocks)
    assert tensor_bytes([batch, torch.zeros(1)]) == size + 4
    assert moved([batch])[0].layout == layout
    assert shallow([batch])[0] is batch


# --- counting ---


def test_bytes_are_those_of_every_tensor() -> None:
    batch = (torch.zeros(5), {"x": torch.zeros(2, dtype=torch.int64)}, [Inner(torch.zeros(1, dtype=torch.bool))], "a")
    assert tensor_bytes(batch) == 20 + 16 + 1


# --- the loss ---


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integer_targets_get_cross_entropy(dtype: torch.dtype) -> None:
    output, target = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    assert torch.equal(infer_loss(output, target.to(dtype)), functional.cross_entropy(output, target))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize(
    ("output_shape", "target_shape"),
    [((6, 1), (6,)), ((6,), (6,)), ((6, 1), (6, 1)), ((6,), (6, 1)), ((2, 1, 3, 1), (2, 3, 1))],
    ids=str,
)
def test_one_logit_and_integer_targets_get_binary_cross_entropy(
    output_shape: tuple[int, ...], target_shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    output, target = torch.randn(output_shape), torch.tensor([0, 1, 1, 0, 1, 1]).reshape(target_shape)
    expected = functional.binary_cross_entropy_with_logits(output, target.float().reshape(output_shape))
    assert torch.equal(infer_loss(output, target.to(dtype)), expected)


@pytest.mark.parametrize(("output_shape", "target_shape"), [((6, 3), (6, 3)), ((6, 1), (6,)), ((6,), (6, 1))], ids=str)
def test_floating_targets_get_the_mean_squared_error_and_a_trailing_one_is_never_broadcast(
    output_shape: tuple[int, ...], target_shape: tuple[int, ...]
) -> None:
    output, target = torch.randn(output_shape), torch.randn(target_shape)
    assert torch.equal(infer_loss(output, target), functional.mse_loss(output, target.reshape(output.shape)))
    assert infer_loss(output, target.double()).dtype == torch.float32


def test_a_loss_that_the_output_carries_is_taken_and_a_scalar_output_is_its_own() -> None:
    @dataclass
    class Output:
        loss: torch.Tensor
        logits: torch.Tensor

    loss = torch.tensor(2.0)
    assert infer_loss(Output(loss, torch.zeros(2, 2)), torch.zeros(2)) is loss
    assert infer_loss({"loss": loss, "logits": torch.zeros(2, 2)}, torch.zeros(2)) is loss
    assert infer_loss(loss, {"x": torch.zeros(2)}) is loss


@pytest.mark.parametrize(
    ("output", "target", "says"),
    [
        (torch.zeros(2, 3), {"x": torch.zeros(2)}, "output of type Tensor and a target of type dict"),
        ((torch.zeros(2, 3),), torch.zeros(2, 3), "output of type tuple and a target of type Tensor"),
        ({"loss": None}, torch.zeros(2), "output of type dict"),
        (torch.zeros(2, 3), torch.zeros(2, 4), r"shape \(2, 3\), the target \(2, 4\)"),
    ],
)
def test_a_loss_that_cannot_be_inferred_names_the_argument_to_pass(output: Any, target: Any, says: str) -> None:
    with pytest.raises(UserCodeError, match=says) as caught:
        infer_loss(output, target)
    assert "Workload(loss=...)" in str(caught.value)


def test_a_forward_that_returns_nothing_is_told_as_that() -> None:
    with pytest.raises(UserCodeError, match="forward returned None: return its output"):
        infer_loss(None, torch.zeros(2))


# --- the step ---


def test_training_equals_a_loop_written_by_hand_to_the_last_bit() -> None:
    model, by_hand = classifier(), classifier()
    optimizer = torch.optim.AdamW(by_hand.parameters())
    step = step_of(model)
    for x, y in batches(5):
        functional.cross_entropy(by_hand(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step([x, y])
    assert are_equal(model, by_hand)
    assert not are_equal(model, classifier())


def test_the_last_loss_is_kept_undivided_and_without_its_graph() -> None:
    model = classifier()
    expected = functional.cross_entropy(model(X), Y)
    loss = loss_of(step_of(model, Config(accumulation_steps=4)), [X, Y])
    assert not loss.requires_grad
    assert torch.equal(loss, expected)


def test_the_model_trains_in_training_mode_and_marks_come_in_the_order_of_the_phases() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    marks = step_of(model)([X, Y])
    assert int(model[1].num_batches_tracked) == 1
    assert list(marks) == sorted(marks)
    assert len(set(marks)) == 5


class Recording(nn.Linear):
    """Notes whether autocast is on in forward, loss and backward, and the output's type."""

    on: dict[str, bool]
    dtype: torch.dtype

    def forward(self, x: torch.Tensor) -> Any:
        output = super().forward(x)
        self.on, self.dtype = {"forward": torch.is_autocast_enabled("cpu")}, output.dtype
        output.register_hook(lambda gradient: self._note("backward"))
        return output

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self._note("loss")
        return functional.cross_entropy(output, target)

    def _note(self, phase: str) -> None:
        self.on[phase] = torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("amp", "dtype"), [("off", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_covers_forward_and_loss_only_where_it_was_asked_for(amp: Amp, dtype: torch.dtype) -> None:
    model = Recording(4, 3)
    loss = loss_of(step_of(model, Config(amp=amp), loss=model.loss), [X, Y])
    assert model.on == {"forward": amp != "off", "loss": amp != "off", "backward": False}
    assert model.dtype == dtype
    assert loss.dtype == torch.float32
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


class Keywords(nn.Linear):
    """Called as Hugging Face models are, and answers as they do."""

    def forward(self, *, pixels: torch.Tensor, labels: torch.Tensor) -> Any:  # type: ignore[override]
        logits = super().forward(pixels)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class TwoInputs(nn.Linear):
    def forward(self, one: torch.Tensor, two: torch.Tensor) -> Any:  # type: ignore[override]
        return super().forward(one - two)


def test_a_batch_is_keywords_inputs_and_a_target_or_both_in_one() -> None:
    model: nn.Linear = Keywords(4, 3)
    expected = functional.cross_entropy(functional.linear(X, model.weight, model.bias), Y)
    assert torch.equal(loss_of(step_of(model), {"pixels": X, "labels": Y}), expected)
    model = TwoInputs(4, 3)
    expected = functional.cross_entropy(functional.linear(X - 1, model.weight, model.bias), Y)
    assert torch.equal(loss_of(step_of(model), (X, torch.ones_like(X), Y)), expected)
    for batch in (X, [X], (X,)):
        model = nn.Linear(4, 4)
        expected = functional.mse_loss(model(X), X)
        assert torch.equal(loss_of(step_of(model), batch), expected)
    with pytest.raises(UserCodeError, match=r"output has shape \(8, 3\), the target \(8, 4\).*Workload\(loss="):
        step_of(nn.Linear(4, 3))([X])


def test_one_tensor_in_a_list_is_the_models_input_and_the_losss_target() -> None:
    model = nn.Linear(4, 3)
    expected = (model(X).mean() - X.mean()).square()
    loss = loss_of(step_of(model, loss=lambda output, target: (output.mean() - target.mean()).square()), [X])
    assert torch.equal(loss, expected)


def test_the_users_loss_gets_output_and_target_or_the_whole_dictionary() -> None:
    seen: list[Any] = []

    def loss(output: Any, target: Any) -> torch.Tensor:
        seen.append(target)
        logits = output["logits"] if isinstance(output, dict) else output
        return torch.as_tensor(logits).sum()

    step_of(classifier(), loss=loss)([X, Y])
    step_of(Keywords(4, 3), loss=loss)({"pixels": X, "labels": Y})
    assert torch.equal(seen[0], Y)
    assert set(seen[1]) == {"pixels", "labels"}


def test_the_users_training_step_replaces_model_call_and_loss() -> None:
    model, calls = classifier(), []

    def training_step(given: nn.Module, data: Any) -> Any:
        calls.append((given is model, len(data)))
        return given(data[0]).square().mean()

    step_of(model, training_step=training_step)([X, Y])
    assert calls == [(True, 2)]
    assert not are_equal(model, classifier())


@pytest.mark.parametrize(
    "make", [lambda model: SGD, lambda model: SGD(model.parameters())], ids=["factory", "instance"]
)
def test_the_users_optimizer_takes_the_step(make: Callable[[nn.Module], Any]) -> None:
    model, by_hand = classifier(), classifier()
    step_of(model, optimizer=make(model))([X, Y])
    functional.cross_entropy(by_hand(X), Y).backward()
    SGD(by_hand.parameters()).step()
    assert are_equal(model, by_hand)


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)])
def test_a_model_without_anything_to_train_is_the_users_error(model: nn.Module) -> None:
    with pytest.raises(UserCodeError, match="no parameter that requires a gradient"):
        step_of(model)


class Averaging(torch.optim.SGD):
    """Refuses to step before it is told that training begins, as optimizers that average weights do."""

    is_training = False

    def train(self) -> None:
        self.is_training = True

    def step(self, *given: Any, **more: Any) -> Any:
        assert self.is_training
        return super().step(*given, **more)


@pytest.mark.parametrize("is_made", [True, False])
def test_an_optimizer_that_must_enter_training_does(is_made: bool) -> None:
    model, make = nn.Linear(1, 1), functools.partial(Averaging, lr=0.1)
    step_of(model, optimizer=make(model.parameters()) if is_made else make)((torch.ones(2, 1), torch.ones(2, 1)))


def test_gradients_are_clipped_to_the_workloads_norm() -> None:
    norms: list[float] = []

    class Watching(torch.optim.SGD):
        def step(self, *given: Any, **more: Any) -> Any:
            norms.append(float(torch.cat([p.grad.flatten() for g in self.param_groups for p in g["params"]]).norm()))
            return super().step(*given, **more)

    model, optimizer = nn.Linear(1, 1), functools.partial(Watching, lr=0.0)
    for most in (None, 0.5):
        step_of(model, optimizer=optimizer, max_grad_norm=most)((torch.full((2, 1), 9.0), torch.zeros(2, 1)))
    assert norms[0] > 1
    assert norms[1] == pytest.approx(0.5, rel=1e-4)
