"""Files that C code and other modules' own ``open`` write and read back while writes go to copies: ``opening FOLDER``.

It prints a line of JSON: what failed, by name.
"""

from __future__ import annotations

import bz2
import importlib.util
import io
import json
import os
import pickle
import runpy
import shutil
import sqlite3
import stat
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from autotune.measure.copies import Copies

BEFORE = b"before"
NAMES = (
    "plain", "rows.arrow", "rows.csv", "rows.feather", "rows.json", "rows.parquet", "model.pt", "model.safetensors",
    "losses.h5", "module.py", "removed.parquet",
)  # fmt: skip
"""Files that lie there before."""


def raw() -> None:
    with io.FileIO("plain", "w") as file:
        file.write(b"new")
    assert Path("plain").read_bytes() == b"new"

    class Own(io.FileIO):
        pass

    with open("plain", "rb", buffering=0) as file, Own("plain") as own:
        assert isinstance(file, io.FileIO)
        assert isinstance(own, Own)
        assert issubclass(Own, io.FileIO)
        assert not isinstance(io.BytesIO(), io.FileIO)


def kept() -> None:
    with tarfile.open("kept.tar", "w") as archive:
        archive.add("plain")
    with tarfile.open("kept.tar") as archive:
        assert archive.getnames() == ["plain"]
    with bz2.open("plain", "wt") as file:
        file.write("new")
    with bz2.open("plain", "rt") as file:
        assert file.read() == "new"


def made() -> None:
    os.mkfifo("pipe", 0o600)
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


def database() -> None:
    with closing(sqlite3.connect(f"file:{Path('runs.db').absolute()}?mode=rwc", uri=True)) as runs, runs:
        runs.execute("CREATE TABLE steps (loss REAL)")
        runs.execute("INSERT INTO steps VALUES (1.5)")
    with closing(sqlite3.connect("file:runs.db?mode=ro", uri=True)) as runs:
        assert runs.execute("SELECT loss FROM steps").fetchone() == (1.5,)
    with closing(sqlite3.connect("file:apart?mode=memory", uri=True)) as runs:
        runs.execute("CREATE TABLE steps (loss REAL)")
    assert not os.path.exists("apart")


def scripted() -> None:
    import torch

    double = torch.jit.trace(lambda x: 2 * x, torch.ones(1))
    torch.jit.save(double, "model.pt")
    torch.jit.load("model.pt").save("model.pt")
    assert torch.jit.load("model.pt")(torch.ones(1)) == 2
    model = torch.jit.trace(torch.nn.Linear(2, 1), torch.ones(1, 2))
    for save in (model.save, lambda path: torch.jit.save(model, path)):
        save("model.pt")
        assert torch.equal(torch.jit.load("model.pt").weight, model.weight)
        os.remove("model.pt")
    torch.save({"loss": 1.5}, "model.pt")
    assert torch.load("model.pt", mmap=True) == {"loss": 1.5}
    assert pickle.loads(pickle.dumps(torch.load)) is torch.load


def arrow() -> None:
    import pyarrow as pa

    for file, read in ((pa.OSFile("rows.arrow", "wb"), pa.OSFile), (pa.output_stream("rows.arrow"), pa.input_stream)):
        with file:
            file.write(b"new")
        with read("rows.arrow") as other:
            assert other.read() == b"new"
    assert isinstance(file, pa.OSFile)
    with pa.memory_map("rows.arrow", mode="r+") as mapped:
        mapped.write(b"now")
    assert Path("rows.arrow").read_bytes() == b"now"


