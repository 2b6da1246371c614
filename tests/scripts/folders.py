"""The folders of a script that a test has measured: what lies there before, and what differs afterwards.

``work`` is the working folder, ``home`` and ``tmp`` are those of the environment.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np

FOLDERS = ("work", "home", "tmp")
SCRATCH = ("autotune-", "torchinductor_")
"""How names in the temporary folder begin that are not the script's."""
EARLIER = 1_600_000_000
"""When the files of before were written."""


def npy(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


def database() -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE steps (loss REAL)")
        connection.executemany("INSERT INTO steps VALUES (?)", [(number / 10,) for number in range(100)])
        connection.commit()
        return connection.serialize()


def hdf5(losses: list[float]) -> bytes:
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.create_dataset("loss", data=losses, maxshape=(None,))
    return content.getvalue()


FILES: dict[str, dict[str, bytes]] = {
    "cache": {},
    "renamed_checkpoint": {
        "work/last.pt": b"the last model",
        "work/best.pt": b"the best model",
        "work/step-000-000000.pt": b"an old model",
        "work/step-000-000010.pt": b"another old model",
    },
    "log": {"work/train.log": b"INFO:root:epoch 0 begins\n", "work/metrics.csv": b"0,0,1.5\n"},
    "cleared": {"work/output/old.pt": b"the last model", "work/output/deep/notes.txt": b"it was a good one\n"},
    "memmap": {"work/features.npy": npy(np.ones((100, 8), np.float32)), "work/raw.bin": b"raw values of before"},
    "database": {"work/runs.db": database()},
    "tofile": {"work/weights.bin": bytes(32), "work/log.txt": b"x\n", "work/old.txt": b"old\n"},
    "spawned": {"work/model.pt": b"the last model"},
    "chdir": {"work/history.txt": b"run0 1.5\n"},
    "temporary": {"tmp/model.pt": b"the last model"},
    "dataset_json": {"work/rows.jsonl": b'{"x": [1, 2, 3, 4, 5, 6, 7, 0.5], "y": [0.5]}\n' * 200},
    "dataset_map": {"home/.cache/huggingface/rows.arrow": b"rows of before"},
    "saved_to_disk": {
        "work/rows/data-00000-of-00001.arrow": b"rows of before",
        "work/rows/state.json": b"{}",
    },
    "written_module": {
        "work/settings.py": b"RATE = 1.0\n",
        "work/removed.py": b"",
        "work/package/__init__.py": b"",
    },
    "copied_library": {"work/copied.so": b"a library of before"},
    "read_by_child": {},
    "hdf5": {"work/losses.h5": hdf5([1.0, 0.5])},
    "linked": {"work/weights.bin": bytes(32), "work/run/model.pt": b"the last model"},
    "new_output": {"work/wanted.txt": b"a training"},
    "resumed": {"work/last.txt": b"40"},
}
"""The files that lie there before each script runs."""


IMPORTS = """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""
DATA = "data = TensorDataset(torch.randn(2000, 8), torch.randn(2000, 1))\n"
LOOP = """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(int(os.environ.get("EPOCHS", "50"))):
    for step, batch in enumerate(DataLoader(data, batch_size=64, shuffle=True)):
        x, y = batch.values() if isinstance(batch, dict) else batch
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def script_text(name: str) -> str:
    """Return a script: its file of ``jobs``, with the training around that where it has none of its own."""
    own = (Path(__file__).resolve().parent / "jobs" / f"{name}.py").read_text("utf-8")
    if "optimizer" in own:
        return own
    data, after = "\ndata = " not in own and DATA, "\ndef after(" in own and "        after(step, loss, model)\n"
    return "".join(filter(None, (IMPORTS, own, data, LOOP, after)))


def environment(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}


def lay_out(folder: Path, name: str) -> Path:
    """Empty the folders, write a script and its earlier files there, and return the script's path."""
    for each in (folder / name for name in FOLDERS):
        each.mkdir(exist_ok=True)
        for path in each.iterdir():
            if path.name.startswith(SCRATCH):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    script = folder / ("tmp" if name == "temporary" else "work") / "train.py"
    files = {folder / path: content for path, content in FILES[name].items()}
    for path, content in (files | {script: script_text(name).encode()}).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (EARLIER, EARLIER))
    return script


Found = dict[str, tuple[object, ...]]


def snapshot(folder: Path) -> Found:
    """Describe everything in the folders, but for the scratch folder."""
    found: Found = {}
    for each in (folder / name for name in FOLDERS):
        found[each.name] = described(each)
        for parent, folders, files in os.walk(each):
            if parent == str(folder / "tmp"):
                folders[:] = [name for name in folders if not name.startswith(SCRATCH)]
                found["tmp"] = found["tmp"][:3]  # the scratch folder changes its time and its links
            for path in (Path(parent, name) for name in (*folders, *files)):
                found[str(path.relative_to(folder))] = described(path)
    return found


def described(path: Path) -> tuple[object, ...]:
    """Return mode with type, owner, group, time, links, target and digest of a file."""
    seen = path.lstat()
    target = os.readlink(path) if stat.S_ISLNK(seen.st_mode) else None
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(seen.st_mode) else None
    return oct(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_mtime_ns, seen.st_nlink, target, digest


def differences(before: Found, after: Found) -> list[str]:
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return [f"{path}: {before.get(path)} -> {after.get(path)}" for path in paths]


def scratch_left(folder: Path) -> list[str]:
    """Return the names of scratch folders; the cache of torch's compiler is to stay."""
    return [name for name in os.listdir(folder / "tmp") if name.startswith(SCRATCH[0])]
