from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

import autotune
from autotune.config import Config
from autotune.errors import NothingFeasibleError, UserCodeError
from autotune.machine.descendants import MARK
from autotune.machine.host import inspect_host
from autotune.measure.subreaper import OOM_SCORE
from autotune.outcome import Outcome
from autotune.protocol import Channel
from autotune.records import Attempt, Measurement, Part, Request
from autotune.runner.local import ProcessRunner
from autotune.workload import Workload, describe
from tests.datasets import Squares
from tests.processes import are_gone, known_time
from tests.workloads import SAMPLE_SECONDS, STEP_SECONDS

QUICK = Request(seconds=0.2, time_limit=60)
FRESH = Request(seconds=0.2, fresh=True)
LOAD = 8 * SAMPLE_SECONDS
OURS = str(Path(autotune.__file__).parent)
ROOT = str(Path(OURS).parent)

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are POSIX"),
    pytest.mark.usefixtures("shared_processes"),
]


def runner_of(name: str) -> ProcessRunner:
    return ProcessRunner(describe(f"tests.workloads:{name}"), "cpu")


def failing(num_workers: int = 0) -> Config:
    return Config(batch_size=8, intra_op_threads=2, num_workers=num_workers)


SOUND = Config(batch_size=8, intra_op_threads=1)


def measured(attempt: Attempt) -> Measurement:
    """The numbers; a busy neighbour makes them suspect, but is no failure of the runner."""
    assert attempt.outcome in (Outcome.OK, Outcome.SUSPECT), attempt
    assert attempt.measurement is not None
    return attempt.measurement


def loss(attempt: Attempt) -> float:
    value = measured(attempt).loss
    assert value is not None
    return value


# --- rates ---


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in known_time(Path(__file__).parents[1]).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("known")
def test_waiting_for_data_is_told_from_training() -> None:
    with runner_of("sleeping") as runner:
        runner.inspect(SOUND)
        split = measured(runner.measure(SOUND, Request(seconds=1))).step_time
    assert LOAD <= split.data_wait <= 1.05 * LOAD
    assert STEP_SECONDS <= split.forward <= 1.2 * STEP_SECONDS
    assert split.total <= 1.05 * (LOAD + STEP_SECONDS)


@pytest.mark.usefixtures("known")
def test_where_the_dataset_keeps_samples_later_epochs_are_measured_on_those_that_were_read() -> None:
    with runner_of("keeping") as runner:
        runner.inspect(SOUND)
        first, later = (
            measured(runner.measure(SOUND, Request(seconds=2.0, fresh=True, later_epochs=is_later)))
            for is_later in (False, True)
        )
    assert (first.later_epochs, later.later_epochs) == (False, True)
    assert first.samples_per_second == pytest.approx(8 / (LOAD + STEP_SECONDS), rel=0.05)
    assert later.samples_per_second == pytest.approx(8 / STEP_SECONDS, rel=0.2)


@pytest.mark.parametrize("is_persistent", [False, True])
def test_workers_that_begin_anew_read_anew_and_persistent_ones_have_what_they_read(is_persistent: bool) -> None:
    config = replace(SOUND, num_workers=1, persistent_workers=is_persistent)
    with runner_of("keeping") as runner:
        runner.inspect(SOUND)
        found = measured(runner.measure(config, Request(seconds=1.0, later_epochs=True)))
    assert found.later_epochs is is_persistent
    assert (found.samples_per_second > 1.5 * 8 / LOAD) is is_persistent


# --- the conversation ---


def test_facts_are_those_of_the_workload() -> None:
    with runner_of("small") as runner:
        facts = runner.inspect(Config())
    assert (facts.dataset_length, facts.iterable, facts.parameters, facts.device) == (256, False, 2, "cpu")
    assert facts.amp_modes[0] == "off"
    assert 0 < facts.obtainable_host_bytes <= inspect_host().memory_bytes


def test_an_attempt_tells_its_opening_apart_from_its_measurement() -> None:
    with runner_of("small") as runner:
        begin = time.monotonic()
        runner.inspect(SOUND)
        start = time.monotonic() - begin
        first, fresh = (runner.measure(SOUND, replace(QUICK, fresh=is_fresh)) for is_fresh in (False, True))
        assert 0 < runner.loading < start
    assert first.opening == 0.0
    assert 0 < fresh.opening < fresh.seconds


