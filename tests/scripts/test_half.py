from __future__ import annotations

import re
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from autotune.config import Config
from autotune.notes import on_half_precision
from autotune.outcome import Outcome
from autotune.probes import reason_against
from autotune.records import ADDED, Attempt, Request
from autotune.runner.local import ProcessRunner
from autotune.search.space import build_space
from autotune.settings import parse_knobs
from autotune.sites import cast_forwards, stand_in_for_autocast
from autotune.workload import Script, describe
from tests import examples
from tests.processes import known_time
from tests.search.there import there

LOOP = Path(__file__).with_name("loops") / "half.py"
FULL = Config(batch_size=32, intra_op_threads=1)
HALF = replace(FULL, amp="bf16")
COMPARE = Request(seconds=4.0, time_limit=120.0, part="numerics")


def compared(*words: str) -> Attempt:
    with ProcessRunner(describe(Script(path=str(LOOP), arguments=("50", *words)))) as runner:
        runner.inspect(FULL)
        return runner.measure(HALF, COMPARE)


@pytest.mark.machine
@pytest.mark.parametrize("name", ["half.py", "on_card.py"])
def test_a_script_without_autocast_trains_in_bf16_at_the_rate_that_apply_has(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in known_time(LOOP.parent).items():
        monkeypatch.setenv(variable, value)
    script = str(LOOP.with_name(name))
    with ProcessRunner(describe(Script(path=script, arguments=("50",)))) as runner:
        facts = runner.inspect(FULL)
        check = there(runner.measure(HALF, COMPARE).numerics)
        slow, fast, again = (
            there(runner.measure(config, Request(seconds=1.5, time_limit=60.0)).measurement).samples_per_second
            for config in (FULL, HALF, FULL)
        )
    assert (facts.device_name == "Fake Accelerator") is (name == "on_card.py")
    assert reason_against(check, "bf16") is None
    assert check.losses != check.reference_losses
    assert slow == pytest.approx(again, rel=0.2)
    assert 2.5 < fast / slow < 4.5
    made_on = {"loader": there(facts.loader_site), "autocast": ADDED}
    replace(HALF, made_on=made_on).save(tmp_path / "autotune.yaml")
    command = [sys.executable, "-m", "autotune", "apply", "autotune.yaml", script, "4"]
    shown = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    rates = [float(rate) for rate in re.findall(r"(\S+) samples/s", shown)]
    assert 0.85 < statistics.median(rates[1:]) / fast < 1.15


@pytest.mark.machine
def test_a_precision_that_goes_wrong_in_a_script_is_refused_with_its_reason() -> None:
    reason = reason_against(there(compared("diverges").numerics), "bf16")
    assert there(reason).startswith("in bf16 the loss ")
    failed = compared("numpy")
    assert failed.outcome is Outcome.USER_ERROR
    assert "BFloat16" in failed.message


def test_a_script_in_fp32_stays_there_unless_bf16_is_asked_for() -> None:
    facts = examples.facts(amp_modes=("off", "bf16"), loader_site="train.py:3 list[96]")
    assert build_space(facts, 4, FULL, {}).allowed["amp"] == ("off",)
    assert build_space(facts, 4, FULL, parse_knobs({"amp": "off,bf16"})).allowed["amp"] == ("off", "bf16")
    assert "--amp off,bf16" in next(on_half_precision(facts))
    own = replace(facts, autocast_call="train.py:5")
    assert build_space(own, 4, FULL, {}).allowed["amp"] == ("off", "bf16")
    for other in (own, replace(facts, amp_modes=("off",)), replace(facts, loader_site=None)):
        assert list(on_half_precision(other)) == []


def test_only_what_trains_is_cast_and_only_while_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = (nn.Module, "__call__"), (torch.optim.Optimizer, "add_param_group"), (torch.autocast, "__enter__")
    for owner, name in patched:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    wanted: list[torch.dtype | None] = [None]
    own: list[torch.autocast] = []
    cast_forwards(lambda: wanted[0])
    stand_in_for_autocast(lambda context: own.append(context) or True)  # type: ignore[func-returns-value]
    seen: list[torch.dtype] = []
    model, frozen, samples = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), nn.Linear(4, 2), torch.randn(3, 4)
    model[0].register_forward_hook(lambda *given: seen.append(given[2].dtype))
    frozen.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    torch.optim.SGD(model.parameters(), lr=0.1).add_param_group({"params": [nn.Parameter(torch.zeros(1))]})

    def outputs() -> list[torch.dtype]:
        seen.clear()
        assert model(samples).dtype is torch.float32
        frozen(samples)
        with torch.no_grad():
            model(samples)
        return seen

    assert outputs() == [torch.float32] * 3
    wanted[0] = torch.bfloat16
    assert outputs() == [torch.bfloat16, torch.float32, torch.float32]
    assert own == []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert frozen(samples).dtype is torch.bfloat16
    assert len(own) == 1
