"""The config file: its schema (version 1), and how it is read, checked and written.

Works on plain dictionaries, so reading a file needs neither torch nor optuna.
"""

from __future__ import annotations

import json
import math
import os
import reprlib
import secrets
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from autotune.errors import ConfigFileError
from autotune.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["SCHEMA_VERSION", "read_document", "write_document", "write_text"]

SCHEMA_VERSION = 1
MAX_BYTES = 100_000
"""A config file is about one kilobyte; what is a hundred times larger is another file, and takes seconds to parse."""
MAX_VALUES = 1000
"""Values in a free section."""
MAX_DEPTH = 20
"""Collections inside one another; YAML's parser takes a minute for a file of brackets."""

Check = Callable[[object], bool]


def _whole(least: int) -> tuple[str, Check]:
    def check(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63

    return f"a whole number from {least}", check


def _optional(rule: tuple[str, Check]) -> tuple[str, Check]:
    return f"{rule[0]}, or null", lambda value: value is None or rule[1](value)


def _one_of(*choices: str) -> tuple[str, Check]:
    return "one of " + ", ".join(choices), lambda value: value in choices


def _is_finite(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def _is_number(value: Any) -> bool:
    return _is_finite(value) and value >= 0


def _is_interval(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(map(_is_number, value)) and value[0] <= value[1]


def _is_section(value: object) -> bool:
    """Say whether a free section holds only what YAML and JSON both keep."""
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
    return isinstance(value, dict)


def _is_options(value: object) -> bool:
    if not isinstance(value, list) or not all(isinstance(option, str) and option in OPTIONS for option in value):
        return False
    return len(set(value)) == len(value)


_FLAG = ("true or false", lambda value: isinstance(value, bool))
_NUMBER = ("a number from 0", _is_number)
_INTERVAL = ("a list of two numbers, lower end first", _is_interval)
_TEXT = ("a text", lambda value: isinstance(value, str))
_OPTIONS = (f"a list of different ones of {', '.join(OPTIONS)}", _is_options)
_SECTION = ("a section of keys and plain values", _is_section)

_RULES: dict[str, dict[str, tuple[str, Check]]] = {
    "dataloader": {
        "batch_size": _whole(1),
        "num_workers": _whole(0),
        "prefetch_factor": _optional(_whole(1)),
        "pin_memory": _FLAG,
        "persistent_workers": _FLAG,
    },
    "training": {
        "amp": _one_of("off", "bf16", "fp16"),
        "accumulation_steps": _whole(1),
        "options": _OPTIONS,
    },
    "threads": {"intra_op": _optional(_whole(1)), "inter_op": _optional(_whole(1))},
    "measured": {
        "samples_per_second": _NUMBER,
        "ci95": _optional(_INTERVAL),
        "peak_memory_bytes": _whole(0),
        "memory": _one_of("device", "host"),
        "memory_limit_bytes": _whole(0),
        "ceiling_samples_per_second": _optional(_NUMBER),
        "bottleneck": _TEXT,
        "baseline": _SECTION,
        "speedup": _NUMBER,
        "speedup_ci95": _optional(_INTERVAL),
        "verdict": _one_of("faster", "no proven gain"),
    },
    "made_on": {
        "device": _TEXT,
        "cpus": _whole(1),
        "torch": _TEXT,
        "driver": _optional(_TEXT),
        "workload": _TEXT,
        "date": _TEXT,
        "autotune": _TEXT,
    },
}
_REQUIRED = {"dataloader": ("batch_size",)}


def read_document(path: Path) -> dict[str, Any]:
    """Read and check a config file.

    Raises ``ConfigFileError`` naming file, key and what is allowed.
    """
    text = _read_text(path)
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats) if _is_json(path) else _parse_yaml(text)
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
    if _is_json(path):
        text = json.dumps(plain, indent=2) + "\n"
    else:
        import yaml

        text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all.

    Raises ``ConfigFileError`` when it cannot be written.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        with _removed_on_failure(temporary):
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except (OSError, UnicodeError) as error:
        raise ConfigFileError(f"{path}: cannot be written: {_reason(error)}") from None


@contextmanager
def _removed_on_failure(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:  # an interrupt too must leave nothing behind
        with suppress(OSError):
            temporary.unlink()
        raise


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
        raise ConfigFileError(f"{path}: cannot be read: {_reason(error)}") from None


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


def _check_section(path: Path, section: object, content: object) -> None:
    if section not in _RULES:
        raise ConfigFileError(f"{path}: {_named(section)}: unknown section; allowed: {', '.join(_RULES)}")
    if not isinstance(content, dict):
        raise ConfigFileError(f"{path}: {section}: is {_shown(content)}; allowed: {_SECTION[0]}")
    rules = _RULES[str(section)]
    for key, value in content.items():
        if key not in rules:
            raise ConfigFileError(f"{path}: {section}.{_named(key)}: unknown key; allowed: {', '.join(rules)}")
        allowed, is_valid = rules[key]
        if not is_valid(value):
            raise ConfigFileError(f"{path}: {section}.{key}: is {_shown(value)}; allowed: {allowed}")
    for key in _REQUIRED.get(str(section), ()):
        if key not in content:
            raise ConfigFileError(f"{path}: {section}.{key}: missing; allowed: {rules[key][0]}")


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


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


def _reason(error: OSError | UnicodeError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _on_one_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:300]
