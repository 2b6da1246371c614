"""Processes on the accelerator, started one by one: each opens it, says so in a line of JSON, and ends when told to.

python -m studies.gpu.sessions open
python -m studies.gpu.sessions hold 0.85                # and keeps so much of what is free
python -m studies.gpu.sessions exhaust "cuBLAS handle"  # and says what autotune calls the error
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from autotune.machine.nvml import NvmlGpu, open_gpu
from autotune.measure.device import AcceleratorDevice, CpuDevice, open_device
from studies.gpu.load import FULL_CARD, Load, failure, fill

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60.0
"""Seconds in which a process must have ended."""
OPENINGS = 3
HELD = 0.85
"""Share of the free memory that the large session holds."""
GIVEN_BACK = 64 * 2**20
"""Bytes within which the memory of an ended process counts as free again."""


class Session:
    """A process on the accelerator."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "studies.gpu.sessions", *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.answer: dict[str, Any] = json.loads(line) if line else {"error": f"exit code {self._process.wait()}"}
        """What it has said."""

    def end(self) -> float:
        """End it, and return the seconds that this took; one that does not end is killed."""
        begin = time.monotonic()
        try:
            self._process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return time.monotonic() - begin


Start = Callable[..., Session]


@contextmanager
def started(start: Start, *arguments: str) -> Iterator[dict[str, Any]]:
    """Start a process, and end it when done. Raises ``LookupError`` where it has no accelerator."""
    session = start(*arguments)
    try:
        if "error" in session.answer:
            raise LookupError(session.answer["error"])
        yield session.answer
    finally:
        session.end()


def openings(start: Start, gpu: NvmlGpu | None, held: str) -> Iterator[tuple[str, Any, str]]:
    """Yield the seconds to open the accelerator; the driver may take it down meanwhile, unless NVML is held."""
    seconds, contexts = [], []
    for _ in range(OPENINGS):
        before = gpu.used_bytes() if gpu else None
        with started(start, "open") as answer:
            seconds.append(answer["seconds"])
            if gpu and before is not None and (used := gpu.used_bytes()) is not None:
                contexts.append(used - before - answer["reserved"])
    yield f"open a session, NVML {held}: first", seconds[0], "s"
    yield f"open a session, NVML {held}: longest of the others", max(seconds[1:]), "s"
    if contexts:
        yield "context of a process", min(contexts), "bytes"


def large_one(start: Start, gpu: NvmlGpu | None) -> Iterator[tuple[str, Any, str]]:
    """Yield the seconds to end a session that holds most of the card, and until its memory is free."""
    before, session = gpu.used_bytes() if gpu else None, start("hold", str(HELD))
    begin = time.monotonic()
    ended = session.end()
    if "error" in session.answer:
        raise LookupError(session.answer["error"])
    yield "held by the large session", session.answer["reserved"], "bytes"
    yield "end the large session", ended, "s"
    if gpu and before is not None:
        while (gpu.used_bytes() or 0) > before + GIVEN_BACK and time.monotonic() - begin < LIMIT:
            time.sleep(0.05)
        yield "until its memory is free", time.monotonic() - begin, "s"


def gpu_of(answer: dict[str, Any]) -> NvmlGpu | None:
    """Return the GPU of a session by NVML, which is held from then on."""
    return open_gpu(answer.get("uuid"))


def main() -> None:
    do, what = (*sys.argv[1:], "0")[:2]
    try:
        answer, kept = (text_of(what), []) if do == "exhaust" else opened(float(what))
    except LookupError as error:
        answer, kept = {"error": str(error)}, []
    print(json.dumps(answer), flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()
    del kept


def accelerator() -> AcceleratorDevice:
    """Open it. Raises ``LookupError`` where there is none."""
    device = open_device("auto")
    if isinstance(device, CpuDevice):
        raise LookupError(f"torch {torch.__version__} finds no accelerator here")
    return device


def opened(share: float) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Open the accelerator, and take a share of its free memory; return what to say, and what to keep."""
    begin = time.monotonic()
    device = accelerator()
    kept = [torch.zeros(1, device=device.torch_device)]
    device.synchronize()
    seconds = time.monotonic() - begin
    kept += fill(device, share)
    peaks = device.peaks()
    reserved = peaks[1] if peaks else 0
    return {"name": device.name, "uuid": device.uuid, "seconds": seconds, "reserved": reserved}, kept


def text_of(what: str) -> dict[str, Any]:
    """Run out of memory in one way, and say what autotune calls it."""
    if what != FULL_CARD:
        device = accelerator()
        return {"text": failure(lambda: Load(device).exhaust(what))}
    with started(Session, "hold", "1"):
        return {"text": failure(lambda: accelerator().synchronize())}


if __name__ == "__main__":
    main()
