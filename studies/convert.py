"""Convert studies that were recorded with records 11 to records 12, which know no demand of other processes.

    python -m studies.convert studies/*/recorded/*.study

Each file is replaced.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OLD, NEW, GONE = "11", "12", "foreign_demand"


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        lines = path.read_text(encoding="utf-8").splitlines()
        converted = (json.dumps(of_today(json.loads(line)), separators=(",", ":")) for line in lines)
        path.write_text("\n".join(converted) + "\n", encoding="utf-8")


def of_today(part: Any) -> Any:
    """Return a part of a record without the field that is gone, and with the number of today's records."""
    if isinstance(part, list):
        return [of_today(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {name: of_today(each) for name, each in part.items() if name != GONE}
    return kept | {"records": NEW} if kept.get("records") == OLD else kept


if __name__ == "__main__":
    main()
