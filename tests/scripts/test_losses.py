from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.config import Config
from autotune.measure.script_losses import STEPS
from autotune.notes import on_losses
from autotune.report.result import Result
from autotune.result import Verdict
from tests import examples
from tests.scripts.holding import InTurn, in_turn
from tests.simulated import SimulatedMachine, few_of, host, larger_batches_pay, loader_bound, tuner_of

OWN, FED = Config(batch_size=16, intra_op_threads=1), Config(batch_size=16, num_workers=2, intra_op_threads=1)
LOOP = """\
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 960

    def __getitem__(self, index):
        return torch.full((8,), index / 960) + {noise}, torch.tensor(float(index % 2))

def main():
    {seed}
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Numbers(), batch_size=16, shuffle=True)
    for epoch in range(100):
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(images)[:, 0], labels).backward()
            optimizer.step()
        open("epochs.log", "a").write("one more\\n")

if __name__ == "__main__":
    main()
"""
SAME, NOISY, OTHER = "those of your settings", "Loader workers draw random numbers", "differ from start to start"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InTurn]:
    with in_turn(tmp_path_factory.mktemp("losses")) as runner:
        yield runner


@pytest.mark.machine
@pytest.mark.parametrize(
    ("noise", "seed", "said"),
    [
        ("0", "torch.manual_seed(3)", SAME),
        ("0", "pass", SAME),
        ("torch.rand(8)", "torch.manual_seed(3)", NOISY),
        ("0", "torch.seed()", OTHER),
    ],
)
def test_the_first_losses_of_a_script_are_read_in_two_starts_of_it(
    noise: str, seed: str, said: str, runner: InTurn
) -> None:
    Path("train.py").write_text(LOOP.format(noise=noise, seed=seed))
    runner.turn_to(Path("train.py"))
    runner.inspect(OWN)
    own, answered, again = (runner.losses(config, 60.0) for config in (OWN, FED, OWN))
    assert len(own) == len(answered) == 20
    assert (own == answered, own == again) == (said is SAME, said is not OTHER)
    assert said in on_losses(own, answered, again)
    assert [path.name for path in Path().iterdir()] == ["train.py"]


def test_the_largest_difference_is_told_with_its_step() -> None:
    told = on_losses((2.0, 1.5, 1.25), (2.0, 1.75, 1.0625), (2.0, 1.5, 1.25))
    assert told.startswith("Of the first 3 losses, the largest difference is at step 2: 1.75, with your settings 1.5.")
    assert "nan" in on_losses((), (1.0,))


def script(machine: SimulatedMachine, **plan: Any) -> Result:
    """The answer for a script on a simulated machine."""
    facts = examples.facts(loader_site="train.py:3 list[96]")
    space = few_of(facts, batch_size=examples.BASELINE.batch_size)
    return tuner_of(machine, space, facts, host(), **{"opening": 2.0, **plan}).result()


@pytest.mark.parametrize("changes", [False, True])
def test_the_answer_tells_how_the_losses_change(changes: bool) -> None:
    machine = SimulatedMachine(cost=loader_bound)
    machine.losses = lambda config: (1.0, 0.5 - 0.125 * changes * (config.num_workers > 0))
    result = script(machine)
    asked = [config for config, request in machine.looks if request.part == "losses"]
    threads = result.config.intra_op_threads
    assert [(each.num_workers > 0, each.intra_op_threads) for each in asked[:2]] == [(False, threads), (True, threads)]
    assert len(asked) == 2 + changes
    assert (NOISY if changes else SAME) in result.notes[-1]
    assert result.seconds == pytest.approx(machine.time)


def test_losses_are_not_compared_where_they_have_to_differ_or_there_is_no_time() -> None:
    machine = SimulatedMachine(cost=larger_batches_pay, losses=lambda config: (1.0,))
    facts = examples.facts(loader_site="train.py:3 list[96]")
    result = tuner_of(machine, few_of(facts), facts, host()).result()
    assert result.config.batch_size != result.baseline.batch_size
    assert not [request for _, request in machine.looks if request.part == "losses"]
    late = script(SimulatedMachine(cost=loader_bound, losses=lambda config: (1.0,)), opening=100.0)
    assert late.notes[-1] == "There was no time to compare the first losses with those of your settings."


def test_a_script_that_fails_meanwhile_keeps_its_answer() -> None:
    result = script(SimulatedMachine(cost=loader_bound))
    assert result.config.num_workers
    assert not [note for note in result.notes if "losses" in note]


def test_an_interrupt_while_losses_are_read_leaves_the_answer() -> None:
    def interrupted(config: Config) -> tuple[float, ...]:
        raise KeyboardInterrupt

    result = script(SimulatedMachine(cost=loader_bound, losses=interrupted))
    assert (result.verdict, result.interrupted) == (Verdict.FASTER, False)


@pytest.mark.machine
def test_a_script_that_catches_everything_is_left_once_its_losses_are_read(runner: InTurn) -> None:
    text = LOOP.format(noise="0", seed="pass")
    step = text[text.index("            optimizer.zero_grad()") : text.index("        open(")]
    caught = (
        f"            try:\n{textwrap.indent(step, '    ')}            except BaseException:\n                pass\n"
    )
    Path("train.py").write_text(text.replace(step, caught).replace("range(100)", "range(2)"))
    runner.turn_to(Path("train.py"))
    try:
        assert len(runner.losses(OWN, 60)) == STEPS
    finally:
        runner.end_session()
