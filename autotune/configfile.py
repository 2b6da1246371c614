"""The config file (``config.schema.json``, version 1): how it is read, checked and written.

Works on plain dictionaries, so reading a file needs neither torch nor optuna.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import reprlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import ConfigFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA_VERSION = 1
MAX_BYTES = 100_000
"""A config file is about one kilobyte; what is a hundred times larger is another file, and takes seconds to parse."""
MAX_VALUES = 1000
"""Values in a free section."""
MAX_DEPTH = 20
"""Collections inside one another; YAML's parser takes a minute for a file of brackets."""

SCHEMA = Path(__file__).with_name("config.schema.json")
"""The schema as JSON Schema, with what every key means."""


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60
Schema = Mapping[str, Any]


@functools.cache
def _sections() -> dict[str, Any]:
    properties = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
    return {name: schema for name, schema in properties.items() if "properties" in schema}


def _is_plain(value: object) -> bool:
    """Say whether a value holds only what YAML and JSON both keep, and not too much of it."""
    pending, seen = [value], 0
    while pending:
        item, seen = pending.pop(), seen + 1
        if seen > MAX_VALUES or (isinstance(item, (dict, list)) and len(item) > MAX_VALUES):
            return False
        if isinstance(item, dict) and all(isinstance(key, str) for key in item):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif not (item is None or isinstance(item, (bool, str)) or _is_finite(item)):
            return False
    return True


def _is_finite(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def _is_ordered(value: object) -> bool:
    """Say whether the numbers in a list are, which JSON Schema cannot."""
    numbers = [item for item in value if isinstance(item, (int, float))] if isinstance(value, list) else []
    return numbers == sorted(numbers)


def read_document(path: Path) -> dict[str, Any]:
    """Read and check a config file.

    Raises ``ConfigFileError`` naming file, key and what is allowed.
    """
    text = _read_text(path)
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats) if _is_json(path) else _parse_yaml(text)
    except ImportError:
        raise ConfigFileError(f"{path}: YAML needs pyyaml (pip install pyyaml); a .json file does not") from None
    except (ValueError, RecursionError) as error:
        reason = f"not a valid {_format_name(path)} file: {_on_one_line(error)}"
        raise ConfigFileError(f"{path}: {reason}") from None
    return _checked(path, document)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a config file whole or not at all; YAML, or JSON for ``.json``.

    Raises ``ConfigFileError`` when it cannot be written, or when it could not be read again.
    """
    try:
        plain = json.loads(json.dumps(dict(document)))  # tuples to lists, subclasses to what they are made of
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigFileError(f"{path}: cannot be written: {_on_one_line(error)}") from None
    _checked(path, plain)
    write_file(path, document_text(path, plain))


def document_text(path: Path, document: Mapping[str, Any]) -> str:
    """Return the text of a config file at a path: YAML, or JSON for ``.json``; the document is made of plain values."""
    if _is_json(path):
        return json.dumps(document, indent=2) + "\n"
    import yaml

    return str(yaml.safe_dump(dict(document), sort_keys=False, default_flow_style=None, width=100))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigFileError(f"{path}: larger than {MAX_BYTES} bytes; this is not an autotune config file")
        return content.decode("utf-8-sig")  # some editors put a byte order mark first
    except UnicodeDecodeError:
        raise ConfigFileError(f"{path}: not a text file in UTF-8") from None
    except OSError as error:
        raise ConfigFileError(f"{path}: cannot be read: {reason(error)}") from None


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the pairs as a dictionary; raises ``ValueError`` where a key is there twice, so that one would be lost."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{_named(key)} is given twice")
        found[key] = value
    return found


def _parse_yaml(text: str) -> object:
    import yaml

    try:
        _refuse_tricks(yaml.parse(text, Loader=yaml.SafeLoader))
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except ValueError:
        raise
    except Exception as error:  # the constructors of YAML's own tags raise anything: !!bool x, !!int ""
        raise ValueError(f"{type(error).__name__}: {error}") from None
    _read_bare_off(document)
    return document


def _refuse_tricks(events: Iterator[Any]) -> None:
    """Raise ``ValueError`` for what no config file needs and a short text can blow up with, or hide a value in.

    Aliases and merge keys can stand for billions of values; of a key that is there twice one would be lost.
    """
    import yaml

    levels: list[_Level] = []
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases are not allowed")
        if isinstance(event, yaml.CollectionEndEvent):
            levels.pop()
        elif isinstance(event, yaml.NodeEvent) and levels:
            levels[-1].add(getattr(event, "value", None))
        if isinstance(event, yaml.CollectionStartEvent):
            levels.append(_Level(isinstance(event, yaml.MappingStartEvent)))
            if len(levels) > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} levels")


class _Level:
    """A YAML collection that is being read."""

    def __init__(self, is_mapping: bool) -> None:
        self._is_mapping = is_mapping
        self._keys: set[str] = set()
        self._count = 0

    def add(self, text: str | None) -> None:
        """Take the next item; ``text`` is ``None`` where it is no plain value."""
        is_key = self._is_mapping and self._count % 2 == 0
        self._count += 1
        if is_key and text is not None:
            if text in self._keys:
                raise ValueError(f"{_named(text)} is given twice")
            self._keys.add(text)


def _read_bare_off(document: object) -> None:
    """Read ``amp: off`` as the text it is meant to be: YAML 1.1 takes a bare ``off`` for false."""
    training = document.get("training") if isinstance(document, dict) else None
    if isinstance(training, dict) and training.get("amp") is False:
        training["amp"] = "off"


def _checked(path: Path, document: object) -> dict[str, Any]:
    if not isinstance(document, dict) or "autotune" not in document:
        raise ConfigFileError(f"{path}: no key 'autotune'; this is not an autotune config file")
    version = document["autotune"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ConfigFileError(
            f"{path}: autotune: schema version {_shown(version)}; this release reads version "
            f"{SCHEMA_VERSION}. Run autotune again to write a file that it reads"
        )
    if "dataloader" not in document:
        raise ConfigFileError(f"{path}: no section 'dataloader'")
    for section, content in document.items():
        if section != "autotune":
            _check_section(path, section, content)
    return document


def unknown_keys(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections and keys of a document that this release does not know."""
    for name, content in without_unknown(document)[1].items():
        is_section = name in _sections()
        yield from (f"{name}.{_named(key)}" for key in content) if is_section else [_named(name)]


