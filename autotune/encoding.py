"""Records as JSON, and back: for the pipe to the measuring process and for the study's storage.

Every value is checked against the type of its field on the way back, so that a damaged study is an error and not
a surprise.
"""

from __future__ import annotations

import json
import math
import reprlib
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from autotune.config import Config
from autotune.errors import UsageError
from autotune.probes import Anatomy, ComputeProbe, FirstLosses, GradientNoise, LoaderTrace, NumericsCheck, StoredItems
from autotune.records import Measurement

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGEST = 2**63
"""No count is as large; a larger one could not be turned into a float."""

PAYLOADS: Mapping[str, type[Any]] = {
    "measurement": Measurement,
    "compute": ComputeProbe,
    "loader": LoaderTrace,
    "numerics": NumericsCheck,
    "noise": GradientNoise,
    "losses": FirstLosses,
    "anatomy": Anatomy,
    "store": StoredItems,
}
"""The name that stands before the payload of an attempt."""

Record = TypeVar("Record")


def to_json(record: DataclassInstance) -> dict[str, Any]:
    """Return a record as plain values, configurations as documents."""
    return dict(json.loads(json.dumps(_plain_values(record))))


def _plain_values(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_document()
    if is_dataclass(value):
        found = {field.name: getattr(value, field.name) for field in fields(value)}
        plain = {name: _plain_values(inner) for name, inner in found.items()}
        if payload := found.get("payload"):
            plain["payload"] = {name: plain["payload"] for name, kind in PAYLOADS.items() if isinstance(payload, kind)}
        return plain
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain_values(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def without_nan(value: Any) -> Any:
    """Return plain values with ``None`` for values that JSON lacks, such as a loss of NaN."""
    if isinstance(value, Mapping):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(record: type[Record], values: object) -> Record:
    """Rebuild a record from its ``to_json``. Raises ``ValueError`` naming the wrong field."""
    return _record(record, values, record.__name__.lower())


def _record(record: type[Record], values: object, where: str) -> Record:
    if not isinstance(values, Mapping):
        raise _wrong(where, values, "an object")
    hints = _hints(record)  # type: ignore[arg-type]  # a class is hashable
    if unknown := [key for key in values if key not in hints]:
        raise ValueError(f"{where}: unknown field {reprlib.repr(unknown[0])}")
    found = {name: _value(hints[name], value, f"{where}.{name}") for name, value in values.items()}
    try:
        return record(**found)
    except TypeError:
        missing = sorted(set(hints) - set(found))
        raise ValueError(f"{where}: lacks one of {', '.join(missing)}") from None


@cache
def _hints(record: type[Any]) -> dict[str, Any]:
    types_of = get_type_hints(record)
    return {field.name: types_of[field.name] for field in fields(record)}


def _value(kind: Any, value: object, where: str) -> Any:
    if kind is Config:
        return _config(value, where)
    if is_dataclass(kind):
        return _record(kind, value, where)  # type: ignore[arg-type]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _one_of(tuple(kind), value, where)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _payload(value, where) if len(inner) > 2 else _value(inner[0], value, where)
    if origin is tuple:
        return _tuple(inner, value, where)
    if origin is Literal:
        return _one_of(inner, value, where)
    return _mapping(value, where) if origin is not None else _plain(kind, value, where)


def _payload(value: object, where: str) -> Any:
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in PAYLOADS:
        raise _wrong(where, value, f"one of {', '.join(PAYLOADS)}")
    ((name, numbers),) = value.items()
    return _record(PAYLOADS[name], numbers, f"{where}.{name}")


def _plain(kind: type, value: object, where: str) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST and kind in (int, float):
        return float(value) if kind is float else value  # JSON does not tell 1 from 1.0
    if type(value) is kind and kind is not int:
        return value
    raise _wrong(where, value, kind.__name__)


def _one_of(allowed: tuple[Any, ...], value: object, where: str) -> Any:
    if type(value) is str and value in allowed:
        return allowed[allowed.index(value)]
    raise _wrong(where, value, f"one of {', '.join(map(str, allowed))}")


def _tuple(kinds: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong(where, value, "a list")
    if kinds[-1] is ...:
        return tuple(_value(kinds[0], item, where) for item in value)
    if len(value) != len(kinds):
        raise _wrong(where, value, f"a list of {len(kinds)}")
    return tuple(_value(kind, item, where) for kind, item in zip(kinds, value, strict=True))


def _mapping(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise _wrong(where, value, "an object of texts")
    return dict(value)


def _config(value: object, where: str) -> Config:
    try:
        return Config.from_document(value)  # type: ignore[arg-type]
    except (AttributeError, KeyError, TypeError, UsageError):
        raise _wrong(where, value, "a configuration") from None


def _wrong(where: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"{where}: is {reprlib.repr(value)}; allowed: {allowed}")
