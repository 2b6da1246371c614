"""Every file that a page of the documentation links to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("studies/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for link in links(page):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


def headings(page: Path) -> set[str]:
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_index_names_every_page() -> None:
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert pages <= set(links(ROOT / "docs" / "README.md"))


def test_only_pyproject_holds_an_address_of_the_project() -> None:
    texts = [*PAGES, *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("autotune/**/*.py"), *ROOT.glob("autotune/**/*.html")]
    for path in texts:
        found = re.search(r"(https?://|git@)[^\s\"')>]*autotune", path.read_text(encoding="utf-8"))
        assert not found, path
