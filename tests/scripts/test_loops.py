"""Scripts whose loops mislead a measurement: each is measured at the rate that its sleeps give, or refused in words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.api import tune
from autotune.errors import UsageError, UserCodeError
from autotune.workload import Script
from tests.processes import known_time
from tests.scripts.looping import Found, Loops, per_second, place, started

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(sys.platform != "linux", reason="scripts are measured in forks"),
]

TOLERANCE = 0.1
LARGE_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    rate: float | None = None
    """Samples per second; ``None`` where the script is refused."""
    words: tuple[str, ...] = ()
    """Words of the refusal. Beside a rate: words that may be told in its place."""
    arguments: tuple[str, ...] = ()
    loop: str | None = None
    """The place of the loop that is asked for."""
    apart: float | None = None
    """Share of its time that it spends beside training; ``None`` where that depends on what is seen of it."""
    trial: tuple[str, ...] = ()
    """Words of which one tells how a large batch fails; empty where none is tried."""


USUAL, FEW = per_second(8, 8 * 2, 20), per_second(2, 2 * 20, 40)
SECOND = "for x, y in pairs"
"""The loop of a second stage."""
TRUTHS = {
    "two_stages": Truth(rate=per_second(8, 8 * 2, 10)),
    "two_stages of the loop": Truth(rate=per_second(8, 8 * 5, 30), loop=place("two_stages", SECOND)),
    "two_stages of the loader": Truth(rate=per_second(8, 8 * 5, 30), loop=place("two_stages", "pairs = DataLoader")),
    "two_stages of no loop": Truth(words=("without a loop there", place("two_stages", SECOND)), loop="two_stages.py:1"),
    "one_loader_for_two_stages": Truth(rate=per_second(8, 8 * 2, 4)),
    "one_loader_for_two_stages of the loop": Truth(
        rate=per_second(8, 8 * 2, 40), loop=place("one_loader_for_two_stages", "range(50)").replace(":13", ":14")
    ),
    "copies_itself": Truth(rate=USUAL),
    "catches_everything": Truth(words=("make one for an epoch",)),
    "catches_everything made once": Truth(rate=USUAL, arguments=("once",)),
    "on_one_line": Truth(rate=per_second(8, 8 * 5, 20)),
    "encodings": Truth(rate=USUAL),
    "sparse_batches": Truth(rate=USUAL),
    "lazy_modules": Truth(rate=USUAL),
    "keeps_state": Truth(rate=USUAL),
    "asks_terminal": Truth(rate=USUAL),
    "skips_out_of_memory": Truth(rate=USUAL, trial=("made no step",)),
    "skips_some": Truth(rate=per_second(3 * 8, 3 * 8 * 2, 2 * 20)),
    "accumulates": Truth(rate=per_second(4 * 8, 4 * 8 * 2, 4 * 10, 10)),
    "helper_for_both": Truth(rate=per_second(8, 8 * 4, 20)),
    "dictionary_of_loaders": Truth(rate=per_second(8, 8 * 4, 20)),
    "evaluates_at_step_zero": Truth(rate=USUAL),
    "validates": Truth(rate=FEW, apart=0.5),
    "validates_with_gradients": Truth(rate=FEW),
    "stream": Truth(rate=FEW),
    "iterator_in_constructor": Truth(rate=FEW),
    "own_iterator": Truth(rate=FEW),
    "changes_in_place": Truth(rate=FEW),
    "statistics_first": Truth(rate=FEW),
    "losses_within": Truth(rate=FEW),
    "kept_iterator": Truth(rate=FEW),
    "steps_in_hooks": Truth(rate=per_second(2, 2 * 20, 200)),
    "overfits_first": Truth(rate=FEW),
    "episodes": Truth(rate=per_second(10, 10 * 2, 20)),
    "stream_of_batches": Truth(rate=per_second(16, 30, 20)),
    "dataset_of_batches": Truth(rate=per_second(16, 30, 20)),
    "resumed": Truth(rate=USUAL),
    "cycles": Truth(rate=per_second(8, 20), words=("repeat",)),
    "other_arguments": Truth(rate=per_second(8, 8 * 2, 40), arguments=("0.04",)),
    "own_file": Truth(rate=USUAL),
    "exits_on_error": Truth(rate=USUAL, trial=("device_oom", "CUDA out of memory")),
    "weak_proxy": Truth(rate=USUAL),
    "batch_getitems": Truth(rate=per_second(32, 32, 20)),
    "length_raises": Truth(rate=USUAL),
    "own_threads": Truth(rate=USUAL),
    "by_turns": Truth(rate=per_second(2, 2 * 20, 30, 2 * 10, 30)),
    "by_turns_in_a_list": Truth(rate=per_second(2, 2 * 20, 30, 2 * 10, 30)),
    "by_chance": Truth(words=(place("by_chance", "slow = DataLoader"), place("by_chance", "fast = DataLoader"))),
    "unlabelled_now_and_then": Truth(words=(place("unlabelled_now_and_then", "unlabelled = iter"),)),
    "together": Truth(rate=per_second(2, 2 * 20, 2 * 10, 30)),
    "gan": Truth(rate=per_second(2, 2 * 20, 10, 2 * 15)),
    "short_one_again": Truth(rate=per_second(2, 2 * 20, 2 * 10, 30)),
    "other_settings": Truth(rate=per_second(2, 2 * 20, 30)),
    "other_iterator_each_step": Truth(words=(place("other_iterator_each_step", "unlabelled ="), "new iterator")),
    "new_iterator_each_step": Truth(words=("makes a new iterator each step",)),
    "in_a_thread": Truth(words=("iterates its training loader in another thread",)),
    "no_loader": Truth(words=("has no DataLoader",)),
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loops]:
    """A runner of scripts whose sleeps take the time that they are asked to, and no other."""
    folder = tmp_path_factory.mktemp("project") / "loops"
    with started(folder, **known_time(folder)) as loops:
        yield loops


def is_true(found: Found, truth: Truth) -> bool:
    """Whether a script was measured at its rate, or refused in one line that holds the words."""
    is_told = bool(truth.words) and "\n" not in found.text and all(words in found.text for words in truth.words)
    if truth.rate is None:
        return found.rate is None and is_told
    return is_told or (found.rate is not None and abs(found.rate / truth.rate - 1) <= TOLERANCE)


@pytest.mark.parametrize("name", TRUTHS)
def test_a_loop_is_measured_at_its_rate_or_refused_in_words(name: str, runner: Loops) -> None:
    truth, trial = TRUTHS[name], None
    try:
        with runner.started(name.partition(" ")[0], *truth.arguments, loop=truth.loop):
            found = runner.measured()
            if truth.trial:
                trial = runner.measured(LARGE_BATCH)
    except UserCodeError as error:
        found = Found(None, str(error))
    assert is_true(found, truth), (found, truth, trial)
    assert truth.apart is None or found.apart == pytest.approx(truth.apart, abs=0.15)
    if trial is not None:
        assert trial.rate is None, trial
        assert any(words in trial.text for words in truth.trial), trial


@pytest.mark.parametrize(
    "name",
    [
        "statistics_first",
        "losses_within",
        "kept_iterator",
        "steps_in_hooks",
        "overfits_first",
        "episodes",
        "stream_of_batches",
        "dataset_of_batches",
        "resumed",
    ],
)
def test_a_later_start_trains_on_the_batches_that_it_is_handed(name: str, runner: Loops) -> None:
    with runner.started(name):
        found = runner.measured(fresh=True)
    assert found.rate is not None, found.text


def test_a_line_that_makes_loaders_of_other_datasets_is_known(runner: Loops) -> None:
    with runner.started("helper_for_both") as facts:
        assert facts.loader_site is not None
        assert facts.shared_lines == (facts.loader_site.partition(" ")[0],)
    with runner.started("validates") as facts:
        assert facts.shared_lines == ()


def test_other_arguments_and_another_file_are_other_workloads(runner: Loops) -> None:
    def fingerprint(argument: str) -> str:
        with runner.started("other_arguments", argument) as facts:
            return facts.fingerprint

    path = Path("other_arguments.py")
    text = path.read_text("utf-8")
    first, again, other = fingerprint("0.02"), fingerprint("0.02"), fingerprint("0.04")
    path.write_text(text.replace("range(50)", "range(51)"), "utf-8")
    try:
        changed = fingerprint("0.02")
    finally:
        path.write_text(text, "utf-8")
    assert first == again
    assert len({first, other, changed}) == 3


def test_the_place_of_a_loader_does_not_depend_on_the_working_folder(runner: Loops) -> None:
    sites = list[str]()
    for _ in range(2):
        with runner.started("own_file"):
            assert runner.script is not None
            sites += runner.script.sites
    assert sites[0] == sites[1]
    assert sites[0].startswith(place("own_file", "DataLoader(Samples"))


def test_the_threads_that_a_script_sets_are_those_at_present(runner: Loops) -> None:
    with runner.started("own_threads") as facts:
        assert runner.script is not None
        present = runner.script.present
    assert facts.intra_op_threads == 1
    assert present.intra_op_threads in (None, 1)  # None leaves them to the script


def test_other_batch_sizes_of_several_loaders_are_refused(runner: Loops) -> None:
    with pytest.raises(UsageError, match="batch_size=64: it stays 2 in this training"):
        tune(Script(path="together.py"), batch_size=64)


def test_a_loader_of_an_own_class_is_known_by_the_line_that_makes_it(runner: Loops) -> None:
    with runner.started("iterator_in_constructor") as facts:
        assert facts.loader_call == f"{place('iterator_in_constructor', 'training = ')}: DataLoader"


def test_each_loader_keeps_its_settings_where_those_that_feed_the_steps_differ(
    runner: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()
    monkeypatch.setattr(runner, "_on_wait", told.append)
    with runner.started("other_settings") as facts:
        assert facts.loader_call == f"{place('other_settings', 'labelled =')}: DataLoader"
        assert facts.other_loader_sites == ()
    kept = place("other_settings", "unlabelled =")
    assert any(f"The DataLoader of {kept} keeps its settings" in line for line in told)


def test_a_script_that_spawns_its_workers_is_started_again_in_its_process(runner: Loops) -> None:
    with runner.started("spawned_workers"):
        for _ in range(4):
            assert runner.measured().rate == pytest.approx(per_second(8, 60), rel=TOLERANCE)


def test_of_two_loaders_on_one_line_the_column_tells_which_one_trains(runner: Loops) -> None:
    line = next(line for line in Path("on_one_line.py").read_text("utf-8").splitlines() if "validation, loader" in line)
    with runner.started("on_one_line") as facts:
        assert facts.loader_call == f"{place('on_one_line', line)}:{line.rindex('DataLoader') + 1}: DataLoader"
        assert facts.shared_lines == ()


def test_a_model_that_keeps_state_of_the_batchs_size_is_measured_with_others_in_new_processes(runner: Loops) -> None:
    with runner.started("keeps_state"):
        for size in (8, 16, 8):
            rate = runner.measured(size).rate
            assert rate == pytest.approx(per_second(size, size * 2, 20), rel=TOLERANCE)


@pytest.mark.parametrize("name", ["episodes", "stream_of_batches"])
def test_another_size_of_batches_that_no_batch_size_makes_is_refused(name: str, runner: Loops) -> None:
    with pytest.raises(UsageError, match=r"batch_size=64: it stays 1[06] in this training"):
        tune(Script(path=f"{name}.py"), batch_size=64)


def test_a_resumed_script_is_that_of_the_loader_whose_first_batches_it_skips(runner: Loops) -> None:
    with runner.started("resumed") as facts:
        assert runner.script is not None
        assert runner.script.present.batch_size == 8
        assert not runner.script.is_batch_fixed
        rate = runner.measured(16).rate
        assert rate is not None
        assert USUAL < rate < 1.02 * per_second(16, 16 * 2, 20)
    assert facts.loader_call == f"{place('resumed', 'loader = DataLoader')}: DataLoader"
