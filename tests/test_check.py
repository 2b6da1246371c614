from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import comparison
from autotune.comparison import Side, read_promise
from autotune.config import Config
from autotune.errors import ConfigFileError, NothingFeasibleError
from autotune.limits import Budget
from autotune.messages import Messages, Progress
from autotune.outcome import Outcome
from autotune.report.terminal import check_text
from autotune.result import Check
from tests import examples
from tests.simulated import SimulatedMachine, StepCost

CONFIG, BASELINE = PROMISE = examples.check().config, examples.check().baseline


def machine(speedup: float, **options: Any) -> SimulatedMachine:
    def cost(config: Config) -> StepCost:
        return StepCost(compute=config.batch_size / (1000 * (speedup if config == CONFIG else 1.0)))

    return SimulatedMachine(cost=cost, **options)


def checked(
    runner: SimulatedMachine,
    promise: tuple[Config, Config] = PROMISE,
    budget: float = 60.0,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Check:
    time = Budget(budget, runner.now)
    sides = Side("baseline", promise[1], runner), Side("answer", promise[0], runner)
    return comparison.checked(sides, time, Messages(time, tell), ("a note",))


@pytest.mark.parametrize(
    ("speedup", "verdict"),
    [(2.0, "holds"), (1.95, "holds"), (2.5, "holds"), (1.5, "broken"), (1.0, "broken"), (0.5, "broken")],
)
def test_a_promise_holds_unless_the_speedup_is_sure_to_lie_below_it(speedup: float, verdict: str) -> None:
    runner, seen = machine(speedup, noise=0.01, seconds=5.0), list[Progress]()
    found = checked(runner, tell=seen.append)
    assert found.verdict == verdict
    assert found.rounds >= 3
    assert runner.time <= 60.0
    assert all(request.fresh for _, request in runner.calls)
    assert len(seen) == len(runner.calls)
    assert found.speedup == pytest.approx(speedup, rel=0.03)
    assert found.samples_per_second == pytest.approx(1000 * speedup, rel=0.03)


def test_one_round_decides_nothing() -> None:
    found = checked(machine(2.0, seconds=50.0))
    assert (found.rounds, found.verdict) == (1, "undecided")
    assert "--budget" in check_text(found, "a.yaml")


def test_the_text_has_both_figures_and_the_verdict() -> None:
    text = check_text(checked(machine(1.5, noise=0.001)), "tuned.yaml")
    assert text.startswith(
        "tuned.yaml promises 2.00 times the baseline (95 % interval 1.90 to 2.10), 2,000 samples/s.\nNow it is 1.50"
    )
    assert text.endswith("Note: a note.\nThe promise does not hold here any more: tune again.")


def saved(tmp_path: Path, **measured: Any) -> Path:
    path = tmp_path / "tuned.json"
    baseline = {**examples.BASELINE.dataloader_kwargs(), "amp": "off", "samples_per_second": 1000.0}
    section = {"verdict": "faster", "speedup": 2.0, "speedup_ci95": [1.9, 2.1], "baseline": baseline, **measured}
    document = examples.ANSWER.to_document() | {"measured": {k: v for k, v in section.items() if v is not None}}
    path.write_text(json.dumps(document))
    return path


def test_a_promise_is_read_from_the_file_and_may_leave_out_what_is_not_needed(tmp_path: Path) -> None:
    assert (found := read_promise(saved(tmp_path, samples_per_second=2000.0))) == PROMISE
    assert CONFIG.measured
    assert found[0].measured
    assert CONFIG.measured.items() <= found[0].measured.items()
    bare, _ = read_promise(saved(tmp_path, speedup_ci95=None))
    assert bare.measured
    assert not {"samples_per_second", "speedup_ci95"} & set(bare.measured)
    text = check_text(checked(machine(2.0), (bare, BASELINE)), "a.yaml")
    assert text.startswith("a.yaml promises 2.00 times the baseline.\n")


def test_a_promise_of_the_beginning_of_an_epoch_is_read_and_told_with_what_was_seen_now(tmp_path: Path) -> None:
    path = saved(tmp_path, samples_per_second=2000.0, beginning_samples=76800)
    assert read_promise(path) == PROMISE
    text = check_text(checked(machine(2.0, beginning_samples=9600), read_promise(path)), "a.yaml")
    first, now, *_, last = text.splitlines()
    assert first.endswith(", for the first 76,800 samples of an epoch.")
    assert now.endswith(" rounds of fresh processes, for the first 9,600 samples of an epoch.")
    assert last == "The promise holds, for the first 9,600 samples of an epoch."
    assert "of an epoch" not in check_text(checked(machine(2.0)), "a.yaml")


@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "undecided"), (3.0, "broken")])
def test_what_the_beginning_shows_does_not_hold_where_workers_get_different_amounts(
    slower: float, verdict: str
) -> None:
    promised = replace(Config(num_workers=4), measured=CONFIG.measured)

    def cost(config: Config) -> StepCost:
        return StepCost(compute=config.batch_size / (2000.0 / slower if config == promised else 1000.0))

    found = checked(SimulatedMachine(cost=cost, noise=0.001, shards=3, beginning_samples=768), (promised, BASELINE))
    assert found.verdict == verdict
    assert ("1 of 4 loader workers got no data" in " ".join(found.notes)) is (verdict == "undecided")
    assert ("short enough to be seen whole" in check_text(found, "a.yaml")) is (verdict == "undecided")
    whole = checked(SimulatedMachine(cost=cost, noise=0.001, shards=3), (promised, BASELINE))
    assert whole.verdict == ("holds" if verdict == "undecided" else "broken")


DAMAGED = [{"batch_size": -1}, {"colour": "red"}, {"batch_size": "many"}]
NO_GAIN = "promises no gain over another configuration"


@pytest.mark.parametrize(
    ("baseline", "said"), [(None, NO_GAIN), *((baseline, "measured: baseline") for baseline in DAMAGED)]
)
def test_a_file_without_a_promise_or_with_a_damaged_one_is_refused(tmp_path: Path, baseline: Any, said: str) -> None:
    with pytest.raises(ConfigFileError, match=said):
        read_promise(saved(tmp_path, baseline=baseline))


@pytest.mark.parametrize("threads", [None, 4], ids=["torch's own threads", "threads"])
def test_a_file_whose_answer_is_the_baseline_has_no_gain_to_check(tmp_path: Path, threads: int | None) -> None:
    baseline = {**examples.ANSWER.dataloader_kwargs(), "amp": examples.ANSWER.amp, "intra_op_threads": threads}
    path = saved(tmp_path, baseline=baseline, verdict="no gain above 3 %", speedup=1.0, speedup_ci95=None)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": {"intra_op": 4, "inter_op": None}}))
    with pytest.raises(ConfigFileError, match=f"{NO_GAIN}, so there is nothing to check; run looks for a gain"):
        read_promise(path)


@pytest.mark.parametrize("config", PROMISE)
def test_what_cannot_be_measured_is_an_error_that_says_so(config: Config) -> None:
    with pytest.raises(NothingFeasibleError, match="device_oom here"):
        checked(machine(2.0, fails=lambda tried: Outcome.DEVICE_OOM if tried == config else None))


def test_an_interrupted_check_says_what_is_known() -> None:
    found = checked(runner := machine(2.0, noise=0.03, interrupt_at=6))
    assert (found.rounds, found.verdict, found.speedup_ci95, runner.closed) == (2, "undecided", None, 1)
    assert found.speedup == pytest.approx(2.0, rel=0.1)
