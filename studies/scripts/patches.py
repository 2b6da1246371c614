"""Record what twelve of the scripts train at once their answer is patched into them, and that the patch comes off.

    python studies/scripts/patches.py [--only digits vae] [--budget 40s] [--epochs 3] [--output FOLDER]

Writes ``patches.csv`` beside this script, or to another folder; fourteen minutes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from record import HERE, JOBS, append, first_loss, own_rate, recorded, run, tuner

from autotune import load_config

SCRIPTS = (
    *("classifier", "epochs", "digits", "lightning_job", "transformers_job", "accelerate_job"),
    *("imagenet", "dcgan", "vae", "language_model", "siamese", "own_iterator"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the patches of scripts.")
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--budget", default="40s", help="what autotune may take for each script")
    parser.add_argument("--epochs", type=int, default=3, help="epochs to train; the first is not counted")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write")
    options = parser.parse_args()
    table = options.output / "patches.csv"
    for name in options.only:
        if name not in recorded(table):
            row = patched(name, options)
            print(row, file=sys.stderr, flush=True)
            append(table, tuple(row), row)


def patched(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tune a copy of a script, patch it, train with it as it is then, and take the patch back."""
    with tempfile.TemporaryDirectory() as folder:
        script, patch = Path(folder, f"{name}.py"), Path(folder, "autotune.patch")
        shutil.copy(JOBS / script.name, script)
        before, train = script.read_bytes(), [sys.executable, script.name, "--epochs", options.epochs]
        plain = run(folder, train)  # makes its data, too
        run(folder, tuner("run", "--budget", options.budget, "--patch", script.name, "--epochs", "50"))
        config = load_config(Path(folder, "autotune.yaml"))
        if patch.exists():
            run(folder, ["git", "apply", patch.name])
        after = script.read_bytes()
        trained = run(folder, train)
        if patch.exists():
            run(folder, ["git", "apply", "-R", patch.name])
        lines = patch.read_text(encoding="utf-8").splitlines() if patch.exists() else []
        rate, promised = own_rate(trained), config.measured["samples_per_second"]
        return {
            "script": name,
            "verdict": config.measured["verdict"],
            "settings": " ".join(f"{key}={value}" for key, value in config.dataloader_kwargs().items()),
            "threads": config.intra_op_threads,
            "lines": sum(line.startswith("+") for line in lines) - 1,
            "file_rate": promised,
            "own_rate_patched": rate,
            "ratio": round(rate / promised, 3),
            "is_changed": after != before,
            "is_as_before": script.read_bytes() == before,
            "loss_plain": first_loss(plain),
            "loss_patched": first_loss(trained),
        }


if __name__ == "__main__":
    main()
