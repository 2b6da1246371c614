"""The notebooks run from top to bottom, and carry no outputs of their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.machine

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MORE_WORKERS = "This DataLoader will create"
"""What torch says where the answer has more workers than there are CPUs: samples that are waited for."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["quickstart.ipynb", "reading-the-report.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_holds_no_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert len(notebook.cells) <= 25
    assert notebook.metadata.kernelspec.name == "python3"


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
        cell.source = cell.source.replace('budget="40s"', 'budget="15s"')
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path / "notebooks"}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    said = [output.text for output in shown if output.get("name") == "stderr"]
    assert not [text for text in said if MORE_WORKERS not in text]
    charts = [output for output in shown if "vegaEmbed" in output.get("data", {}).get("text/html", "")]
    drawn = sum("result.plot_" in cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert len(charts) == drawn >= 3
    assert any("samples/s" in str(output.get("data", {}).get("text/html")) for output in shown)
