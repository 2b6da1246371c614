"""What a precision does to training: on models that are known to break in it, and on one that does not."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from autotune.config import Config
from autotune.measure.device import CpuDevice
from autotune.measure.numerics_probe import STEPS, check_numerics
from autotune.probes import NumericsCheck, reason_against
from autotune.settings import Amp
from autotune.workload import Workload
from tests.datasets import Squares


def data() -> TensorDataset:
    """Inputs of eight normal numbers, the target is a function of them."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(640, 8, generator=generator)
    return TensorDataset(inputs, torch.tanh(inputs @ torch.randn(8, 1, generator=generator)))


def net(*last: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1), *last)


class WithNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()


class Large(WithNet):
    """Leaves the range of fp16, 65,504, on the way, and comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(1, 1, bias=False)

    def forward(self, inputs: Tensor) -> Any:
        return self.last(self.net(inputs) * 1e6) * 1e-6


class Residual(nn.Module):
    """What it learns is a ten-thousandth of what it adds it to, which bf16 rounds away."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch = nn.Linear(8, 1), net()
        nn.init.constant_(self.trunk.bias, 1.0)

    def forward(self, inputs: Tensor) -> Tensor:
        trunk = self.trunk(inputs)
        return (trunk + 1e-4 * self.branch(inputs).to(trunk.dtype)) - trunk


def in_small_units(output: Tensor, target: Tensor) -> Tensor:
    return ((output.float() / 1e-4 - target) ** 2).mean()


class LateNan(WithNet):
    """Its loss is not a number after a few steps, wherever autocast is on."""

    steps = 0

    def forward(self, inputs: Tensor) -> Any:
        self.steps += torch.is_autocast_enabled("cpu")
        return self.net(inputs) * (float("nan") if self.steps > 5 else 1.0)


class InfiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * float("inf")


class Overflowing(WithNet):
    """Its loss is finite and its gradients are not, wherever autocast is on."""

    def forward(self, inputs: Tensor) -> Any:
        output = self.net(inputs)
        return InfiniteGradient.apply(output) if torch.is_autocast_enabled("cpu") else output


def checked(model: nn.Module, amp: Amp, seconds: float = 30.0, **options: Any) -> NumericsCheck:
    workload = Workload(model, options.pop("dataset", data()), **options)
    return check_numerics(workload, Config(batch_size=32, amp=amp), CpuDevice(), seconds)


def reason(model: nn.Module, amp: Amp, **options: Any) -> str | None:
    return reason_against(checked(model, amp, **options), amp)


def with_dropout_and_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    first, second = [nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU()], [nn.Dropout(0.3), nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Linear(64, 1))


@pytest.mark.parametrize(
    ("make", "amp"),
    [(net, "fp16"), (with_dropout_and_batch_norm, "bf16"), (Large, "bf16")],
)
def test_a_sound_model_is_accepted_and_a_large_one_where_its_range_is(make: Callable[[], nn.Module], amp: Amp) -> None:
    assert reason(make(), amp) is None


def test_gradients_that_need_a_small_scale_settle_first() -> None:
    """A summed loss overflows at the first scale of 65,536 and not at a smaller one."""
    check = checked(net(), "fp16", loss=lambda output, target: 30 * ((output - target) ** 2).sum())
    assert (check.settles, check.overflows, reason_against(check, "fp16")) == (True, (), None)


@pytest.mark.parametrize(
    ("model", "amp", "options", "words"),
    [
        (Large, "fp16", {}, "fp16"),
        (Residual, "bf16", {"loss": in_small_units}, "on the same batches"),
        (LateNan, "bf16", {}, "the loss becomes nan"),
        (LateNan, "fp16", {}, "the loss becomes nan"),
        (Overflowing, "fp16", {}, "overflow at every scale"),
    ],
)
def test_a_model_that_breaks_in_a_precision_is_rejected(
    model: type[nn.Module], amp: Amp, options: dict[str, Any], words: str
) -> None:
    assert words in str(reason(model(), amp, **options))


