"""Draw the README's pictures from the recorded study: ``python -m studies.demo.pictures``."""

from __future__ import annotations

from pathlib import Path

import autotune

FOLDER = Path(__file__).resolve().parent
SHOWN = ("time.svg", "loader.svg")


def main() -> None:
    result = autotune.read_study(FOLDER / "recorded" / "autotune.study").result
    assert result is not None
    for path in result.save_plots(FOLDER / "pictures"):
        if path.name not in SHOWN:
            path.unlink()


if __name__ == "__main__":
    main()
