"""The schema that is shipped, for editors and other tools, says what autotune writes and reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given

from autotune.config import Config, load_config
from autotune.configfile import SCHEMA, SCHEMA_VERSION
from autotune.errors import ConfigFileError
from tests.search.answers import RECORDED
from tests.test_configfile import VALID, configs

SHIPPED: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SHIPPED)
SECTIONS = {name: part["properties"] for name, part in SHIPPED["properties"].items() if "properties" in part}
KEYS = [(section, key) for section, keys in SECTIONS.items() for key in keys]


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SHIPPED)
    assert SHIPPED["properties"]["autotune"]["const"] == SCHEMA_VERSION


def test_every_key_says_what_it_means() -> None:
    assert all(SECTIONS[section][key]["description"] for section, key in KEYS)


@given(config=configs())
def test_what_autotune_writes_is_valid(config: Config) -> None:
    VALIDATOR.validate(json.loads(json.dumps(config.to_document())))


@pytest.mark.parametrize("section", ["dataloader", "training", "threads"])
@pytest.mark.parametrize("value", [-1, "no such", [1, 2, 3]])
def test_knobs_are_read_as_the_schema_says(tmp_path: Path, section: str, value: Any) -> None:
    path = tmp_path / "a.json"
    for key in SECTIONS[section]:
        document = json.loads(json.dumps(VALID))
        document[section][key] = value
        path.write_text(json.dumps(document), encoding="utf-8")
        assert not VALIDATOR.is_valid(document)
        with pytest.raises(ConfigFileError, match=rf"{key}.*allowed: "):
            load_config(path)


@pytest.mark.filterwarnings("ignore:.*was made on:UserWarning")  # another machine
def test_the_documentation_shows_a_file_as_it_is_written(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "config-file.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "autotune.yaml").write_text(shown, encoding="utf-8")
    config, document = load_config(tmp_path / "autotune.yaml"), yaml.safe_load(shown)
    written = json.loads(RECORDED.read_text(encoding="utf-8"))["faster"]["document"]

    VALIDATOR.validate(document)
    assert yaml.safe_load(json.dumps(config.to_document())) == document
    assert keys(document) - {("made_on", "date")} == keys(written)
    for section, key in keys(document) - {("made_on", "date")}:
        assert key in page.partition("| key |")[2] or section in ("dataloader", "threads", "made_on"), (section, key)


def keys(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Sections of a file, and their keys."""
    return {(section, key) for section, part in document.items() if isinstance(part, dict) for key in part} | {
        (section, "") for section in document
    }
