"""The notebooks run from top to bottom, and hold the outputs of a run."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MORE_WORKERS = "This DataLoader will create"
"""What torch says where the answer has more workers than there are CPUs: samples that are waited for."""

SHOWN = {"stdout", "execute_result", "display_data"}
"""Kinds of outputs that are kept: neither warnings nor errors."""
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:etc|home|media|mnt|opt|proc|root|srv|tmp|usr|var|work|Users)/|-packages/")


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["quickstart.ipynb", "reading-the-report.ipynb"]


def text_of(output: Any) -> str:
    return json.dumps(output, ensure_ascii=False)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_holds_its_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 25
    assert path.stat().st_size <= 600_000
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        assert bool(cell.outputs) == isinstance(ast.parse(cell.source).body[-1], ast.Expr), cell.source
        assert {output.get("name", output.output_type) for output in cell.outputs} <= SHOWN
        assert not [found for output in cell.outputs if (found := MACHINE_PATH.search(text_of(output)))]
    charts = [cell for cell in code if "result.plot(" in cell.source]
    assert all("image/svg+xml" in output.data for cell in charts for output in cell.outputs)


def test_the_quickstart_shows_a_proven_gain() -> None:
    last = read(ROOT / "notebooks" / "quickstart.ipynb").cells[-1]
    assert "verdict: faster" in text_of(last.outputs)


@pytest.mark.machine
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of the folders that it reads, so that what it writes does not stay."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    shutil.copytree(ROOT / "studies" / "demo", tmp_path / "studies" / "demo")
    (tmp_path / "notebooks").mkdir()
    notebook = read(path)
    brief = "import autotune.limits\nautotune.limits.LEAST_BUDGET = 1.0"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(brief))
    for cell in notebook.cells:
        cell.source = cell.source.replace('budget="90s"', 'budget="15s"')
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path / "notebooks"}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    said = [output.text for output in shown if output.get("name") == "stderr"]
    assert not [text for text in said if MORE_WORKERS not in text]
    charts = [output for output in shown if "vegaEmbed" in output.get("data", {}).get("text/html", "")]
    drawn = sum("result.plot(" in cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert len(charts) == drawn >= 2
    assert any("samples/s" in str(output.get("data", {}).get("text/html")) for output in shown)