def test_what_the_users_code_prints_and_reads_disturbs_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with runner_of("talkative") as runner:
        assert runner.inspect(SOUND).parameters == 2
        assert measured(runner.measure(SOUND, QUICK)).steps > 0
    assert capfd.readouterr() == ("", "")


def test_threads_are_set_before_anything_is_imported_and_in_the_child_only() -> None:
    before = dict(os.environ)
    with runner_of("telling_threads") as runner:
        runner.inspect(SOUND)
        for threads in (1, 3):
            assert loss(runner.measure(Config(batch_size=8, intra_op_threads=threads), QUICK)) == 11 * threads
    assert dict(os.environ) == before


def test_what_the_users_code_does_at_exit_delays_nothing_but_temporary_folders_are_removed() -> None:
    with runner_of("telling_parent_and_waiting_at_exit") as runner:
        parents = [loss(runner.measure(SOUND, FRESH)) for _ in range(2)]
    assert parents[0] == parents[1]  # a session that does not end is killed with its parent
    assert list(Path(tempfile.gettempdir()).glob("of-workload-*")) == []


MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts what a process writes")
@pytest.mark.parametrize("ranks", [1, 2])
def test_live_objects_are_copied_once_for_all_sessions(ranks: int) -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("large", torch.zeros(8 * MIB))
    live = Workload(model, Squares(256), training_step=lambda model, batch: model(batch[0]).sum())
    config = replace(SOUND, ranks=ranks)
    written = []
    with ProcessRunner(describe(live), "cpu", oversubscribe_ranks=True) as runner:
        for _ in range(2):
            before = psutil.Process().io_counters().write_chars
            assert measured(runner.measure(config, FRESH)).steps > 0
            written.append(psutil.Process().io_counters().write_chars - before)
    assert written[0] >= 32 * MIB
    assert written[1] < MIB


def test_what_was_imported_before_a_session_costs_its_collections_nothing() -> None:
    with runner_of("telling_frozen") as runner:
        assert loss(runner.measure(SOUND, QUICK)) > 50_000


def test_on_a_cpu_only_threads_workers_and_freshness_ask_for_a_new_process() -> None:
    with runner_of("telling_process") as runner:
        runner.inspect(SOUND)
        first = loss(runner.measure(SOUND, QUICK))
        assert loss(runner.measure(Config(batch_size=4, intra_op_threads=1), QUICK)) == first
        one, two = (Config(batch_size=8, num_workers=count, intra_op_threads=1) for count in (1, 2))
        forking = loss(runner.measure(one, QUICK))
        assert loss(runner.measure(two, QUICK)) == forking
        fresh, after = (loss(runner.measure(SOUND, request)) for request in (FRESH, QUICK))
    assert len({first, forking, fresh, after, os.getpid()}) == 5


def test_no_process_that_reads_the_dataset_forks_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHO_READS", str(tmp_path / "read"))
    with_workers = Config(batch_size=8, num_workers=2, intra_op_threads=1)
    parts: list[tuple[Config, Part]] = [
        (SOUND, "training"),
        (SOUND, "compute"),
        (SOUND, "loader"),
        (replace(SOUND, batch_size=16), "compute"),
        (replace(SOUND, amp="bf16"), "numerics"),
        (with_workers, "training"),
        (SOUND, "training"),
        (SOUND, "anatomy"),
    ]
    with runner_of("telling_who_reads") as runner:
        runner.inspect(SOUND)
        for config, part in parts:
            request = Request(seconds=0.2, time_limit=60, part=part)
            assert runner.measure(config, request).found, (part, config)
    lines = [line.split() for line in set((tmp_path / "read").read_text().splitlines())]
    readers = {process for process, _, in_worker in lines if in_worker == "False"}
    parents = {parent for _, parent, in_worker in lines if in_worker == "True"}
    assert readers
    assert parents
    assert not readers & parents


