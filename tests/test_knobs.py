from __future__ import annotations

from typing import Any

import pytest

from autotune.config import Config
from autotune.errors import UsageError
from autotune.knobs import as_baseline
from autotune.settings import KNOBS, parse_knobs
from tests import examples


@pytest.mark.parametrize(
    ("knob", "given", "values"),
    [
        *((knob, None, ()) for knob in KNOBS),
        ("batch_size", "64", (64,)),
        ("batch_size", "32..512", (32, 64, 128, 256, 512)),
        ("batch_size", "48..200", (48, 64, 128, 200)),
        ("batch_size", "1 .. 4", (1, 2, 4)),
        ("batch_size", "16, 24,32", (16, 24, 32)),
        ("batch_size", range(8, 11), (8, 9, 10)),
        ("num_workers", "0..8", tuple(range(9))),
        ("num_workers", "2,2", (2,)),
        ("prefetch_factor", (2, 8), (2, 8)),
        ("threads", {2}, (2,)),
        ("pin_memory", "true", (True,)),
        ("pin_memory", "on,OFF", (True, False)),
        ("persistent_workers", [True, False], (True, False)),
        ("amp", "off,bf16,fp16", ("off", "bf16", "fp16")),
    ],
)
def test_a_knob_takes_values_lists_and_ranges(knob: str, given: Any, values: tuple[Any, ...]) -> None:
    assert [each.values for each in parse_knobs({knob: given}).values()] == [values] * bool(values)


BAD_TEXTS = ("", ",", "..", "2..", "..2", "x", "1,x", "1..2..3", "8..4", "-1", "1.5", "2;3", "None")
BAD_VALUES = {
    "batch_size": (0, 2.0, True, []),
    "num_workers": (-1,),
    "prefetch_factor": (0,),
    "threads": ([1, 0], [None, 1]),
    "pin_memory": (2,),
    "amp": ("fp8", True),
}


@pytest.mark.parametrize(
    ("knob", "value"), [(knob, value) for knob in KNOBS for value in (*BAD_TEXTS, *BAD_VALUES.get(knob, ()))]
)
def test_a_bad_text_or_value_is_refused_with_the_flag(knob: str, value: Any) -> None:
    with pytest.raises(
        UsageError,
        match="^--" + knob.replace("_", "-") + "[ :].*(allowed: |the range is empty|a range needs|no value given)",
    ):
        parse_knobs({knob: value})


@pytest.mark.parametrize(
    ("given", "whole", "expected"),
    [
        (None, 256, (32, 8)),
        (None, 100, (25, 4)),
        (None, 7, (7, 1)),
        ({"num_workers": 2}, 48, (24, 2)),
        ({"accumulation_steps": 4}, 256, (64, 4)),
        ({"batch_size": 64}, 256, (64, 4)),
        (Config(batch_size=64, accumulation_steps=4), 256, (64, 4)),
        ({"batch_size": 64}, None, (64, 1)),
    ],
)
def test_the_baseline_accumulates_what_a_step_takes(given: Any, whole: int | None, expected: tuple[int, int]) -> None:
    baseline = as_baseline(given, whole)
    assert (baseline.batch_size, baseline.accumulation_steps) == expected


def test_fields_of_a_baseline_may_be_given_by_name() -> None:
    assert as_baseline({"batch_size": 8, "threads": 2}) == Config(batch_size=8, intra_op_threads=2)
    assert as_baseline(None) == Config()
    assert as_baseline(examples.ANSWER) is examples.ANSWER
    with pytest.raises(UsageError, match="--baseline batchsize: unknown"):
        as_baseline({"batchsize": 8})


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ({"batch_size": 64}, 100),
        (Config(batch_size=64, accumulation_steps=2), 256),
        (None, 0),
        (None, True),
        (None, 1.5),
    ],
)
def test_a_baseline_that_does_not_divide_the_samples_of_a_step_is_refused(given: Any, whole: Any) -> None:
    with pytest.raises(UsageError, match="--global-batch-size"):
        as_baseline(given, whole)


def test_a_baseline_is_read_with_types() -> None:
    loader = "batch_size=64, num_workers=2,prefetch_factor=4,pin_memory=yes,persistent_workers=off"
    of_loader = {"batch_size": 64, "num_workers": 2, "prefetch_factor": 4, "pin_memory": True}
    expected = Config(**of_loader, amp="bf16", accumulation_steps=2, intra_op_threads=1)
    assert as_baseline(f"{loader},amp=BF16,threads=1,accumulation_steps=2") == expected


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("batch=64", "unknown key 'batch'; allowed: batch_size, num_workers, .*, threads"),
        ("", "unknown key ''; allowed"),
        ("options=tf32", "unknown key 'options'; allowed"),
        ("batch_size=big", "batch_size is 'big'; allowed: whole numbers from 1"),
        ("pin_memory=2", "pin_memory is '2'; allowed: true"),
        ("amp=fp8", "amp is 'fp8'; allowed: off, bf16, fp16"),
        ("amp=off,amp=bf16", "amp is given twice"),
        ("threads=1,intra_op_threads=2", "intra_op_threads is given twice"),
    ],
)
def test_a_wrong_baseline_is_named_with_what_is_allowed(text: str, wanted: str) -> None:
    with pytest.raises(UsageError, match=f"--baseline: {wanted}"):
        as_baseline(text)
