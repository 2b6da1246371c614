"""Block 1: what this accelerator does, asked in the way that autotune asks it.

    python -m studies.gpu.probes

Writes ``recorded/<device>/probes.csv`` and ``probes.md`` beside this script; exit code 2 without an accelerator.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from autotune.machine.host import inspect_host, read_fields
from autotune.measure.device import Device, open_device
from studies.gpu.load import EXHAUSTS, Load
from studies.gpu.sessions import Session, Start, gpu_of, large_one, openings, started

RECORDED = Path(__file__).resolve().parent / "recorded"
COPIES, EVENTS, TIMES, AHEAD = 4, 1000, 5, 8
SAMPLING = 1.5
"""Seconds that are longer than NVML's sampling period."""
NOT_AVAILABLE = "not available"
SMI = ("persistence_mode", "compute_mode", "mig.mode.current", "power.limit", "clocks.max.sm")
"""Fields of nvidia-smi."""


class Row(NamedTuple):
    """One figure."""

    name: str
    """What was asked."""
    value: Any
    """The answer."""
    unit: str = ""
    """Its unit; empty for words."""


Probe = Callable[[Device, Any, Load], Iterable[Row]]


def answers(name: str, ask: Callable[[], Iterable[Any]]) -> Iterator[Row]:
    """Yield the rows of a probe; what the machine does not answer is a row too."""
    try:
        for row in ask():
            yield Row(*row)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        yield Row(name, f"{NOT_AVAILABLE} ({type(error).__name__}: {line})")


# --- the machine ---


def machine(device: Device, module: Any, load: Load) -> Iterator[Row]:
    host = inspect_host()
    yield Row("device", device.name)
    yield Row("driver", host.gpus[0].driver if host.gpus else NOT_AVAILABLE)
    yield Row("CPU", host.cpu_model)
    yield Row("CPUs", host.cpus)
    yield Row("memory of the host", host.memory_bytes, "bytes")
    yield Row("/dev/shm", NOT_AVAILABLE if host.shm_bytes is None else host.shm_bytes, "bytes")
    yield from (Row(name, version) for name, version in host.versions.items())
    yield Row("CUDA of torch", torch.version.cuda or NOT_AVAILABLE)
    yield Row("memory that can be had", device.memory_limit, "bytes")


def settings(device: Device, module: Any, load: Load) -> Iterator[Row]:
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    values = done.stdout.splitlines()[0].split(",")
    yield from (Row(name, value.strip()) for name, value in zip(SMI, values, strict=True))


# --- time ---


def copies(device: Device, module: Any, load: Load) -> Iterator[Row]:
    for is_pinned, words in ((False, "pageable"), (True, "pinned")):
        load.copy(is_pinned=is_pinned)
        device.synchronize()
        begin = device.clock()
        for _ in range(COPIES):
            load.copy(is_pinned=is_pinned)
        device.synchronize()
        yield Row(f"copy rate, {words}", COPIES * load.size / (device.clock() - begin), "bytes/s")


def pinning(device: Device, module: Any, load: Load) -> Iterator[Row]:
    """Yield the rate of copies to pinned memory that the allocator has already; torch's pin thread has one thread."""
    threads = torch.get_num_threads()
    try:
        for count, words in ((1, "1 thread"), (threads, "all threads")):
            torch.set_num_threads(count)
            load.pin()
            begin = device.clock()
            for _ in range(COPIES):
                load.pin()
            yield Row(f"pin rate, {words}", COPIES * load.size / (device.clock() - begin), "bytes/s")
    finally:
        torch.set_num_threads(threads)


def host_time(device: Device, module: Any, load: Load) -> Iterator[Row]:
    load.step()
    seconds = []
    for _ in range(TIMES):
        device.synchronize()
        seconds.append(_seconds(device, load.step))
    yield Row("host time of a step, empty queue", median(seconds), "s")
    for _ in range(AHEAD):
        load.step()
    yield Row(f"host time of a step, {AHEAD} ahead", _seconds(device, load.step), "s")
    device.synchronize()
    yield Row("time of a step", _seconds(device, lambda: (load.step(), device.synchronize())), "s")


def events(device: Device, module: Any, load: Load) -> Iterator[Row]:
    def mark() -> None:
        for _ in range(EVENTS):
            device.mark()

    mark()
    device.synchronize()
    yield Row("host time of an event", _seconds(device, mark) / EVENTS, "s")


