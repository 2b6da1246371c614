from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from autotune.probes import Trace, TracedOperation
from autotune.report.terminal import diagnosis_report
from autotune.report.text import finding_text
from tests import examples

TRACE = Trace(path="trace.json", operations=(TracedOperation(name="aten::mm", seconds=0.0123, calls=4.0),), steps=5)


def shown(width: int = 80, **changes: object) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(diagnosis_report(examples.diagnosis(**changes)))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_limit_comes_first_with_its_share_its_evidence_and_what_to_do() -> None:
    text = shown(width=120)
    limit, besides = text.split("Worth knowing")
    assert "1. decoding: training waits for data, and building a batch is computing (62 % of the time)\n" in limit
    assert "   · 70 % in data.py:7 decode\n" in limit
    assert "   To do: more workers; do less for each sample\n" in limit
    assert "1. dataset copies: the dataset consists of many Python objects\n" in besides


def test_a_limit_alone_has_no_second_heading() -> None:
    assert "Worth knowing" not in shown(findings=(examples.LATE_LOADER,))


def test_what_was_measured_stands_above() -> None:
    rows = shown(width=120).splitlines()
    assert any("samples/s (95 %)" in row and "1,234" in row and "1,200 to 1,270" in row for row in rows)
    assert any("on a batch that is there" in row and "2,960" in row for row in rows)
    assert any("waiting for data" in row and "59 %" in row for row in rows)


def test_a_trace_is_named_with_its_longest_operations() -> None:
    text = shown(trace=TRACE)
    assert "12.3 ms      4 times  aten::mm" in text
    assert "Written: trace.json" in text


def test_notes_are_told() -> None:
    assert "Note: no look at the loader" in shown(notes=("no look at the loader: it died",))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_it_keeps_to_the_width(width: int) -> None:
    text = shown(width=width, trace=TRACE, notes=("something to know " * 10,))
    assert max(map(cell_len, text.splitlines())) <= width


def test_brackets_in_names_are_no_markup() -> None:
    odd = replace(examples.LATE_LOADER, what="[bold]x[/bold]", evidence=("[red]y",), advice="[z]")
    text = shown(findings=(odd,))
    assert all(part in text for part in ("[bold]x[/bold]", "[red]y", "[z]"))


def test_a_finding_in_a_summary_is_two_sentences() -> None:
    assert finding_text(replace(examples.LONG_LIST, what="many objects")) == (
        "Limited by dataset copies: many objects. To do: keep large data in a few arrays."
    )
