"""The packages that draw charts, which are installed on demand."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from autotune.errors import UsageError

PACKAGES = {"altair": "altair", "vl_convert": "vl-convert-python"}
"""Drawing modules by the package that holds them."""


def missing_for_charts() -> str:
    """Return what charts need and how to install it; empty where all is there."""
    names = " and ".join(package for module, package in PACKAGES.items() if find_spec(module) is None)
    return f'charts need {names}, not installed here: pip install "torch-autotune[report]"' if names else ""


def require_drawing() -> None:
    """Raise ``UsageError`` where a package that draws charts is not installed."""
    if missing := missing_for_charts():
        raise UsageError(missing)


@cache
def vega_script() -> str:
    """Return the script that draws charts of Vega-Lite in a page, ``vegaEmbed``, as text."""
    from vl_convert import javascript_bundle

    return str(javascript_bundle("window.vegaEmbed = vegaEmbed;"))
