"""The report in a browser, as people open it: from the disk, on small and large screens, in light and dark."""

from __future__ import annotations

import io
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from autotune.config import Config
from autotune.report.html import html_report
from autotune.report.result import RecordedStudy
from tests import examples
from tests.report.results import only_failures, simulated_result
from tests.report.test_html import evil_result
from tests.search.there import there

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

CHROMIUM = shutil.which("chromium")
FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--no-sandbox", "--disable-background-networking"]
A4 = 718
"""Pixels between the margins of a page."""
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
    while not page.evaluate("[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg path'))"):
        assert time.monotonic() < end, said
        page.wait_for_timeout(10)
    yield page
    assert said == []
    assert asked == [path.as_uri()]
    context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    large = examples.trial(number=900, kind="search", config=Config(batch_size=1024))
    path = tmp_path_factory.mktemp("report") / "report.html"
    result = simulated_result()
    measured = replace(result.measurement, device_idle_share=0.1)
    replace(result, measurement=measured, history=(*result.history, large)).save_report(path)
    return path


def coloured_share(screenshot: bytes) -> float:
    """Return the share of pixels that are neither grey nor text: what was drawn."""
    pixels = Image.open(io.BytesIO(screenshot)).convert("HSV").resize((200, 100)).tobytes()
    return statistics.fmean(saturation > 90 for saturation in pixels[1::3])


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (800, "dark"), (1400, "light")])
def test_charts_are_drawn_and_anyone_can_read_all(browser: Any, report: Path, width: int, scheme: str) -> None:
    with opened(browser, report, width, scheme) as page:
        figures = page.locator("figure").all()
        assert len(figures) == 5
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
        assert [f"{each['id']}: {each['nodes'][0]['html']}" for each in found] == []
        red, green, blue = Image.open(io.BytesIO(page.screenshot())).convert("RGB").getpixel((5, 5))
        assert red + green + blue > 700 if scheme == "light" else red + green + blue < 120


LEAST_GAP = 4
"""Pixels between two labels of an axis, below which they read as one."""
GAPS = """() => [...document.querySelectorAll(".plot .role-axis-label")].flatMap((axis) => {
  const shown = [...axis.querySelectorAll("text")].filter((label) => label.getAttribute("opacity") !== "0");
  const boxes = shown.map((label) => label.getBoundingClientRect());
  return boxes.slice(1).map((box, index) => {
    const [first, second] = [boxes[index], box].sort((one, other) => one.left - other.left);
    const isAbove = first.bottom <= second.top + 1 || second.bottom <= first.top + 1;
    return isAbove ? 99 : second.left - first.right;
  });
})"""


def test_labels_of_an_axis_keep_apart_on_every_screen(browser: Any, tmp_path: Path) -> None:
    result = simulated_result()
    landscape = there(result.landscape)
    sizes = tuple(replace(landscape.steps[0], batch_size=2**power) for power in range(15))
    path = tmp_path / "report.html"
    replace(result, landscape=replace(landscape, steps=sizes)).save_report(path)
    for width in (320, 360, 390, 420, 480, 600, 768, 900, 1024, 1200, 1440):
        with opened(browser, path, width) as page:
            gaps = page.evaluate(GAPS)
        assert len(gaps) > 20
        assert min(gaps) >= LEAST_GAP, width


@pytest.mark.parametrize("width", [360, 390, 800, 1440])
def test_figures_stand_in_rows_of_like_length(browser: Any, report: Path, width: int) -> None:
    with opened(browser, report, width) as page:
        tops = page.evaluate("[...document.querySelectorAll('.tiles > div')].map((each) => each.offsetTop)")
    rows = Counter(tops)
    assert len(tops) == 7
    assert max(rows.values()) - min(rows.values()) <= 1


@pytest.mark.parametrize("media", ["screen", "print"])
@pytest.mark.parametrize("width", [390, 1440])
def test_no_line_of_code_is_cut(browser: Any, report: Path, width: int, media: str) -> None:
    with opened(browser, report, width) as page:
        page.emulate_media(media=media)
        cut = page.evaluate(
            "[...document.querySelectorAll('pre')].filter((each) => each.scrollWidth > each.clientWidth).length"
        )
    assert cut == 0


