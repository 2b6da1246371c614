"""Messages through a socket pair: each is read as it was sent, or refused."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import protocol
from autotune.protocol import LARGEST, Channel, UnreadableError

values = st.none() | st.integers() | st.floats(allow_nan=False) | st.text('aé"\\\n ', max_size=5)
documents = st.fixed_dictionaries({"a": values}, optional={"b": st.lists(values, max_size=2)})


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel, Channel]]:
    monkeypatch.setattr(protocol, "STALL_SECONDS", 1)
    ours, theirs = Channel.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@given(st.lists(st.tuples(st.integers(0, 2**40), documents), max_size=5))
def test_messages_are_read_as_they_were_sent(sent: list[tuple[int, dict[str, Any]]]) -> None:
    ours, theirs = Channel.pair()
    for number, document in sent:
        ours.send(number, document)
        assert theirs.receive() == (number, document)
    ours.close()
    with pytest.raises(EOFError):
        theirs.receive()
    theirs.close()


@given(st.binary(max_size=200))
def test_noise_is_no_message(noise: bytes) -> None:
    ours, theirs = Channel.pair()
    os.write(theirs.fileno(), noise)
    theirs.close()
    with pytest.raises((EOFError, UnreadableError)):
        ours.receive()
    ours.close()


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b"[1, 2]", b'["1", {}]', b"[1, {}", b"", b"\xff"])
def test_a_message_is_a_number_and_an_object(content: bytes, pair: tuple[Channel, Channel]) -> None:
    os.write(pair[1].fileno(), struct.pack("!i", len(content)) + content)
    with pytest.raises(UnreadableError):
        pair[0].receive()


@pytest.mark.parametrize("size", [LARGEST + 1, 10])
def test_a_message_that_is_too_large_or_goes_no_further_is_refused(size: int, pair: tuple[Channel, Channel]) -> None:
    os.write(pair[1].fileno(), struct.pack("!i", size) + b"[1,")
    with pytest.raises(UnreadableError):
        pair[0].receive()
