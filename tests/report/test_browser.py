"""The report in a browser, as people open it: from the disk, on small and large screens, in light and dark."""

from __future__ import annotations

import io
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from autotune.config import Config
from autotune.report.html import html_report
from autotune.result import RecordedStudy, Result
from tests import examples
from tests.report.results import only_failures, simulated_result
from tests.report.test_html import evil_result

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

CHROMIUM = shutil.which("chromium")
FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--no-sandbox", "--disable-background-networking"]
DRAWN = "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg path'))"
SCREENS = [(width, scheme) for width in (360, 800, 1400) for scheme in ("light", "dark")]
pytestmark = [pytest.mark.server, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian: chromium)")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@contextmanager
def opened(browser: Any, path: Path, width: int = 1400, scheme: str = "light") -> Iterator[Any]:
    """Open a page from the disk; it may neither complain nor ask for anything else."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, permissions=["clipboard-read", "clipboard-write"]
    )
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    end = time.monotonic() + 30
    while not page.evaluate(DRAWN):
        assert time.monotonic() < end, said
        page.wait_for_timeout(10)
    yield page
    assert said == []
    assert asked == [path.as_uri()]
    context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("report") / "report.html", simulated_result())


def written(path: Path, result: Result) -> Path:
    result.save_report(path)
    return path


def coloured_share(screenshot: bytes) -> float:
    """Return the share of pixels that are neither grey nor text: what was drawn."""
    pixels = Image.open(io.BytesIO(screenshot)).convert("HSV").resize((200, 100)).tobytes()
    return statistics.fmean(saturation > 90 for saturation in pixels[1::3])


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_charts_are_drawn_and_anyone_can_read_all(browser: Any, report: Path, width: int, scheme: str) -> None:
    with opened(browser, report, width, scheme) as page:
        figures = page.locator("figure").all()
        assert len(figures) == 7
        for figure in figures:
            plot = figure.locator(".plot")
            plot.scroll_into_view_if_needed()
            assert coloured_share(plot.screenshot()) > 0.002, figure.get_attribute("id")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        outside = page.evaluate(
            """[...document.querySelectorAll("body *:not(.scroll *, pre, svg *)")]
              .filter((each) => each.offsetWidth && each.getBoundingClientRect().right > innerWidth + 1)
              .map((each) => each.outerHTML.slice(0, 80))"""
        )
        assert outside == []
        found = axe.Axe().run(page).response["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert [f"{each['id']}: {each['nodes'][0]['html']}" for each in serious] == []


def test_the_page_is_dark_where_that_is_wanted(browser: Any, report: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        with opened(browser, report, scheme=scheme) as page:
            colours[scheme] = sum(Image.open(io.BytesIO(page.screenshot())).convert("RGB").getpixel((5, 5)))
    assert colours["light"] > 700
    assert colours["dark"] < 120


def cells(page: Any, heading: str) -> list[str]:
    """Return the texts of the visible cells under a heading, from the top."""
    return list(
        page.evaluate(
            """(heading) => {
              const table = document.getElementById("table");
              const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === heading);
              const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
              return rows.map((row) => row.cells[column].textContent);
            }""",
            heading,
        )
    )


def test_the_table_sorts_numbers_as_numbers_by_mouse_and_by_keyboard(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        heading = page.locator("#table th", has=page.get_by_text("samples/s", exact=True))
        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == "ascending"
        rates = [float(text.replace(",", "")) for text in cells(page, "samples/s") if text]
        assert len(rates) > 10
        assert rates == sorted(rates)
        assert cells(page, "samples/s")[-1] == ""  # what failed has no rate, and stays last
        heading.get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert heading.get_attribute("aria-sort") == "descending"
        assert [float(text.replace(",", "")) for text in cells(page, "samples/s") if text] == rates[::-1]
        assert cells(page, "samples/s")[-1] == ""


def test_the_table_filters_by_words_and_by_outcome(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        everything = len(cells(page, "trial"))
        page.get_by_label("Filter").fill("BF16 search")
        kinds, amps = cells(page, "kind"), cells(page, "amp")
        assert 0 < len(kinds) < everything
        assert (set(kinds), set(amps)) == ({"search"}, {"bf16"})
        assert page.get_by_role("status").filter(has_text=f"{len(kinds)} of {everything}").count() == 1
        page.get_by_label("Filter").fill("")
        page.locator("#outcome").select_option("timeout")
        assert set(cells(page, "outcome")) == {"timeout"}


def test_numbers_are_found_with_and_without_their_commas(browser: Any, tmp_path: Path) -> None:
    history = tuple(examples.trial(number=number, config=Config(batch_size=2**number)) for number in range(12))
    path = written(tmp_path / "large.html", replace(simulated_result(), history=history))
    with opened(browser, path) as page:
        for wanted in ("batch=1024", "batch=1,024"):
            page.get_by_label("Filter").fill(wanted)
            assert cells(page, "batch") == ["1,024"]


def test_the_copy_buttons_copy(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        for name in ("config", "snippet"):
            page.locator(f"[data-copy={name}]").click()
            page.wait_for_function("document.getElementById('copied').textContent === 'Copied.'")
            assert page.evaluate("navigator.clipboard.readText()") == page.locator(f"#{name}").text_content()


def test_what_the_users_code_calls_itself_runs_nothing(browser: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "evil.html", evil_result())
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script("window.hacks = 0; window.hacked = () => { window.hacks += 1; }")
    page.goto(path.as_uri())
    page.wait_for_timeout(500)
    assert (page.evaluate("window.hacks"), page.locator("img").count()) == (0, 0)
    assert page.locator("figure .plot svg").count() > 0
    context.close()


@pytest.mark.timed
def test_five_hundred_trials_open_in_two_seconds(browser: Any, tmp_path: Path) -> None:
    searched = [trial for trial in simulated_result().history if trial.kind == "search"]
    history = tuple(replace(searched[number % len(searched)], number=number) for number in range(500))
    path = written(tmp_path / "long.html", replace(simulated_result(), history=history))
    taken = []
    for _ in range(3):  # others may use the CPUs
        begin = time.perf_counter()
        with opened(browser, path) as page:
            taken.append(time.perf_counter() - begin)  # all charts are drawn by then
            assert len(cells(page, "trial")) == 500
    assert min(taken) < 2.0


def test_studies_without_an_answer_are_pages_without_a_complaint(browser: Any, tmp_path: Path) -> None:
    for name, study in {
        "failures": only_failures(),
        "empty": replace(only_failures(), history=()),
        "no gain": RecordedStudy.of(examples.no_gain_result()),
    }.items():
        path = tmp_path / f"{name.replace(' ', '')}.html"
        path.write_text(html_report(study), encoding="utf-8")
        with opened(browser, path, 360) as page:
            assert page.locator("h1").count() == 1
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
