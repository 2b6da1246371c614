"""A diagnosis as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from autotune.report.terminal import measured_table
from autotune.report.words import cause_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from autotune.diagnosing import Diagnosis
    from autotune.finding import Finding
    from autotune.probes import Trace

__all__ = ["diagnosis_report"]

INDENT = (0, 0, 0, 3)
"""Padding of what belongs to a numbered line: top, right, bottom, left."""


def diagnosis_report(diagnosis: Diagnosis) -> Group:
    """Return what limits training, with its evidence and what to do, then what is worth knowing besides."""
    limits = [finding for finding in diagnosis.findings if finding.is_limit]
    besides = [finding for finding in diagnosis.findings if not finding.is_limit]
    return Group(
        measured_table(diagnosis.config, diagnosis.measurement),
        Text(),
        *_section("What limits training", limits),
        *_section("Worth knowing", besides),
        *(_trace_lines(diagnosis.trace) if diagnosis.trace else ()),
        *(Text(f"Note: {note}", style="yellow") for note in diagnosis.notes),
    )


def _section(heading: str, findings: Sequence[Finding]) -> Iterator[RenderableType]:
    if not findings:
        return
    yield Text(heading, style="bold")
    for number, finding in enumerate(findings, start=1):
        cause, _, what = cause_text(finding).partition(": ")
        yield Text(f"{number}. ").append(cause, style="bold cyan").append(f": {what}")
        for figure in finding.evidence:
            yield Padding(Text(f"· {figure}", style="dim"), INDENT, expand=False)
        yield Padding(Text(f"To do: {finding.advice}"), INDENT, expand=False)
    yield Text()


def _trace_lines(trace: Trace) -> Iterator[RenderableType]:
    yield Text("Longest operations, in a step", style="bold")
    for operation in trace.operations:
        yield Text(f"  {1000 * operation.seconds:>8.3g} ms {operation.calls:>6.4g} times  {operation.name}")
    yield Text(f"Written: {trace.path} (open it in ui.perfetto.dev or chrome://tracing)", style="bold")
    yield Text()
