"""The schema that is shipped, and our reading of it, which must never accept what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import AMP_MODES, Config
from autotune.configfile import SCHEMA, SCHEMA_VERSION, allowed, is_valid, read_document
from autotune.errors import ConfigFileError
from autotune.step_options import OPTIONS
from tests.test_configfile import VALID
from tests.test_fuzz import documents

SHIPPED: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SHIPPED)
SECTIONS = {name: part["properties"] for name, part in SHIPPED["properties"].items() if "properties" in part}
KEYS = [(section, key) for section, keys in SECTIONS.items() for key in keys]


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SHIPPED)
    assert SHIPPED["properties"]["autotune"]["const"] == SCHEMA_VERSION
    assert SHIPPED["properties"]["training"]["properties"]["amp"]["enum"] == list(AMP_MODES)
    assert SHIPPED["properties"]["training"]["properties"]["options"]["items"]["enum"] == list(OPTIONS)


def test_every_key_says_what_it_means() -> None:
    assert all(SECTIONS[section][key]["description"] for section, key in KEYS)


def test_what_autotune_writes_is_valid() -> None:
    VALIDATOR.validate(VALID)
    VALIDATOR.validate(Config(num_workers=2, options=("compile",), intra_op_threads=3).to_document())


def test_fuzzed_files_that_are_read_are_valid(tmp_path: Path) -> None:
    accepted = 0
    for name, content in documents(500):
        (tmp_path / name).write_bytes(content)
        try:
            VALIDATOR.validate(read_document(tmp_path / name))
        except ConfigFileError:
            continue
        accepted += 1
    assert accepted > 10


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["off", "faster", "device", "compile", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize(("section", "key"), KEYS)
@given(value=VALUES)
@settings(max_examples=25)
def test_our_reading_is_that_of_jsonschema(section: str, key: str, value: Any) -> None:
    schema = SECTIONS[section][key]
    theirs = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert is_valid(value, schema) == (theirs and not is_refused_by_us_alone(value, schema))


def is_refused_by_us_alone(value: Any, schema: Any) -> bool:
    """A float as an integer, and what is no finite number."""
    numbers = value if isinstance(value, list) else [value]
    floats = [number for number in numbers if isinstance(number, float)]
    return any(number - number != 0 for number in floats) or (bool(floats) and "integer" in schema.get("type", ""))


@pytest.mark.parametrize(
    ("section", "key", "words"),
    [
        ("dataloader", "batch_size", "a whole number from 1"),
        ("dataloader", "prefetch_factor", "a whole number from 1, or null"),
        ("training", "amp", "one of off, bf16, fp16"),
        ("measured", "ci95", "a list of two numbers, lower end first, or null"),
        ("measured", "speedup", "a number from 0"),
        ("made_on", "driver", "a text, or null"),
    ],
)
def test_what_is_allowed_is_said(section: str, key: str, words: str) -> None:
    assert allowed(SECTIONS[section][key]) == words


@pytest.mark.parametrize(("section", "key"), KEYS)
@pytest.mark.parametrize("value", [-1, "no such", [1, 2, 3]])
def test_files_are_checked_by_the_shipped_schema(tmp_path: Path, section: str, key: str, value: Any) -> None:
    document = json.loads(json.dumps(VALID))
    document.setdefault(section, {})[key] = value
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    if VALIDATOR.is_valid(document):
        assert read_document(tmp_path / "a.yaml") == document
        return
    with pytest.raises(ConfigFileError) as caught:
        read_document(tmp_path / "a.yaml")
    assert f": {section}.{key}: is " in str(caught.value)
