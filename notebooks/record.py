"""Run the notebooks and keep their outputs: ``python notebooks/record.py [name …]``.

Charts are kept as SVG, which pages show without a script. Warnings are left out: they name files of the machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
AS_SVG = 'import altair\naltair.renderers.enable("svg")'
"""Run first, and not kept."""


def record(path: Path) -> None:
    """Run a notebook in a copy of the folders that it reads, and write its outputs into the file."""
    notebook = nbformat.read(path, as_version=4)
    metadata = dict(notebook.metadata)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(AS_SVG))
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(ROOT / "studies" / "demo", Path(scratch, "studies", "demo"))
        place = Path(scratch, "notebooks")
        place.mkdir()
        NotebookClient(notebook, timeout=600, record_timing=False, resources={"metadata": {"path": place}}).execute()
    del notebook.cells[0]
    notebook.metadata = nbformat.from_dict(metadata)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        cell.execution_count = number
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
                if len(output.data) > 1:
                    output.data.pop("text/plain", None)  # a page shows the other
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for name in sys.argv[1:] or ("quickstart", "reading-the-report"):
        record(FOLDER / f"{name}.ipynb")
