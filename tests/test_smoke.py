"""One real measuring process of each kind: what must work before anything else is looked at."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import autotune
from autotune.config import Config
from autotune.outcome import Outcome
from autotune.records import Attempt, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import describe
from tests.processes import PATIENCE, are_gone, printed, run_python
from tests.quiet import undisturbed
from tests.workloads import SAMPLE_SECONDS, STEP_SECONDS

pytestmark = [pytest.mark.smoke, pytest.mark.usefixtures("shared_processes")]

CONFIG = Config(batch_size=8)
QUICK = Request(seconds=0.2, time_limit=60)
BRIEF = """
import sys
from autotune import cli, limits
limits.LEAST_BUDGET = 1.0
sys.exit(cli.main(sys.argv[1:]))
"""


def runner_of(name: str) -> ProcessRunner:
    return ProcessRunner(describe(f"tests.{name}"), "cpu")


def loss_of(attempt: Attempt) -> float:
    assert attempt.measurement is not None, attempt
    assert attempt.measurement.loss is not None
    return attempt.measurement.loss


def test_a_rate_is_what_arithmetic_says() -> None:
    truth = min(8 / STEP_SECONDS, 2 / SAMPLE_SECONDS)

    with runner_of("workloads:sleeping") as runner:
        runner.inspect(CONFIG)

        def measure() -> float:
            attempt = runner.measure(Config(batch_size=8, num_workers=2), Request(seconds=2))
            assert attempt.measurement is not None, attempt
            return attempt.measurement.samples_per_second

        rate = undisturbed(measure, lambda rate: rate >= truth * 0.95)
    assert 0.95 * truth <= rate <= 1.02 * truth


@pytest.mark.machine
def test_a_hang_ends_at_its_limit(processes: Callable[[], list[psutil.Process]]) -> None:
    hanging = Config(batch_size=8, intra_op_threads=2)
    with runner_of("workloads:hangs") as runner:
        runner.inspect(hanging)
        begin = time.monotonic()
        attempt = runner.measure(hanging, Request(seconds=0.2, time_limit=2))
        assert 2 <= time.monotonic() - begin < 2 + PATIENCE
        assert (attempt.outcome, attempt.message[:20]) == (Outcome.TIMEOUT, "no answer within 2 s")
        assert ": it was in " in attempt.message
        assert are_gone(processes)


@pytest.mark.machine
def test_what_is_killed_is_an_outcome_and_every_failure_ends_its_session() -> None:
    """The loss is the number of the session's process."""
    with runner_of("workloads:raising_at_batch_size_7") as runner:
        runner.inspect(CONFIG)
        first, same, fresh, after = (
            loss_of(runner.measure(CONFIG, request))
            for request in (QUICK, QUICK, Request(seconds=0.2, time_limit=60, fresh=True), QUICK)
        )
        assert first == same
        assert len({first, fresh, after}) == 3
        os.kill(int(after), signal.SIGKILL)
        killed = runner.measure(CONFIG, QUICK)
        assert (killed.outcome, killed.message[:33]) == (Outcome.HOST_OOM, "the process was killed (signal 9)")
        alive = loss_of(runner.measure(CONFIG, QUICK))
        raised = runner.measure(Config(batch_size=7), QUICK)
        assert (raised.outcome, raised.message) == (Outcome.USER_ERROR, "ValueError: cannot train on 7")
        assert loss_of(runner.measure(CONFIG, QUICK)) not in (first, fresh, after, alive)


def test_the_command_line_tunes_and_writes_a_file_that_loads(tmp_path: Path) -> None:
    flags = "--model tests.workloads:small --device cpu --budget 15s --trials 2 --num-workers 0 --json --output x.yaml"
    done = run_python("-c", BRIEF, *flags.split(), folder=tmp_path, NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    document = json.loads(done.stdout)
    assert document["trials"][0]["kind"] == "baseline"
    assert {path.name for path in tmp_path.iterdir()} == {"x.yaml", "x.study"}
    config = autotune.load_config(tmp_path / "x.yaml")
    assert config.dataloader_kwargs() == document["config"]["dataloader"]
    assert config.measured == document["measured"]


def test_importing_takes_neither_torch_nor_optuna() -> None:
    code = "import sys, autotune; print(sorted({'torch', 'optuna', 'numpy', 'pandas', 'yaml'} & set(sys.modules)))"
    assert printed("-c", code) == "[]"
