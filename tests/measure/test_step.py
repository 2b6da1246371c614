from __future__ import annotations

import functools
from collections import namedtuple
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from autotune.config import Config
from autotune.errors import UserCodeError
from autotune.measure.device import CpuDevice
from autotune.measure.step import TrainingStep, infer_loss, move, tensor_bytes
from autotune.workload import Workload
from tests.datasets import Squares

if TYPE_CHECKING:
    from collections.abc import Callable

ELSEWHERE = torch.device("meta")
"""A device that every machine has and that is not the CPU."""
SGD = functools.partial(torch.optim.SGD, lr=0.1)
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


def step_of(workload: Workload, **config: Any) -> TrainingStep:
    return TrainingStep(workload, Config(**config), CpuDevice())


def classifier(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(count: int, size: int = 8) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        [torch.randn(size, 4, generator=generator), torch.randint(0, 3, (size,), generator=generator)]
        for _ in range(count)
    ]


def parameters(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.parameters()]


def are_equal(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, parameters(one), parameters(other)))


# --- moving ---


def test_a_tensor_moves() -> None:
    assert moved(torch.zeros(2)).device == ELSEWHERE


def test_tuples_and_lists_move_and_keep_their_type() -> None:
    batch = moved((torch.zeros(2), [torch.zeros(3)]))
    assert isinstance(batch, tuple)
    assert isinstance(batch[1], list)
    assert (batch[0].device, batch[1][0].device) == (ELSEWHERE, ELSEWHERE)


def test_named_tuples_move_and_keep_their_names() -> None:
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
    assert (there.inner.values.device, there.mask.device, there.label, there.size) == (
        ELSEWHERE,
        ELSEWHERE,
        "a",
        7,
    )
    assert batch.inner.values.device.type == "cpu"


def test_an_object_with_a_method_to_moves_itself() -> None:
    assert moved([Graphs(torch.zeros(1))])[0].nodes.device == ELSEWHERE


def test_a_packed_sequence_stays_one() -> None:
    packed = moved(pack_sequence([torch.zeros(3), torch.zeros(2)]))
    assert isinstance(packed, PackedSequence)
    assert packed.data.device == ELSEWHERE


@pytest.mark.parametrize("value", [None, 3, 2.5, "text", b"bytes", {1, 2}, Inner, int])
def test_what_is_no_tensor_is_left_as_it_is(value: object) -> None:
    assert moved(value) is value


# --- counting ---


def test_bytes_are_those_of_every_tensor() -> None:
    batch = (
        torch.zeros(5),
        {"x": torch.zeros(2, dtype=torch.int64)},
        [Inner(torch.zeros(1, dtype=torch.bool))],
        "a",
    )
    assert tensor_bytes(batch) == 20 + 16 + 1


# --- the loss ---


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integer_targets_get_cross_entropy(dtype: torch.dtype) -> None:
    output, target = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    assert torch.equal(infer_loss(output, target.to(dtype)), functional.cross_entropy(output, target))


def test_floating_targets_get_the_mean_squared_error() -> None:
    output, target = torch.randn(6, 3), torch.randn(6, 3)
    assert torch.equal(infer_loss(output, target), functional.mse_loss(output, target))


def test_floating_targets_of_another_precision_are_taken_as_the_outputs() -> None:
    output, target = torch.randn(6, 3), torch.randn(6, 3, dtype=torch.float64)
    assert infer_loss(output, target).dtype == torch.float32


@pytest.mark.parametrize(("output_shape", "target_shape"), [((6, 1), (6,)), ((6,), (6, 1))])
def test_a_trailing_one_is_never_broadcast(output_shape: tuple[int, ...], target_shape: tuple[int, ...]) -> None:
    output, target = torch.randn(output_shape), torch.randn(target_shape)
    assert torch.equal(infer_loss(output, target), functional.mse_loss(output.flatten(), target.flatten()))


def test_a_loss_that_the_output_carries_is_taken() -> None:
    @dataclass
    class Output:
        loss: torch.Tensor
        logits: torch.Tensor

    loss = torch.tensor(2.0)
    assert infer_loss(Output(loss, torch.zeros(2, 2)), torch.zeros(2)) is loss
    assert infer_loss({"loss": loss, "logits": torch.zeros(2, 2)}, torch.zeros(2)) is loss