def tables() -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.ipc
    import pyarrow.json
    import pyarrow.parquet

    table = pa.table({"x": [1, 2]})
    pyarrow.csv.write_csv(table, "rows.csv")
    assert pyarrow.csv.read_csv("rows.csv") == pyarrow.csv.open_csv("rows.csv").read_all() == table
    pyarrow.feather.write_feather(table, "rows.feather")
    assert pyarrow.feather.read_table("rows.feather") == table
    assert pyarrow.feather.read_feather("rows.feather")["x"].tolist() == [1, 2]
    with pyarrow.ipc.new_stream("rows.arrow", table.schema) as writer:
        writer.write_table(table)
    assert pyarrow.ipc.open_stream(pa.memory_map("rows.arrow")).read_all() == table
    with pyarrow.ipc.new_file("rows.arrow", table.schema) as writer:
        writer.write_table(table)
    assert pyarrow.ipc.open_file(pa.memory_map("rows.arrow")).read_all() == table
    Path("rows.json").write_text('{"x": 1}\n{"x": 2}\n')
    assert pyarrow.json.read_json("rows.json") == pyarrow.json.open_json("rows.json").read_all() == table
    pyarrow.parquet.write_table(table, "rows.parquet")
    assert pyarrow.parquet.read_table("rows.parquet") == pyarrow.parquet.ParquetFile("rows.parquet").read() == table
    assert (
        pyarrow.parquet.read_schema(where="rows.parquet")
        == pyarrow.parquet.read_metadata("rows.parquet").schema.to_arrow_schema()
    )
    os.remove("removed.parquet")
    try:
        pyarrow.parquet.read_table("removed.parquet")
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("it was read")
    assert pickle.loads(pickle.dumps(pyarrow.json.read_json)) is pyarrow.json.read_json


def tensors() -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    save_file({"x": torch.ones(2)}, "model.safetensors")
    assert torch.equal(load_file("model.safetensors")["x"], torch.ones(2))
    with safe_open("model.safetensors", framework="pt") as file:
        assert list(file.keys()) == ["x"]


def losses() -> None:
    import h5py

    with h5py.File("losses.h5", mode="w") as file:
        file["x"] = [1.5]
    assert h5py.is_hdf5("losses.h5")
    with h5py.File(name="losses.h5") as file:
        assert isinstance(file, h5py.File)
        assert file["x"][0] == 1.5
    try:
        h5py.File("losses.h5", "w-")
    except FileExistsError:
        pass
    else:
        raise AssertionError("it was made anew")
    content = io.BytesIO()
    h5py.File(content, "w").close()


def modules() -> None:
    Path("module.py").write_text("X = 1.5")
    spec = importlib.util.spec_from_file_location("module", "module.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.X == runpy.run_path("module.py")["X"] == 1.5
    sys.path.insert(0, os.getcwd())
    os.mkdir("late")
    Path("late/inner.py").write_text("X = 2.5")
    importlib.invalidate_caches()
    assert importlib.import_module("late.inner").__file__ == os.path.abspath("late/inner.py")


def libraries() -> None:
    import ctypes

    with open("/proc/self/maps") as maps:
        found = next(line.split()[-1] for line in maps if os.path.basename(line.strip()).startswith("libc."))
    shutil.copy(found, "plain")
    assert isinstance(ctypes.cdll.LoadLibrary("./plain"), ctypes.CDLL)
    ctypes.CDLL(os.path.basename(found))
    ctypes.CDLL(None)


CHECKS: tuple[Callable[[], Any], ...] = (
    raw, kept, made, database, scripted, arrow, tables, tensors, losses, modules, libraries
)  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "copies").mkdir()
    (folder / "held").mkdir()
    for name in NAMES:
        (folder / "held" / name).write_bytes(BEFORE)
    os.chdir(folder / "held")
    unwanted = {"h5py", "pyarrow", "safetensors", "torch"} & sys.modules.keys()
    copies = Copies(str(folder / "copies"), ["/dev", "/proc"])
    copies.install()
    failed = {"imported": str(unwanted)} if unwanted or "h5py" in sys.modules else {}
    for check in CHECKS:
        try:
            check()
        except BaseException as error:
            failed[check.__name__] = f"line {error.__traceback__.tb_next.tb_lineno}: {error!r}"  # type: ignore[union-attr]
    sys.stdout.write(json.dumps(failed))


if __name__ == "__main__":
    main()
