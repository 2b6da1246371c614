from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def there(found: T | None) -> T:
    """Return what has to be there."""
    assert found is not None
    return found