def waits(device: Device, module: Any, load: Load) -> Iterator[Row]:
    for is_blocking, words in ((True, "blocking"), (False, "spinning")):
        event = module.Event(enable_timing=True, blocking=is_blocking)
        for _ in range(AHEAD):
            load.step()
        event.record()
        cpu, begin = time.thread_time(), device.clock()
        event.synchronize()
        yield Row(f"CPU share of a wait, {words}", (time.thread_time() - cpu) / (device.clock() - begin), "1")


def _seconds(device: Device, do: Callable[[], object]) -> float:
    begin = device.clock()
    do()
    return device.clock() - begin


# --- NVML and memory ---


def utilisation(device: Device, module: Any, load: Load) -> Iterator[Row]:
    gpu = device.gpu
    if gpu is None:
        raise LookupError("no NVML")
    device.synchronize()
    load.rest(SAMPLING)
    yield Row("utilisation, idle", gpu.read().utilisation, "1")
    begin = device.clock()
    while device.clock() - begin < SAMPLING:
        load.step()
    yield Row("utilisation, while queued", gpu.read().utilisation, "1")
    device.synchronize()
    yield Row("utilisation, after synchronising", gpu.read().utilisation, "1")
    load.rest(SAMPLING)
    yield Row(f"utilisation, {SAMPLING} s later", gpu.read().utilisation, "1")


def pinned_memory(device: Device, module: Any, load: Load) -> Iterator[Row]:
    """Yield by how much each count of host memory grows with the pinned bytes."""
    before, counted = _resident(), device.pinned_bytes
    kept = [load.pin() for _ in range(COPIES)]
    after = _resident()
    yield Row("pinned", len(kept) * load.size, "bytes")
    yield from (Row(f"pinned in {name}", after[name] - before[name], "bytes") for name in before)
    yield Row("pinned in host_memory_stats (peak)", device.pinned_bytes - counted, "bytes")


def _resident() -> dict[str, int]:
    fields = read_fields(Path("/proc/self/status"), ":")
    return {name: 1024 * int(fields[name].split()[0]) for name in ("RssAnon", "RssFile", "RssShmem")}


PROBES: tuple[Probe, ...] = (
    machine, settings, pinned_memory, copies, pinning, host_time, events, waits, utilisation,
)  # fmt: skip
"""The order matters to the memory alone: what was pinned before is not pinned again."""


def rows_of(device: Device, module: Any, load: Load) -> list[Row]:
    """Return the answers of a device in this process."""
    return [row for probe in PROBES for row in answers(probe.__name__, lambda p=probe: p(device, module, load))]


def rows_of_sessions(start: Start = Session) -> list[Row]:
    """Return the answers of processes that come and go; this process has not opened the accelerator before."""
    found = list(answers("sessions", lambda: openings(start, None, "not held")))
    with started(start, "open") as answer:
        gpu = gpu_of(answer)
    if gpu:
        found += answers("sessions beside NVML", lambda: openings(start, gpu, "held"))
    found += answers("large session", lambda: large_one(start, gpu))
    for what in EXHAUSTS:
        found += answers(what, lambda what=what: [_text(start, what)])
    return found


def _text(start: Start, what: str) -> Row:
    with started(start, "exhaust", what) as answer:
        return Row(f"no memory: {what}", answer["text"])


# --- tables ---


def folder_of(name: str, recorded: Path = RECORDED) -> Path:
    """Return the folder of a device's tables."""
    folder = recorded / re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(folder: Path, rows: Iterable[Row]) -> None:
    """Write the rows as a CSV file and as a table in Markdown."""
    kept = list(rows)
    with (folder / "probes.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([Row._fields, *kept])
    lines = (f"| {row.name} | {_shown(row.value)} | {row.unit} |".replace("|  |", "| |") for row in kept)
    text = "\n".join(["| probe | value | unit |", "|---|---|---|", *lines])
    (folder / "probes.md").write_text(text + "\n", encoding="utf-8")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def main(start: Start = Session) -> int:
    try:
        with started(start, "open") as answer:
            name = answer["name"]
    except LookupError as error:
        print(f"nothing to probe: {error}", file=sys.stderr)
        return 2
    folder, rows = folder_of(name), rows_of_sessions(start)
    write(folder, rows)  # what there is, should the rest not end
    device = open_device("auto")
    rows += rows_of(device, torch.get_device_module(device.torch_device), Load(device))
    write(folder, rows)
    print((folder / "probes.md").read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
