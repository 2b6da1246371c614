"""The config file (``config.schema.json``, version 1): how it is read and written.

Works on plain dictionaries, so reading a file needs neither torch nor optuna. ``Config`` checks the knobs.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ConfigFileError, shown
from autotune.output import Kind, reason, write_file

SCHEMA_VERSION = 1
MAX_BYTES = 100_000
"""A config file is about one kilobyte; a file a hundred times larger is another file, and takes seconds to parse."""
MAX_VALUES = 1000
"""Values inside one value."""
MAX_DEPTH = 20
"""Collections inside one another; YAML's parser takes a minute for a file of brackets."""

SCHEMA = Path(__file__).with_name("config.schema.json")
"""The schema as JSON Schema, with the meaning of every key."""


@functools.cache
def _keys() -> dict[str, frozenset[str]]:
    properties = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
    return {name: frozenset(section["properties"]) for name, section in properties.items() if "properties" in section}


def _is_plain(value: object) -> bool:
    """Return whether YAML and JSON both keep a value, and it is not too large."""
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
        name = "JSON" if _is_json(path) else "YAML"
        raise ConfigFileError(f"{path}: not a valid {name} file: {on_one_line(error)}") from None
    return _checked(path, document)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a config file whole or not at all; YAML, or JSON for ``.json``.

    Raises ``ConfigFileError`` when it cannot be written, or when it could not be read again.
    """
    try:
        plain = json.loads(json.dumps(dict(document)))  # tuples to lists, subclasses to what they are made of
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigFileError(f"{path}: cannot be written: {on_one_line(error)}") from None
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
    """Return the pairs as a dictionary; raises ``ValueError`` for a key given twice, which would lose a value."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{_named(key)} is given twice")
        found[key] = value
    return found


def _parse_yaml(text: str) -> object:
    import yaml

    try:
        document = yaml.load(text, Loader=_yaml_loader())
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except ValueError:
        raise
    except Exception as error:  # the constructors of YAML's own tags raise anything: !!bool x, !!int ""
        raise ValueError(f"{type(error).__name__}: {error}") from None
    _read_bare_off(document)
    return document