def test_paper_is_white_and_holds_every_trial(browser: Any, report: Path) -> None:
    with opened(browser, report, A4, "dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        colours = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert colours == ["rgb(255, 255, 255)", "rgb(29, 35, 41)"]
        cut = page.evaluate(
            """[...document.querySelectorAll(".scroll")].filter((each) => each.checkVisibility())
              .map((each) => [each.scrollHeight - each.clientHeight, each.scrollWidth - each.clientWidth])"""
        )
        assert cut == [[0, 0]] * 2


def cells(page: Any, heading: str) -> list[str]:
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


def test_the_table_sorts_and_filters_and_the_configuration_is_copied(browser: Any, report: Path) -> None:
    with opened(browser, report) as page:
        sorts(page)
        filters(page)
        for name in ("snippet", "other-snippet", "config"):
            page.locator(f"[data-copy={name}]").click()
            page.locator("#copied", has_text="Copied.").wait_for(state="attached")  # the page forbids functions as text
            assert page.evaluate("navigator.clipboard.readText()") == page.locator(f"#{name}").text_content()


def sorts(page: Any) -> None:
    """Numbers are sorted as numbers, by mouse and by keyboard; what failed has no rate, and stays last."""
    heading = page.locator("#table th", has=page.get_by_text("samples/s", exact=True))
    orders = []
    for direction, press in (("ascending", "click"), ("descending", "press")):
        getattr(heading.get_by_role("button"), press)(*(["Enter"] if press == "press" else []))
        assert heading.get_attribute("aria-sort") == direction
        *rates, last = cells(page, "samples/s")
        orders.append([float(text.replace(",", "")) for text in rates if text])
        assert last == ""
    assert orders[0] == sorted(orders[0]) == orders[1][::-1]
    assert len(orders[0]) > 10


def filters(page: Any) -> None:
    """Trials are found by words, by settings with and without their commas, and by outcome."""
    everything = len(cells(page, "trial"))
    page.get_by_label("Filter").fill("BF16 search")
    kinds, amps = cells(page, "kind"), cells(page, "amp")
    assert 0 < len(kinds) < everything
    assert (set(kinds), set(amps)) == ({"search"}, {"bf16"})
    assert page.get_by_role("status").filter(has_text=f"{len(kinds)} of {everything}").count() == 1
    for wanted in ("batch=1024", "batch=1,024"):
        page.get_by_label("Filter").fill(wanted)
        assert set(cells(page, "batch")) == {"1,024"}
    page.get_by_label("Filter").fill("")
    page.locator("#outcome").select_option("timeout")
    assert set(cells(page, "outcome")) == {"timeout"}


def test_what_the_users_code_calls_itself_runs_nothing(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "evil.html"
    evil_result().save_report(path)
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script("window.hacks = 0; window.hacked = () => { window.hacks += 1; }")
    page.goto(path.as_uri())
    page.wait_for_timeout(500)
    assert (page.evaluate("window.hacks"), page.locator("img").count()) == (0, 0)
    assert page.locator("figure .plot svg").count() > 0
    context.close()


def test_studies_that_know_little_are_pages_without_a_complaint(browser: Any, tmp_path: Path) -> None:
    landscape = there(simulated_result().landscape)
    steps = tuple(replace(step, refusal="does not fit") for step in landscape.steps)
    result = examples.undecided_result()
    finalists = (there(result.likeliest),)
    refused = replace(result, finalists=finalists, landscape=replace(landscape, steps=steps))
    for name, study in {
        "failures": only_failures(),
        "empty": replace(only_failures(), history=()),
        "no gain": RecordedStudy.of(examples.no_gain_result()),
        "undecided": RecordedStudy.of(refused),
    }.items():
        path = tmp_path / f"{name.replace(' ', '')}.html"
        path.write_text(html_report(study), encoding="utf-8")
        with opened(browser, path, 360) as page:
            assert page.locator("h1").count() == 1
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
