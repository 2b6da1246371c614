"""The answer of a run as a user has it: it shows itself in words, charts, tables and a page."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError
from autotune.output import write_file
from autotune.report import html, table
from autotune.report.drawing import require_drawing
from autotune.report.text import in_python, verdict_sentence
from autotune.result import Answer, StudyRecord

if TYPE_CHECKING:
    import pandas

SUFFIXES = {".svg": 1.0, ".png": 3.0, ".pdf": 1.0}
"""Kinds of files of charts, with the scale of each: a PNG has some 300 pixels to the inch of a printed page."""
WIDTH = 720
"""Width of a chart in a file, in pixels before scaling."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result(Answer):
    """Answer of a run of autotune, with its evidence, and every way to show it."""

    @property
    def sentence(self) -> str:
        """The verdict in a sentence or two."""
        return verdict_sentence(self)

    @property
    def trials(self) -> pandas.DataFrame:
        """Every trial as a row of a pandas DataFrame; ``autotune.report.table.COLUMNS`` says what each column holds."""
        return table.trials_frame(self.history)

    def plot(self, name: str) -> Any:
        """Return a chart of Altair by its name in ``autotune.report.charts.CHARTS``, such as ``batch-size``.

        Raises ``UsageError`` for another name, where there is nothing to show, or no Altair.
        """
        require_drawing()
        from autotune.report.charts import CHARTS, charts_of

        if name not in CHARTS:
            raise UsageError(f"plot {name!r}; allowed: {', '.join(CHARTS)}")
        chart = charts_of(StudyRecord.of(self), name).get(name)
        if chart is None:
            raise UsageError(f"there is nothing to plot: nothing is known of {name.replace('-', ' ')} here")
        return chart

    def save_plots(self, folder: str | Path, suffix: str = ".svg") -> list[Path]:
        """Write every plot to a folder, as ``.svg``, ``.png`` or ``.pdf``, and return the files."""
        if suffix not in SUFFIXES:
            raise UsageError(f"suffix {suffix!r}; allowed: {', '.join(SUFFIXES)}")
        require_drawing()
        import altair

        from autotune.report.charts import charts_of

        ending: Any = suffix[1:]
        files = []
        Path(folder).mkdir(parents=True, exist_ok=True)
        with altair.data_transformers.enable("default", max_rows=None):
            for name, chart in charts_of(StudyRecord.of(self)).items():
                files.append(Path(folder) / f"{name}{suffix}")
                content = StringIO() if suffix == ".svg" else BytesIO()
                drawn = chart.properties(width=WIDTH, background="white")
                drawn.save(content, format=ending, scale_factor=SUFFIXES[suffix])
                write_file(files[-1], content.getvalue())
        return files

    def save_report(self, path: str | Path) -> None:
        """Write the report as one HTML file that needs no network; without the chart library it has no charts.

        Raises ``ConfigFileError`` where the file cannot be written.
        """
        html.save_report(StudyRecord.of(self), Path(path))

    def save_trials(self, path: str | Path) -> None:
        """Write ``trials`` to a ``.csv`` or ``.parquet`` file; Parquet needs pyarrow.

        Raises ``UsageError`` for another suffix, ``ConfigFileError`` where the file cannot be written.
        """
        table.save_trials(self.history, Path(path))

    def __str__(self) -> str:
        """Return the summary that a terminal shows, 100 characters wide."""
        from autotune.report.terminal import result_text  # rich draws from Python's random state when it is imported

        return result_text(self)

    def __repr__(self) -> str:
        return f"<Result: {in_python(self.sentence)}>"

    def _repr_html_(self) -> str:
        return in_python(html.html_summary(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStudy(StudyRecord):
    """A study as it was kept, with a result that shows itself."""

    result: Result | None