@pytest.mark.parametrize("name", ["opening_a_file_late", "with_a_client_of_threads"])
def test_what_a_dataset_opens_when_it_is_first_read_is_not_inherited_by_workers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(tmp_path / "data"))
    configs = [SOUND, Config(batch_size=8, num_workers=2, intra_op_threads=1)]
    with runner_of(name) as runner:
        runner.inspect(SOUND)
        parts: list[Part] = ["training", "loader", "compute"]
        asked = [(SOUND, replace(QUICK, part=part)) for part in parts] + [(config, QUICK) for config in configs * 2]
        attempts = [runner.measure(config, request) for config, request in asked]
    assert [attempt.message for attempt in attempts if not attempt.found] == []


def test_a_loss_that_was_not_finite_does_not_spoil_the_next_configuration() -> None:
    with runner_of("nan_at_batch_size_7") as runner:
        runner.inspect(Config(batch_size=5))
        assert runner.measure(Config(batch_size=7), QUICK).outcome is Outcome.NUMERICS
        assert measured(runner.measure(Config(batch_size=5), QUICK)).steps > 0


def test_what_fails_after_batches_of_another_size_counts_as_it_ends_in_a_fresh_process() -> None:
    five, seven = (replace(SOUND, batch_size=size) for size in (5, 7))
    with runner_of("remembering") as runner:
        runner.inspect(SOUND)
        assert runner.measure(seven, QUICK).opening == 0  # no other batch was there: it fails at once
        assert measured(runner.measure(SOUND, QUICK)).steps > 0
        other, same = runner.measure(five, QUICK), runner.measure(five, QUICK)
        assert measured(other).steps > 0
        assert other.opening > 0 == same.opening
        attempt = runner.measure(seven, QUICK)
    assert (attempt.outcome, attempt.message) == (Outcome.USER_ERROR, "ValueError: 7 samples")
    assert attempt.opening > 0


def test_closing_leaves_no_processes(processes: Callable[[], list[psutil.Process]]) -> None:
    with runner_of("small") as runner:
        runner.inspect(SOUND)
        runner.measure(Config(batch_size=8, num_workers=2, persistent_workers=True, intra_op_threads=1), QUICK)
        assert processes()
    assert are_gone(processes)


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("name", "num_workers", "outcome", "message"),
    [
        ("worker_killed", 2, Outcome.WORKER_DIED, "RuntimeError: DataLoader worker (pid"),
        ("loss_is_nan", 0, Outcome.NUMERICS, "the loss became nan"),
        ("worker_out_of_memory", 1, Outcome.HOST_OOM, "MemoryError"),
        ("allocates_too_much", 0, Outcome.HOST_OOM, "RuntimeError: "),
    ],
)
def test_a_failure_is_an_outcome_and_the_next_configuration_is_measured(
    name: str, num_workers: int, outcome: Outcome, message: str
) -> None:
    with runner_of(name) as runner:
        attempt = runner.measure(failing(num_workers), QUICK)
        assert (attempt.outcome, attempt.measurement) == (outcome, None), (attempt.message, attempt.details)
        assert attempt.message.startswith(message)
        assert attempt.seconds > 0
        assert measured(runner.measure(SOUND, QUICK)).steps > 0


@pytest.mark.parametrize(
    ("name", "outcome", "message"),
    [
        ("build_finds_no_context", Outcome.DEVICE_OOM, "CUDA error: out of memory; end what holds .* another --device"),
        ("build_finds_the_device_taken", Outcome.SUSPECT, "busy or unavailable: another process has it"),
        ("build_finds_no_memory", Outcome.HOST_OOM, "MemoryError; .*or load less"),
        ("build_finds_no_shared_memory", Outcome.SHM, "unable to allocate shared memory.*; allow more"),
    ],
)
def test_what_the_machine_refuses_while_loading_is_not_the_users_fault(
    name: str, outcome: Outcome, message: str
) -> None:
    with runner_of(name) as runner:
        attempt = runner.measure(SOUND, QUICK)
        assert (attempt.outcome, attempt.measurement) == (outcome, None)
        with pytest.raises(NothingFeasibleError, match=f"loading the workload: .*{message}"):
            runner.inspect(SOUND)


