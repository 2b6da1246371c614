"""Options are applied in place: what trains is the same model, a little differently computed."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from autotune.config import Config
from autotune.errors import UsageError
from autotune.step_options import OPTIONS, apply_options, parse_options


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.runs = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), 0

    def forward(self, images: Tensor) -> Tensor:
        self.runs += 1
        output: Tensor = images + self.last(torch.relu(self.first(images)))
        return output


class Net(nn.Module):
    """Two blocks in a list, a dropout between the second and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * 8 * 8, 2))

    def forward(self, images: Tensor) -> Tensor:
        images = self.stem(images)
        for block in self.blocks:
            images = block(images)
        output: Tensor = self.head(images)
        return output


class Pretrained(nn.Linear):
    asked: Any = None

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
        self.asked = gradient_checkpointing_kwargs


class WithoutCheckpointing(nn.Linear):
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
        raise ValueError("Linear does not support gradient checkpointing.")


def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


def optimizer_of(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def trained(model: nn.Module, optimizer: Optimizer, steps: int = 3) -> list[Tensor]:
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 3, 8, 8)).square().mean().backward()
        optimizer.step()
    return [tensor for parameter in model.parameters() for tensor in (parameter.detach(), parameter.grad)]  # type: ignore[misc]


def assert_trains_like_plain(options: tuple[str, ...]) -> None:
    plain, model = net(), net()
    optimizer, names = optimizer_of(model), list(model.state_dict())
    parameters = list(model.parameters())
    Config(options=options).apply_options(model, optimizer)
    assert list(model.state_dict()) == names
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    for found, expected in zip(trained(model, optimizer), trained(plain, optimizer_of(plain)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    plain.load_state_dict(model.state_dict())


@pytest.mark.parametrize("option", ["channels_last", "fused_optimizer", "checkpointing"])
def test_an_option_changes_neither_names_nor_training(option: str) -> None:
    assert_trains_like_plain((option,))


@pytest.mark.machine
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs a C++ compiler")
def test_a_compiled_model_trains_like_a_plain_one() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.Dropout.forward", lambda self, values: values)  # compiled, it draws other numbers
        with warnings.catch_warnings(action="ignore"):  # torch's own, as it compiles
            assert_trains_like_plain(("channels_last", "fused_optimizer", "checkpointing", "compile"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_compiling_is_in_place_and_once() -> None:
    model = net()
    Config(options=("compile",)).apply_options(model)
    compiled = model._compiled_call_impl
    Config(options=("compile",)).apply_options(model)
    assert compiled is not None
    assert model._compiled_call_impl is compiled


def test_channels_last_holds_for_every_weight_of_four_dimensions() -> None:
    model = net()
    apply_options(["channels_last"], model)
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in model.parameters() if p.dim() == 4)
    assert model.stem(torch.randn(2, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("times", [1, 2])
def test_checkpointed_blocks_and_those_of_a_copy_run_once_more_in_backward(times: int) -> None:
    model = net()
    for _ in range(times):
        apply_options(["checkpointing"], model)
    for each in (copy.deepcopy(model), model):
        assert [block.runs for block in model.blocks] == [0, 0]
        loss = each(torch.randn(2, 3, 8, 8)).sum()
        assert [block.runs for block in each.blocks] == [1, 1]
        loss.backward()
        assert [block.runs for block in each.blocks] == [2, 2]


def test_blocks_that_keep_running_statistics_are_not_run_twice() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    )
    apply_options(["checkpointing"], model)
    model(torch.randn(8, 4)).sum().backward()
    assert model[0][1].num_batches_tracked == 1
    assert [isinstance(block.forward, partial) for block in model] == [False, True]


def test_a_model_with_checkpointing_of_its_own_uses_that() -> None:
    model = Pretrained(2, 2)
    apply_options(["checkpointing"], model)
    assert model.asked == {"use_reentrant": False}


@pytest.mark.parametrize("make", [Adam, AdamW, partial(SGD, lr=0.01, momentum=0.9), partial(Adagrad, lr=0.01)])
@pytest.mark.parametrize("has_state", [False, True])
def test_a_fused_optimizer_is_as_one_that_was_made_so(make: Callable[[Any], Optimizer], has_state: bool) -> None:
    model, other = net(), net()
    late, own = make(model.parameters()), make(other.parameters())
    if has_state:
        trained(model, late), trained(other, own)
    apply_options(["fused_optimizer"], model, late)
    made: Any = make(other.parameters(), fused=True)  # type: ignore[call-arg]
    if has_state:
        made.load_state_dict(own.state_dict() | {"param_groups": made.state_dict()["param_groups"]})
    assert all(group["fused"] and not group["foreach"] for group in late.param_groups)
    assert late._step_supports_amp_scaling == made._step_supports_amp_scaling  # type: ignore[attr-defined]
    for found, expected in zip(trained(model, late), trained(other, made), strict=True):
        assert torch.equal(found, expected)


def test_a_fused_optimizer_skips_gradients_that_overflow_and_unscales_the_others() -> None:
    plain, model = nn.Linear(4, 1), nn.Linear(4, 1)
    model.load_state_dict(plain.state_dict())
    config, inputs = Config(amp="fp16", options=("fused_optimizer",)), torch.ones(8, 4)
    accumulators = []
    for each, options in ((plain, ()), (model, config.options)):
        optimizer = optimizer_of(each)
        apply_options(options, each, optimizer)
        accumulators.append(config.accumulator(optimizer, "cpu"))
        accumulators[-1].scaler.load_state_dict(accumulators[-1].scaler.state_dict() | {"scale": 128.0})
    for factor in (1.0, float("inf"), 1.0):
        for each, accumulator in zip((plain, model), accumulators, strict=True):
            accumulator.backward(each(inputs).square().mean() * factor)
            accumulator.step()
    torch.testing.assert_close(model.weight, plain.weight)
    assert accumulators[0].scaler.get_scale() == accumulators[1].scaler.get_scale() == 64.0


@pytest.mark.parametrize(
    ("option", "model", "optimizer", "reason"),
    [
        ("channels_last", nn.Linear(2, 2), None, "no weights of four dimensions"),
        ("tf32", nn.Linear(2, 2), None, "the model is on cpu"),
        ("cudnn_benchmark", nn.Linear(2, 2), None, "the model is on cpu"),
        ("cudnn_benchmark", nn.ReLU(), None, "the model is on no device"),
        ("fused_optimizer", nn.Linear(2, 2), RMSprop, "RMSprop has no fused kernel"),
        ("fused_optimizer", nn.Linear(2, 2), partial(Adam, differentiable=True), "is differentiable"),
        ("fused_optimizer", nn.Linear(2, 2, dtype=torch.complex64), Adam, "floating-point"),
        ("checkpointing", nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), None, "no repeated blocks"),
        ("checkpointing", WithoutCheckpointing(2, 2), None, "does not support gradient checkpointing;"),
    ],
)
def test_what_does_not_apply_is_refused_with_the_reason(
    option: str, model: nn.Module, optimizer: Any, reason: str
) -> None:
    with pytest.raises(UsageError, match=f"^{option} does not apply here: .*{reason}.*leave it out$"):
        apply_options([option], model, optimizer(model.parameters()) if optimizer else None)


def test_neither_a_fused_optimizer_without_the_optimizer_nor_compiling_without_a_compiler_applies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"apply_options\(model, optimizer\)"):
        apply_options(["fused_optimizer"], nn.Linear(2, 2))
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(UsageError, match=r"no C\+\+ compiler \(no-such-compiler"):
        apply_options(["compile"], nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("compile,channels_last", ("channels_last", "compile")),
        (" tf32 , compile", ("tf32", "compile")),
        (["compile", "compile"], ("compile",)),
        (("fused_optimizer",), ("fused_optimizer",)),
        ("all", tuple(OPTIONS)),
        ([], ()),
    ],
)
def test_options_are_parsed_into_the_order_in_which_they_are_applied(given: Any, expected: tuple[str, ...]) -> None:
    assert parse_options(given) == expected
    assert list(OPTIONS)[-1] == "compile"


@pytest.mark.parametrize("given", ["", "compile,", "turbo", ["turbo"], [3], 3, [["compile"]]])
def test_an_unknown_option_is_refused_with_what_is_allowed(given: Any) -> None:
    with pytest.raises(UsageError, match=r"--explore: unknown option .*; allowed: channels_last, tf32, .*, compile"):
        parse_options(given)