@functools.cache
def _yaml_loader() -> type[Any]:
    """Return a safe loader that refuses aliases, repeated keys and deep nesting.

    Aliases and nesting let a short text stand for billions of values; a repeated key would lose its first value.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("aliases are not allowed")
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} levels")
            node = super().compose_node(parent, index)
            self.depth -= 1
            if isinstance(node, yaml.MappingNode):
                _without_repeats([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            return node

    return Loader


def _read_bare_off(document: object) -> None:
    """Read ``amp: off`` as the text it is meant to be: YAML 1.1 takes a bare ``off`` for false."""
    if not isinstance(document, dict):
        return
    training, others = document.get("training"), document.get("alternatives")
    if isinstance(training, dict) and training.get("amp") is False:
        training["amp"] = "off"
    for other in others.values() if isinstance(others, dict) else ():
        _read_bare_off(other)


def _checked(path: Path, document: object) -> dict[str, Any]:
    """Return a document whose sections are plain values; raises ``ConfigFileError`` with the key that is wrong."""
    if not isinstance(document, dict) or "autotune" not in document:
        raise ConfigFileError(f"{path}: no key 'autotune'; this is not an autotune config file")
    version = document["autotune"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ConfigFileError(
            f"{path}: autotune: schema version {shown(version)}; this release reads version "
            f"{SCHEMA_VERSION}. Run autotune again to write a file that it reads"
        )
    if "dataloader" not in document:
        raise ConfigFileError(f"{path}: no section 'dataloader'")
    for name, content in document.items():
        if name in _keys() and not isinstance(content, dict):
            raise _refused(path, name, content, "a section of keys and plain values")
        for key, value in content.items() if isinstance(content, dict) else [("", content)]:
            place = f"{_named(name)}.{_named(key)}".removesuffix(".")
            if not (isinstance(name, str) and isinstance(key, str) and _is_plain(value)):
                raise _refused(path, place, value, "texts, finite numbers, and lists and sections of them")
            is_evidence, words = EVIDENCE.get(place, (_is_plain, ""))
            if not is_evidence(value):
                raise _refused(path, place, value, words)
    if "batch_size" not in document["dataloader"]:
        raise ConfigFileError(f"{path}: dataloader.batch_size: missing; allowed: whole numbers from 1")
    _check_alternatives(path, document)
    return document


def _check_alternatives(path: Path, document: Mapping[str, Any]) -> None:
    """Raise ``ConfigFileError`` where the answer for another objective has no sections as a file has."""
    for name, part in document.get("alternatives", {}).items():
        place = f"alternatives.{_named(name)}"
        if name not in _keys()["alternatives"]:
            continue
        if not isinstance(part, dict) or "alternatives" in part:
            raise _refused(path, place, part, "a section of sections")
        if part:
            _checked(Path(f"{path}: {place}"), {**part, "autotune": document["autotune"]})


def _refused(path: Path, place: object, value: object, words: str) -> ConfigFileError:
    return ConfigFileError(f"{path}: {place}: is {shown(value)}; allowed: {words}")


def _is_amount(value: object) -> bool:
    return not isinstance(value, bool) and _is_finite(value) and value >= 0  # type: ignore[operator]  # a number


def _is_interval(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and len(value) == 2 and all(map(_is_amount, value)) and value[0] <= value[1]


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_LEARNING_RATE: Mapping[str, Callable[[Any], bool]] = {
    "optimizer": lambda value: value is None or (isinstance(value, str) and value.isidentifier()),
    "rule": lambda value: value in (None, "linear", "square root"),
    "factor": lambda value: value is None or _is_amount(value),
    "samples": lambda value: isinstance(value, int) and _is_amount(value),
}
_AMOUNT = (_is_amount, "a number from 0")
_INTERVAL = (_is_interval, "a list of two numbers, lower end first, or null")
EVIDENCE: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "measured.samples_per_second": _AMOUNT,
    "measured.speedup": _AMOUNT,
    "measured.beginning_samples": (
        lambda value: value is None or (type(value) is int and 1 <= value < 2**63),
        "whole numbers from 1, or null",
    ),
    "measured.later_epochs": (lambda value: value is None or isinstance(value, bool), "true, false or null"),
    "measured.ci95": _INTERVAL,
    "measured.next_run_95": _INTERVAL,
    "measured.speedup_ci95": _INTERVAL,
    "measured.objective": (lambda value: value is None or isinstance(value, str), "a text, or null"),
    "measured.learning_rate": (
        lambda value: isinstance(value, dict) and all(_LEARNING_RATE.get(key, _is_plain)(value[key]) for key in value),
        "a section with optimizer, rule, factor and samples",
    ),
    "made_on.other_loaders": (_is_texts, "a list of texts"),
    "made_on.loaders_of_ranks": (_is_texts, "a list of texts"),
    "made_on.shared_lines": (_is_texts, "a list of texts"),
    "measured.baseline": (lambda value: isinstance(value, dict), "a section of keys and plain values"),
}
"""Values that ``check``, ``apply`` and exports use: the test of each, and its words."""


def unknown_keys(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections and keys of a document that this release does not know."""
    for name, content in without_unknown(document)[1].items():
        yield from (f"{name}.{_named(key)}" for key in content) if name in _keys() else [_named(name)]


def without_unknown(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the known part of a checked document, and the unknown: sections, or keys of sections."""
    known, unknown = dict[str, Any](), dict[str, Any]()
    for name, content in document.items():
        if name == "autotune":
            known[name] = content
        elif name not in _keys():
            unknown[name] = content
        else:
            known[name] = {key: value for key, value in content.items() if key in _keys()[name]}
            if more := {key: value for key, value in content.items() if key not in _keys()[name]}:
                unknown[name] = more
    return known, unknown


def _named(key: object) -> str:
    return key if isinstance(key, str) and key.isprintable() and len(key) <= 60 else shown(key)


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def on_one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks, at most 300 characters."""
    return " ".join((str(error) or type(error).__name__).split())[:300]


def is_config(path: Path) -> bool:
    """Return whether a file is one of autotune's config files."""
    try:
        read_document(path)
    except ConfigFileError:
        return False
    return True


CONFIG = Kind("config", is_config)
