"""Frames on a pipe: each is read as it was written, or refused."""

from __future__ import annotations

import io
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.runner import protocol
from autotune.runner.protocol import FrameError, decode, encode, frames

words = st.text('aé"\\\n ', max_size=5)
values = st.none() | st.integers() | st.floats(allow_nan=False) | words
documents = st.fixed_dictionaries({"a": values}, optional={"b": st.lists(values, max_size=2)})
numbers = st.integers(0, 2**40)
damage = st.sampled_from(["cut", "changed", "inserted", "removed"])


@given(st.lists(st.tuples(numbers, documents), max_size=5))
def test_frames_are_read_as_they_were_written(sent: list[tuple[int, dict[str, Any]]]) -> None:
    assert list(frames(io.BytesIO(b"".join(encode(*frame) for frame in sent)))) == sent


@given(numbers, documents, damage, st.data())
def test_a_damaged_frame_is_refused(number: int, document: dict[str, Any], how: str, data: st.DataObject) -> None:
    line = encode(number, document).strip(b"\n")
    position = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[position]))
    damaged = {
        "cut": line[:position],
        "changed": line[:position] + bytes([other]) + line[position + 1 :],
        "inserted": line[:position] + bytes([other]) + line[position:],
        "removed": line[:position] + line[position + 1 :],
    }[how]
    with pytest.raises(FrameError):
        decode(damaged)


@given(st.binary(max_size=200), numbers, documents)
def test_what_stands_before_a_frame_does_not_spoil_it(noise: bytes, number: int, document: dict[str, Any]) -> None:
    found = list(frames(io.BytesIO(noise + encode(number, document))))
    assert found[-1] == (number, document)
    assert all(isinstance(frame, FrameError) for frame in found[:-1])
    assert (len(found) > 1) == bool(noise.replace(b"\n", b""))


@pytest.mark.parametrize("version", ["autotune/0", "autotune/2", "autotune"])
def test_frames_of_other_versions_are_refused(version: str) -> None:
    with pytest.raises(FrameError):
        decode(encode(1, {}).strip().replace(b"autotune/1", version.encode()))


@pytest.mark.parametrize("content", ["[]", "3", "null", '"text"'])
def test_a_frame_holds_an_object(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol.json, "dumps", lambda document: content)
    with pytest.raises(FrameError, match="no JSON object"):
        decode(encode(1, {}).strip())


def test_a_line_that_is_too_large_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LARGEST", 2**20)
    large = string.ascii_letters.encode() * 2**15
    first, refused = frames(io.BytesIO(encode(1, {}) + large + encode(2, {})))
    assert first == (1, {})
    assert isinstance(refused, FrameError)
    assert str(refused) == "more than 1 MiB"