def test_a_scalar_output_is_its_own_loss() -> None:
    output = torch.tensor(2.0)
    assert infer_loss(output, {"x": torch.zeros(2)}) is output


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


# --- the step ---


def test_training_equals_a_loop_written_by_hand_to_the_last_bit() -> None:
    model, by_hand = classifier(), classifier()
    optimizer = torch.optim.AdamW(by_hand.parameters())
    step = step_of(Workload(model, Squares()))
    for x, y in batches(5):
        functional.cross_entropy(by_hand(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step([x, y])
    assert are_equal(model, by_hand)
    assert not are_equal(model, classifier())


def test_two_accumulated_halves_are_one_step_on_the_whole() -> None:
    halved, whole = classifier(), classifier()
    [[x, y]] = batches(1)
    step_of(Workload(whole, Squares(), optimizer=SGD))([x, y])
    step = step_of(Workload(halved, Squares(), optimizer=SGD), accumulation_steps=2)
    step([x[:4], y[:4]])
    assert are_equal(halved, classifier())
    step([x[4:], y[4:]])
    for one, other in zip(parameters(halved), parameters(whole), strict=True):
        torch.testing.assert_close(one, other)
    assert not are_equal(halved, classifier())


def test_gradients_are_freed_after_each_optimizer_step_and_kept_before_it() -> None:
    model = classifier()
    step = step_of(Workload(model, Squares()), accumulation_steps=2)
    is_free = []
    for batch in batches(4):
        step(batch)
        is_free.append(all(parameter.grad is None for parameter in model.parameters()))
    assert is_free == [False, True, False, True]


def test_the_last_loss_is_kept_undivided_and_without_its_graph() -> None:
    model, [[x, y]] = classifier(), batches(1)
    expected = functional.cross_entropy(model(x), y)
    step = step_of(Workload(model, Squares()), accumulation_steps=4)
    step([x, y])
    assert step.loss is not None
    assert not step.loss.requires_grad
    assert torch.equal(step.loss, expected)


def test_marks_come_in_the_order_of_the_phases() -> None:
    marks = step_of(Workload(classifier(), Squares()))(batches(1)[0])
    assert list(marks) == sorted(marks)
    assert len(set(marks)) == 5


def test_the_model_trains_in_training_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    step_of(Workload(model, Squares()))(batches(1)[0])
    assert int(model[1].num_batches_tracked) == 1


class Recording(nn.Module):
    """Notes whether autocast is on in forward, loss and backward, and the output's type."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.on: dict[str, bool] = {}
        self.dtype = torch.float32

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.on["forward"] = torch.is_autocast_enabled("cpu")
        output: torch.Tensor = self.linear(x)
        output.register_hook(self._note_backward)
        self.dtype = output.dtype
        return output

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.on["loss"] = torch.is_autocast_enabled("cpu")
        return functional.cross_entropy(output, target)

    def _note_backward(self, gradient: torch.Tensor) -> None:
        self.on["backward"] = torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("amp", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_covers_forward_and_loss_only(amp: str, dtype: torch.dtype) -> None:
    model = Recording()
    step = step_of(Workload(model, Squares(), loss=model.loss), amp=amp)
    step(batches(1)[0])
    assert model.on == {"forward": True, "loss": True, "backward": False}
    assert model.dtype == dtype
    assert step.loss is not None
    assert step.loss.dtype == torch.float32
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_without_amp_there_is_no_autocast() -> None:
    model = Recording()
    step_of(Workload(model, Squares(), loss=model.loss))(batches(1)[0])
    assert model.on == {"forward": False, "loss": False, "backward": False}


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_half_precision_takes_the_same_step_within_its_precision(amp: str) -> None:
    model, reference = classifier(), classifier()
    [batch] = batches(1)
    step_of(Workload(reference, Squares(), optimizer=SGD))(batch)
    step_of(Workload(model, Squares(), optimizer=SGD), amp=amp)(batch)
    for one, other in zip(parameters(model), parameters(reference), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3)
    assert not are_equal(model, classifier())


class Keywords(nn.Module):
    """Called as Hugging Face models are, and answers as they do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, *, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(pixels)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(one - two)
        return output


def test_the_items_of_a_dictionary_are_the_models_keywords() -> None:
    model, [[x, y]] = Keywords(), batches(1)
    expected = functional.cross_entropy(model.linear(x), y)
    step = step_of(Workload(model, Squares()))
    step({"pixels": x, "labels": y})
    assert step.loss is not None
    assert torch.equal(step.loss, expected)


def test_all_but_the_last_of_a_tuple_go_to_the_model() -> None:
    model, [[x, y]] = TwoInputs(), batches(1)
    expected = functional.cross_entropy(model.linear(x - 1), y)
    step = step_of(Workload(model, Squares()))
    step((x, torch.ones_like(x), y))
    assert step.loss is not None
    assert torch.equal(step.loss, expected)


def test_a_batch_that_is_a_single_tensor_is_input_and_target() -> None:
    model, [[x, _]] = nn.Linear(4, 4), batches(1)
    expected = functional.mse_loss(model(x), x)
    step = step_of(Workload(model, Squares()))
    step(x)
    assert step.loss is not None
    assert torch.equal(step.loss, expected)


def test_the_users_loss_gets_output_and_target_or_the_whole_dictionary() -> None:
    seen: list[Any] = []

    def loss(output: Any, target: Any) -> torch.Tensor:
        seen.append(target)
        logits = output["logits"] if isinstance(output, dict) else output
        return torch.as_tensor(logits).sum()

    [[x, y]] = batches(1)
    step_of(Workload(classifier(), Squares(), loss=loss))([x, y])
    step_of(Workload(Keywords(), Squares(), loss=loss))({"pixels": x, "labels": y})
    assert torch.equal(seen[0], y)
    assert set(seen[1]) == {"pixels", "labels"}


def test_the_users_training_step_replaces_model_call_and_loss() -> None:
    model, batch = classifier(), batches(1)[0]
    calls = []

    def training_step(given: nn.Module, data: Any) -> torch.Tensor:
        calls.append((given is model, len(data)))
        loss: torch.Tensor = given(data[0]).square().mean()
        return loss

    step = step_of(Workload(model, Squares(), training_step=training_step))
    step(batch)
    assert calls == [(True, 2)]
    assert not are_equal(model, classifier())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda _: SGD, id="factory"),
        pytest.param(lambda model: SGD(model.parameters()), id="instance"),
    ],
)
def test_the_users_optimizer_takes_the_step(make: Callable[[nn.Module], Any]) -> None:
    model, by_hand = classifier(), classifier()
    [[x, y]] = batches(1)
    step_of(Workload(model, Squares(), optimizer=make(model)))([x, y])
    functional.cross_entropy(by_hand(x), y).backward()
    SGD(by_hand.parameters()).step()
    assert are_equal(model, by_hand)


