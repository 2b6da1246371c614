from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import Config
from autotune.errors import UsageError
from autotune.records import Trial
from autotune.search.space import Space, build_space
from autotune.settings import parse_knobs
from tests import examples
from tests.simulated import gpu_facts, space_of

CPU = space_of(examples.facts())
NARROW = space_of(
    gpu_facts(), batch_size="16,48", num_workers="1,3", prefetch_factor=4, amp="bf16", threads=1, pin_memory=True
)
BOUNDED = space_of(gpu_facts(), batch_size="64..256", num_workers="0..2", amp="off,bf16")
SPACES = {"cpu": CPU, "gpu": space_of(gpu_facts()), "narrow": NARROW, "bounded": BOUNDED}


Settings = dict[str, Any]
"""A value of each knob."""


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Space, Settings]:
    space = draw(st.sampled_from(list(SPACES.values())))
    return space, {knob: draw(st.sampled_from(space.values[knob])) for knob in space.allowed}


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"amp": "fp16"}, "--amp fp16"),
        ({"pin_memory": "true"}, "--pin-memory true"),
        ({"batch_size": "32..4097"}, "--batch-size 4097"),
    ],
)
def test_what_this_machine_or_dataset_cannot_do_is_refused(given: dict[str, str], flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        space_of(examples.facts(epoch_samples=4096), **given)


def test_nothing_is_tried_by_itself_that_cannot_be_done_and_all_is_taken_where_it_can() -> None:
    allowed = space_of(examples.facts(epoch_samples=100), cpus=2).allowed
    assert (allowed["amp"], allowed["pin_memory"]) == (("off", "bf16"), (False,))
    assert max(allowed["batch_size"]) <= 50
    assert max(allowed["num_workers"]) == 4
    able = space_of(gpu_facts(epoch_samples=None), amp="fp16", pin_memory="true", batch_size="32..4097").allowed
    assert (able["amp"], able["pin_memory"], able["batch_size"][-1]) == (("fp16",), (True,), 4097)


@given(chosen())
def test_settings_and_configuration_stand_for_each_other(drawn: tuple[Space, Settings]) -> None:
    space, settings = drawn
    config = space.at(settings)
    canonical = space.settings(config)
    assert space.at(canonical) == config
    assert space.settings(space.at(canonical)) == canonical
    assert canonical.items() <= settings.items()
    assert admits(space, settings) == admits(space, canonical)
    if not config.num_workers:
        assert (config.prefetch_factor, config.persistent_workers) == (None, False)


def admits(space: Space, settings: Settings) -> bool:
    idle = () if settings["num_workers"] else ("prefetch_factor", "persistent_workers")
    return all(value in space.allowed[knob] for knob, value in settings.items() if knob not in idle)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_admitted_configuration_is_there_exactly_once_and_from_the_settings_it_leads_to(space: Space) -> None:
    chosen = itertools.product(*(space.values[knob] for knob in space.allowed))
    every = (dict(zip(space.allowed, each, strict=True)) for each in chosen)
    assert set(space.configs) == {space.at(settings) for settings in every if admits(space, settings)}
    assert len(space.configs) == len(set(space.configs))
    settings = [space.settings(config) for config in space.configs]
    assert [space.at(each) for each in settings] == list(space.configs)
    assert all(admits(space, each) for each in settings)


@pytest.mark.parametrize(
    ("batch_size", "samples"), [(2048, None), (2048, 100_000), (600, 1000), (1000, 1000), (48, None)]
)
def test_the_baselines_batch_size_is_in_the_space_however_large(batch_size: int, samples: int | None) -> None:
    space = build_space(gpu_facts(epoch_samples=samples), 8, Config(batch_size=batch_size), {})
    assert batch_size in space.allowed["batch_size"]
    assert len(space.allowed["batch_size"]) > 1
    assert Config(batch_size=batch_size) in space.configs


@given(st.permutations([16, 64, 32, 128]), st.permutations([0, 4, 2]))
def test_lists_may_come_in_any_order(sizes: list[int], workers: list[int]) -> None:
    given = {"batch_size": ",".join(map(str, sizes)), "num_workers": workers, "amp": "bf16,off", "threads": [2, 1]}
    space, ordered = space_of(gpu_facts(), **given), {"batch_size": "16,32,64,128", "num_workers": "0,2,4"}
    same = space_of(gpu_facts(), **ordered, amp="off,bf16", threads="1,2")
    assert (space.allowed, space.values, space.fingerprint) == (same.allowed, same.values, same.fingerprint)


@pytest.mark.parametrize("threads", [None, 2])
def test_torchs_own_number_of_threads_stands_in_the_space_once(threads: int | None) -> None:
    space = space_of(examples.facts(intra_op_threads=2), cpus=4, baseline=Config(intra_op_threads=threads))
    assert space.values["threads"] == (1, threads, 4)
    assert space.base in space.configs
    assert CPU.base in CPU.configs


def test_the_fingerprint_tells_spaces_apart() -> None:
    prints = [space.fingerprint for space in SPACES.values()]
    assert len(set(prints)) == len(prints)
    assert space_of(examples.facts()).fingerprint == CPU.fingerprint
    assert space_of(examples.facts(), options=("compile",)).fingerprint != CPU.fingerprint
    for baseline in (replace(examples.BASELINE, accumulation_steps=2), replace(examples.BASELINE, ranks=2)):
        other = space_of(examples.facts(), baseline=baseline)
        assert other.fingerprint != CPU.fingerprint


def kept(gain: float | None, **changes: Any) -> Trial:
    config = Config(**{"num_workers": 2, "persistent_workers": True, **changes})
    return examples.trial(config=config, measurement=examples.measurement(persistence_gain=gain))


@pytest.mark.parametrize(("gain", "keeps"), [(None, False), (0.0, False), (0.009, False), (0.011, True), (3.0, True)])
def test_workers_live_on_between_epochs_where_their_start_costs_a_percent(gain: float | None, keeps: bool) -> None:
    assert space_of(gpu_facts()).with_persistence(kept(gain)).persistent_workers is keeps
    of_user = space_of(gpu_facts(), baseline=Config(num_workers=2, persistent_workers=True))
    assert of_user.with_persistence(kept(gain)).persistent_workers


@pytest.mark.parametrize("given", [True, False, [False, True]])
def test_what_the_user_says_of_persistent_workers_decides(given: Any) -> None:
    space = space_of(gpu_facts(), persistent_workers=given)
    assert set(space.allowed["persistent_workers"]) == set(given if isinstance(given, list) else [given])
    assert space.with_persistence(kept(0.0)).persistent_workers
    assert not space.with_persistence(kept(1.0, persistent_workers=False)).persistent_workers


def test_a_dataset_whose_epoch_is_set_from_outside_gets_new_workers_each_epoch() -> None:
    space = space_of(gpu_facts(sets_epoch=True))
    assert space.allowed["persistent_workers"] == (False,)
    assert not space.with_persistence(kept(1.0, persistent_workers=False)).persistent_workers


@pytest.mark.parametrize(
    ("whole", "batch_size", "ranks"), [(256, 32, 1), (96, 24, 1), (7, 7, 1), (96, 24, 2), (64, 16, 4)]
)
def test_every_configuration_keeps_the_samples_of_a_step_of_all_ranks(whole: int, batch_size: int, ranks: int) -> None:
    baseline = Config(batch_size=batch_size, accumulation_steps=whole // (batch_size * ranks), ranks=ranks)
    space = build_space(gpu_facts(epoch_samples=None), 4, baseline, {}, whole)
    assert {config.ranks * config.batch_size * config.accumulation_steps for config in space.configs} == {whole}
    assert baseline.batch_size in (sizes := space.allowed["batch_size"])
    assert all(whole % (ranks * size) == 0 for size in sizes)
    assert max(sizes) == whole // ranks
    assert [space.at(space.settings(config)) for config in space.configs] == list(space.configs)


def test_of_the_batch_sizes_that_were_asked_for_those_count_that_divide_the_whole() -> None:
    baseline = Config(batch_size=32, accumulation_steps=8)
    space = build_space(gpu_facts(), 4, baseline, parse_knobs({"batch_size": "16..100"}), 256)
    assert space.allowed["batch_size"] == (16, 32, 64)
    with pytest.raises(UsageError, match="divides"):
        build_space(gpu_facts(), 4, baseline, parse_knobs({"batch_size": "100,200"}), 256)
    odd = build_space(
        gpu_facts(), 4, Config(batch_size=15, accumulation_steps=3), parse_knobs({"batch_size": "10..30"}), 45
    )
    assert odd.allowed["batch_size"] == (15,)