def test_a_measuring_process_dies_with_its_parent(processes: Callable[[], list[psutil.Process]]) -> None:
    script = (
        "import os, signal; from tests.runner.test_local import runner_of, SOUND\n"
        "runner = runner_of('small'); runner.inspect(SOUND); os.kill(os.getpid(), signal.SIGKILL)"
    )
    child = psutil.Popen([sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONPATH": ROOT})
    assert child.wait(180) == -9
    assert are_gone(processes)


PLAIN, LAST, BOTH, INAPPLICABLE = (
    Config(batch_size=8, options=options)
    for options in ((), ("channels_last",), ("channels_last", "fused_optimizer"), ("tf32",))
)


def test_options_never_reach_the_next_configuration_and_one_that_does_not_apply_is_an_outcome_with_the_reason() -> None:
    with runner_of("telling_options") as runner:
        runner.inspect(PLAIN)
        found = [loss(runner.measure(config, QUICK)) for config in (PLAIN, BOTH, LAST, PLAIN, BOTH, PLAIN)]
        attempt = runner.measure(INAPPLICABLE, QUICK)
        assert loss(runner.measure(PLAIN, QUICK)) == 0
    assert found == [0, 3, 1, 0, 3, 0]
    assert attempt.outcome is Outcome.USER_ERROR
    assert attempt.message == "tf32 does not apply here: the model is on cpu, not on a CUDA device; leave it out"


def test_losses_with_options_are_compared_with_those_of_a_plain_model() -> None:
    with runner_of("telling_options") as runner:
        runner.inspect(LAST)
        assert loss(runner.measure(LAST, QUICK)) == 1
        for _ in range(2):
            check = runner.measure(LAST, Request(seconds=0.2, part="numerics")).numerics
            assert check is not None
            assert {*check.reference_losses, *check.other_losses} == {0}
            assert set(check.losses) == {1}
        assert loss(runner.measure(LAST, QUICK)) == 1


# --- a system that lets no process start ---


@pytest.fixture
def no_process(processes: Callable[[], list[psutil.Process]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    def start(*arguments: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_process_that_cannot_be_started_is_an_outcome_and_an_error_where_it_is_the_first(no_process: Path) -> None:
    with runner_of("small") as runner:
        attempt = runner.measure(Config(), QUICK)
    assert attempt.outcome is Outcome.CRASHED
    assert attempt.message.startswith("no process can be started: ")
    assert "Resource temporarily unavailable" in attempt.message
    with runner_of("small") as runner, pytest.raises(UserCodeError, match="no process can be started"):
        runner.inspect(Config())
    assert list(no_process.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's killer is Linux's")
def test_the_kernels_killer_takes_what_is_measured_before_the_tuner() -> None:
    score = "/proc/self/oom_score_adj"
    script = f"from autotune.measure.subreaper import prepare_session as go; go(); print(open('{score}').read())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == OOM_SCORE > int(Path(score).read_text())


@pytest.mark.usefixtures("processes")
def test_the_scratch_folder_is_gone_before_the_process_that_would_remove_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left: list[list[Path]] = []
    kill = subprocess.Popen.kill

    def kill_and_look(process: subprocess.Popen[bytes]) -> None:
        left.append(list(tmp_path.glob("autotune-*")))
        kill(process)

    with runner_of("small") as runner:
        runner.inspect(Config())
        assert list(tmp_path.glob("autotune-*"))
        monkeypatch.setattr("subprocess.Popen.kill", kill_and_look)
    assert left == [[]]


def test_a_process_whose_tuner_ended_while_it_started_leaves_nothing(tmp_path: Path) -> None:
    """It has a request by then, and its answer can go nowhere."""
    (scratch := tmp_path / "autotune-scratch").mkdir()
    ours, theirs = Channel.pair()
    ours.send(1, {"op": "open"})
    ours.close()
    done = subprocess.run(
        [sys.executable, "-m", "autotune.measure.worker", str(theirs.fileno())], pass_fds=(theirs.fileno(),),
        timeout=180, stderr=subprocess.PIPE, env={**os.environ, MARK: str(scratch)}, check=False,
    )  # fmt: skip
    theirs.close()
    assert list(tmp_path.iterdir()) == [], done.stderr
