from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.report.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Net [bold]\n\tüber 10 µs 日本", "Net [bold]\n\tüber 10 µs 日本"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\rb\x9b2J\x7f", r"a\rb\x9b2J\x7f"),
        ("file\u202egnp.yaml", r"file\u202egnp.yaml"),
        ("a\u2028b\udc80", r"a\u2028b\udc80"),
    ],
)
def test_what_would_act_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_every_text_can_be_printed_and_nothing_is_hidden(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(character.isprintable() or character.isspace() for character in shown)
    assert printable(shown) == shown
