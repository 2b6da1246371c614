"""The page of messages quotes what autotune says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
TABLES = re.findall(r"^\| message \|.*\n\| --- .*\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
MESSAGES = [message for table in TABLES for message in re.findall(r"^\| `(.+?)` \|", table, flags=re.MULTILINE)]
ANY = "…"


def texts_of(part: ast.AST) -> Iterator[str]:
    """The texts in a module, with ``ANY`` where something is filled in."""
    if isinstance(part, ast.JoinedStr):
        yield "".join(str(each.value) if isinstance(each, ast.Constant) else ANY for each in part.values)
    elif isinstance(part, ast.Constant) and isinstance(part.value, str):
        yield re.sub(r"\{\w+(:[^}]*)?\}", ANY, part.value)
    for child in ast.iter_child_nodes(part):
        if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):  # documentation
            yield from texts_of(child)


@cache
def said() -> str:
    """All texts of autotune's source, one a line."""
    modules = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "autotune").rglob("*.py"))]
    return "\n".join(" ".join(text.split()) for module in modules for text in texts_of(module))


def test_all_tables_of_messages_are_read() -> None:
    assert sum(map(len, (table.splitlines() for table in TABLES))) == len(MESSAGES) == len(set(MESSAGES))
    assert len(TABLES) == PAGE.count("| message |")
    assert len(PAGE.splitlines()) < 110


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_said(message: str) -> None:
    parts = [re.escape(part) for part in message.split(ANY)]
    assert max(len(part.strip()) for part in message.split(ANY)) > 10
    assert re.search(".*".join(parts), said()), message
