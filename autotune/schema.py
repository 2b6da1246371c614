"""The part of JSON Schema that the config file's schema uses: is a value valid, and what would be. Pure.

A validator of its own, since a training script that reads a config file may have torch alone; tests hold it to the
``jsonschema`` package. It is stricter in two things: ``8.0`` is no integer, and what is not finite is no number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["allowed", "is_valid"]

Schema = Mapping[str, Any]


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
