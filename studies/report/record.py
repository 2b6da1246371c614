"""What draws the report's charts, and how fast the report opens: ``python -m studies.report.record``.

Needs Chromium, ``pip install -e ".[test]"``, and for the comparison ``pip install plotly bokeh``.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from autotune.machine.host import inspect_host
from tests.report.results import simulated_result

RECORDED = Path(__file__).resolve().parent / "recorded"
FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--no-sandbox", "--disable-background-networking"]
DRAWN = "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg path'))"
ROUNDS = 10
TRIALS = (20, 100, 500)


def plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def bokeh_script() -> str:
    from bokeh.resources import INLINE

    return "\n".join(INLINE.js_raw)


def vega_script() -> str:
    from autotune.report.drawing import vega_script as script

    return script()


LIBRARIES: dict[str, tuple[str, tuple[str, ...], Callable[[], str]]] = {
    "Vega (Altair)": ("vl-convert-python", ("altair", "vl_convert"), vega_script),
    "Bokeh": ("bokeh", ("bokeh",), bokeh_script),
    "plotly": ("plotly", ("plotly",), plotly_script),
}


def installed_bytes(package: str) -> int:
    """Return what a package takes on the disk."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return sum(path.stat().st_size for path in Path(found.origin).parent.rglob("*") if path.is_file())


def milliseconds(browser: Browser, path: Path) -> float:
    """Return how long a page's script takes from its begin to its end."""
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_function("performance.getEntriesByName('end').length")
    taken = page.evaluate(
        "performance.getEntriesByName('end')[0].startTime - performance.getEntriesByName('begin')[0].startTime"
    )
    page.close()
    return float(taken)


def compare_libraries(browser: Browser, folder: Path) -> list[dict[str, Any]]:
    """Read each library's script in turn, again and again: what a page costs before it draws anything."""
    rows: list[dict[str, Any]] = []
    for name, (distribution, packages, script) in LIBRARIES.items():
        text = script()
        (folder / f"{len(rows)}.html").write_text(
            "<!doctype html><meta charset=utf-8><script>performance.mark('begin')</script>"
            f"<script type=module>{text}</script><script type=module>performance.mark('end')</script>",
            encoding="utf-8",
        )
        rows.append(
            {
                "library": name,
                "version": version(distribution),
                "script_bytes": len(text.encode()),
                "compressed_bytes": len(gzip.compress(text.encode())),
                "installed_bytes": sum(map(installed_bytes, packages)),
                "milliseconds": [],
            }
        )
    for _ in range(ROUNDS):
        for number, row in enumerate(rows):
            row["milliseconds"].append(milliseconds(browser, folder / f"{number}.html"))
    return rows


def time_reports(browser: Browser, folder: Path) -> list[dict[str, Any]]:
    """Open reports of more and more trials; done is when every chart is drawn."""
    result = simulated_result()
    searched = [trial for trial in result.history if trial.kind == "search"]
    rows: list[dict[str, Any]] = []
    for count in TRIALS:
        history = tuple(replace(searched[number % len(searched)], number=number) for number in range(count))
        path = folder / f"{count}.html"
        replace(result, history=history).save_report(path)
        rows.append({"trials": count, "bytes": path.stat().st_size, "seconds": []})
    for _ in range(ROUNDS):
        for row in rows:
            page = browser.new_page()
            begin = time.perf_counter()
            page.goto((folder / f"{row['trials']}.html").as_uri())
            while not page.evaluate(DRAWN):
                assert time.perf_counter() - begin < 30, "a chart was not drawn"
                time.sleep(0.01)
            row["seconds"].append(time.perf_counter() - begin)
            page.close()
    return rows


def main() -> None:
    executable = shutil.which("chromium")
    assert executable, "needs Chromium"
    RECORDED.mkdir(exist_ok=True)
    with sync_playwright() as started, tempfile.TemporaryDirectory() as name:
        browser = started.chromium.launch(executable_path=executable, args=FLAGS)
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {**inspect_host().traits, "chromium": browser.version},
            "libraries": compare_libraries(browser, Path(name)),
            "reports": time_reports(browser, Path(name)),
        }
        browser.close()
    (RECORDED / "times.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n".join(summary(found)))


def summary(found: dict[str, Any]) -> list[str]:
    """Return the tables of the README."""
    vega = statistics.median(found["libraries"][0]["milliseconds"])
    lines = [
        "| library | script | compressed | installed | reading it, beside Vega's |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found["libraries"]:
        sizes = [f"{row[kind] / 1e6:.1f} MB" for kind in ("script_bytes", "compressed_bytes", "installed_bytes")]
        times = statistics.median(row["milliseconds"]) / vega
        lines.append(f"| {row['library']} {row['version']} | {' | '.join(sizes)} | {times:.1f} times |")
    lines += ["", "| trials | file | opens in (median) | at most |", "| --- | --- | --- | --- |"]
    for row in found["reports"]:
        taken = f"{statistics.median(row['seconds']):.2f} s | {max(row['seconds']):.2f} s"
        lines.append(f"| {row['trials']} | {row['bytes'] / 1e6:.2f} MB | {taken} |")
    return lines


if __name__ == "__main__":
    main()
