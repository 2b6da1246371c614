"""Does the search still decide as it did, and expect the same? A change that is meant to change it records it anew.

python -m tests.search.searches
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.search.searches import RECORDED, searches

KEPT: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return json.loads(json.dumps(searches()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", KEPT)
def test_a_search_decides_and_expects_what_it_did(found: dict[str, dict[str, Any]], name: str) -> None:
    assert found[name] == KEPT[name]


def test_no_search_is_missing(found: dict[str, dict[str, Any]]) -> None:
    assert list(found) == list(KEPT)