def without_unknown(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what this release knows of a checked document, and what it does not: sections, or keys of sections."""
    sections, known, unknown = _sections(), dict[str, Any](), dict[str, Any]()
    for name, content in document.items():
        if name == "autotune":
            known[name] = content
        elif name not in sections:
            unknown[name] = content
        else:
            of_section = sections[name]["properties"]
            known[name] = {key: value for key, value in content.items() if key in of_section}
            if more := {key: value for key, value in content.items() if key not in of_section}:
                unknown[name] = more
    return known, unknown


def _check_section(path: Path, name: object, content: object) -> None:
    """Raise ``ConfigFileError`` for what is wrong in a section; what is unknown, as of a later release, may stand."""
    section = _sections().get(str(name), {"type": "object", "properties": {}})
    if not isinstance(name, str) or (name not in _sections() and not _is_plain(content)):
        raise ConfigFileError(f"{path}: {_named(name)}: is {_shown(content)}; allowed: {allowed(section)}")
    if name not in _sections():
        return
    if not isinstance(content, dict):
        raise ConfigFileError(f"{path}: {name}: is {_shown(content)}; allowed: {allowed(section)}")
    schemas = section["properties"]
    for key, value in content.items():
        if not isinstance(key, str) or not _is_plain(value):
            raise ConfigFileError(
                f"{path}: {name}.{_named(key)}: is {_shown(value)}; allowed: {_allowed(schemas, key)}"
            )
        if key in schemas and not (is_valid(value, schemas[key]) and _is_ordered(value)):
            raise ConfigFileError(f"{path}: {name}.{key}: is {_shown(value)}; allowed: {_allowed(schemas, key)}")
    for key in section.get("required", ()):
        if key not in content:
            raise ConfigFileError(f"{path}: {name}.{key}: missing; allowed: {allowed(schemas[key])}")


def _allowed(schemas: Mapping[str, Any], key: object) -> str:
    return allowed(schemas[key]) if isinstance(key, str) and key in schemas else "a text, or another plain value"


def _shown(value: object) -> str:
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python does not write out a number of thousands of digits
        return "a number of thousands of digits"


def _named(key: object) -> str:
    return key if isinstance(key, str) and key.isprintable() and len(key) <= 60 else _shown(key)


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def _format_name(path: Path) -> str:
    return "JSON" if _is_json(path) else "YAML"


def _on_one_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:300]


def is_valid(value: object, schema: Schema) -> bool:
    """Return whether a value without cycles satisfies a schema; sections' keys are not looked at."""
    if "const" in schema:
        return type(value) is type(schema["const"]) and value == schema["const"]
    if "enum" in schema:
        return isinstance(value, str) and value in schema["enum"]
    if not any(_is_of_type(value, name) for name in _types(schema)):
        return False
    if isinstance(value, str) and "pattern" in schema:
        return re.search(schema["pattern"], value) is not None
    if isinstance(value, list):
        return _is_valid_list(value, schema)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return bool(schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf))
    return True


def allowed(schema: Schema) -> str:
    """Say in words what a schema allows."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    types = _types(schema)
    words = {
        "integer": f"a whole number from {schema.get('minimum')}",
        "number": f"a number from {schema.get('minimum')}",
        "boolean": "true or false",
        "string": f"a text such as {', '.join(examples)}" if (examples := schema.get("examples")) else "a text",
        "object": "a section of keys and plain values",
        "array": _allowed_list(schema),
    }
    return words[types[0]] + (", or null" if "null" in types else "")


def _allowed_list(schema: Schema) -> str:
    choices = schema.get("items", {}).get("enum")
    return f"a list of different ones of {', '.join(choices)}" if choices else "a list of two numbers, lower end first"


def _is_valid_list(values: list[Any], schema: Schema) -> bool:
    if not schema.get("minItems", 0) <= len(values) <= schema.get("maxItems", math.inf):
        return False
    if not all(is_valid(value, schema["items"]) for value in values):
        return False
    return not schema.get("uniqueItems") or len(set(values)) == len(values)


def _types(schema: Schema) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _is_of_type(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, float):
        return name == "number" and math.isfinite(value)
    python: dict[str, type[Any] | None] = {
        "integer": int,
        "number": int,
        "string": str,
        "array": list,
        "object": dict,
        "null": type(None),
    }
    expected = python.get(name)
    return expected is not None and isinstance(value, expected)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; text as UTF-8.

    Raises ``ConfigFileError`` when it cannot be written.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        encoded = content.encode() if isinstance(content, str) else content
        with _removed_on_failure(temporary):
            with temporary.open("xb") as file:
                file.write(encoded)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except (OSError, UnicodeError) as error:
        raise ConfigFileError(f"{path}: cannot be written: {reason(error)}") from None


def reason(error: OSError | UnicodeError) -> str:
    """Return why a file could not be read or written."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def _removed_on_failure(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:  # an interrupt too must leave nothing behind
        with suppress(OSError):
            temporary.unlink()
        raise