def test_gradients_that_are_not_finite_are_seen_without_a_scaler_too() -> None:
    assert str(reason(Overflowing(), "bf16")) in (
        "in bf16 the gradients of 20 of 20 steps are not finite",
        "in bf16 the loss becomes nan at step 2 of 20, in fp32 it stays finite",
    )


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_model_and_optimizer_are_afterwards_what_they_were_before(amp: Amp) -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    check = checked(model, amp, optimizer=optimizer)
    assert len(check.losses) == STEPS
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)


class InPlace(WithNet):
    """Changes its input, and has a buffer that its state dictionary leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, inputs: Tensor) -> Any:
        inputs.mul_(0.5)
        self.seen += 1
        return self.net(inputs) + 0.01 * self.seen


def test_all_runs_start_from_the_same_weights_batch_and_buffers_also_where_a_step_changes_them() -> None:
    for model in (net(), InPlace()):
        check = checked(model, "bf16")
        first = check.reference_losses[0]
        assert reason_against(check, "bf16") is None
        assert check.losses[0] == pytest.approx(first, rel=0.02)
        assert first not in (check.losses[0], check.other_losses[0])
        assert sum(check.other_losses) == pytest.approx(sum(check.reference_losses), rel=0.2)
        assert check.reference_losses[-1] < first
    assert float(model.seen) == 0


def test_sparse_gradients_and_optimizers_without_hooks_can_be_checked() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.last = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)

        def forward(self, words: Tensor) -> Any:
            return self.last(self.table(words).mean(1))

    words = TensorDataset(torch.randint(0, 10, (64, 5)), torch.randn(64, 1))
    assert reason(Words(), "bf16", dataset=words, optimizer=lambda p: torch.optim.SGD(p, lr=0.01)) is None

    class Wrapped:
        def __init__(self, parameters: Any) -> None:
            self._inner = torch.optim.SGD(parameters, lr=0.01)
            self.zero_grad, self.step = self._inner.zero_grad, self._inner.step

    assert reason(net(), "bf16", optimizer=Wrapped) is None


def test_memory_for_the_batches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.measure.numerics_probe.MOST_BYTES", 5000)  # a batch of 32 has 1,152
    taken: list[int] = []
    monkeypatch.setattr(
        "autotune.measure.numerics_probe._in_another_order", lambda batches: taken.append(len(batches)) or batches
    )
    assert reason(net(), "bf16") is None
    assert taken == [4]


def test_slow_steps_mean_fewer_of_them() -> None:
    def slowly(model: nn.Module, batch: Any) -> Tensor:
        time.sleep(0.02)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    check = checked(net(), "bf16", seconds=0.1, training_step=slowly)
    assert 4 <= len(check.losses) == len(check.reference_losses) == len(check.other_losses) < STEPS


def test_without_anything_to_train_it_raises() -> None:
    with pytest.raises(Exception, match="nothing to train"):
        checked(nn.Flatten(), "bf16", dataset=Squares(64))


class Image(nn.Module):
    """Notes at each step whether channels come last in its weights and in a buffer of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.last = nn.Conv2d(2, 2, 2), nn.Linear(2, 1)
        self.register_buffer("seen", torch.zeros(1, 2, 2, 2))
        self.formats: list[bool] = []

    def forward(self, inputs: Tensor) -> Any:
        self.formats.append(self.convolution.weight.is_contiguous(memory_format=torch.channels_last))
        self.seen += 1.0
        return self.last(self.convolution(inputs.view(-1, 2, 2, 2)).flatten(1))


def test_options_are_compared_with_plain_fp32_and_come_last() -> None:
    model = Image()
    before = copy.deepcopy(model.state_dict())
    config = Config(batch_size=32, amp="bf16", options=("channels_last", "fused_optimizer"))
    check = check_numerics(Workload(model, data()), config, CpuDevice(), 30.0)
    assert model.formats == sorted(model.formats)
    assert sum(model.formats) == len(check.losses) == len(check.reference_losses)
    assert reason_against(check, "bf16", "channels_last") is None
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