def test_frozen_parameters_do_not_train() -> None:
    model = classifier()
    frozen = model[0].requires_grad_(False)  # type: ignore[index]
    before = deepcopy(frozen)
    step_of(Workload(model, Squares()))(batches(1)[0])
    assert are_equal(frozen, before)


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)])
def test_a_model_without_anything_to_train_is_the_users_error(model: nn.Module) -> None:
    with pytest.raises(UserCodeError, match="no parameter that requires a gradient"):
        step_of(Workload(model, Squares()))


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
    model = nn.Linear(1, 1)
    given: Any = Averaging(model.parameters(), lr=0.1) if is_made else lambda parameters: Averaging(parameters, lr=0.1)
    step = TrainingStep(Workload(model, Squares(4), optimizer=given), Config(batch_size=2), CpuDevice())
    step((torch.ones(2, 1), torch.ones(2, 1)))


def test_gradients_are_clipped_to_the_workloads_norm() -> None:
    model = nn.Linear(1, 1)
    norms: list[float] = []

    class Watching(torch.optim.SGD):
        def step(self, *given: Any, **more: Any) -> Any:
            norms.append(float(torch.cat([p.grad.flatten() for g in self.param_groups for p in g["params"]]).norm()))
            return super().step(*given, **more)

    for most in (None, 0.5):
        workload = Workload(
            model, Squares(4), optimizer=lambda parameters: Watching(parameters, lr=0.0), max_grad_norm=most
        )
        step = TrainingStep(workload, Config(batch_size=2), CpuDevice())
        step((torch.full((2, 1), 9.0), torch.zeros(2, 1)))
    assert norms[0] > 1
    assert norms[1] == pytest.approx(0.5, rel=1e-4)
