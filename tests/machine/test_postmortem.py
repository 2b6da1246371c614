from __future__ import annotations

import pytest

from autotune.machine.postmortem import describe_end, describe_silence, describe_worker, last_words, lost_batch
from autotune.outcome import Outcome

CRASH = """their own words
Fatal Python error: Segmentation fault

Current thread 0x00007f0000000000 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/numpy/core.py", line 7 in dot
  File "/home/me/project/data.py", line 31 in decode
  File "/home/me/project/data.py", line 12 in __getitem__

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""
LOST = "RuntimeError: unable to allocate shared memory(shm) for file </torch_17_1_6>: No space left on device (28)\n"
FILES = "Traceback (most recent call last):\n  ...\nOSError: [Errno 24] Too many open files\n"


@pytest.mark.parametrize(
    ("code", "kills", "outcome", "message"),
    [
        (3, 0, Outcome.CRASHED, "the process ended without an answer (exit code 3)"),
        (-9, None, Outcome.HOST_OOM, "the process was killed (signal 9), as the kernel does when memory runs out"),
        (-9, 1, Outcome.HOST_OOM, "the process was killed (signal 9) by the kernel, which had run out of memory"),
        (-9, 0, Outcome.HOST_OOM, "the process was killed (signal 9), but not by the kernel for want of memory"),
        (-7, 0, Outcome.SHM, "bus error: shared memory (/dev/shm) was too small"),
        (-11, 0, Outcome.CRASHED, "the process ended without an answer (segmentation fault, signal SIGSEGV)"),
        (-4, 0, Outcome.CRASHED, "the process ended without an answer (illegal instruction: a library was built for"),
        (-15, 0, Outcome.CRASHED, "the process ended without an answer (signal SIGTERM)"),
        (-40, 0, Outcome.CRASHED, "the process ended without an answer (signal 40)"),
    ],
)
def test_an_exit_code_has_its_outcome_and_its_words(
    code: int, kills: int | None, outcome: Outcome, message: str
) -> None:
    found, text = describe_end(code, "", kills)
    assert (found, text[: len(message)]) == (outcome, message)


@pytest.mark.parametrize(
    ("output", "end"),
    [
        (CRASH, "(segmentation fault, signal SIGSEGV) in decode, data.py line 31"),
        ("".join(line for line in CRASH.splitlines(True) if "/home/" not in line), " in dot, core.py line 7"),
        (CRASH.partition("most recent call first):")[2], "SIGSEGV)"),
    ],
    ids=["in the user's own code", "outside of it, where it was", "frames without a crash are no place"],
)
def test_a_crash_is_placed(output: str, end: str) -> None:
    assert describe_end(-11, output, 0)[1].endswith(end)


def test_last_words_hold_the_frames_and_not_what_was_imported() -> None:
    words = last_words(CRASH + "x")
    assert words.startswith("their own words\n")
    assert "line 31 in decode\n" in words
    assert "Extension modules" not in words
    assert len(last_words("y" * 50_000)) == 4000


def test_silence_is_a_timeout_unless_shared_memory_explains_it() -> None:
    silence = "no answer within 3 s"
    assert describe_silence(3, "", shared_memory_full=False) == (Outcome.TIMEOUT, silence)
    assert describe_silence(3, CRASH, shared_memory_full=False)[1] == f"{silence}: it was in decode, data.py line 31"
    assert describe_silence(3, "", shared_memory_full=True)[0] is Outcome.SHM
    assert describe_silence(3, LOST, shared_memory_full=False)[0] is Outcome.SHM
    words = "too many open files for the tensors in flight; allow more (ulimit -n), or have fewer batches in flight"
    assert describe_silence(3, FILES, shared_memory_full=False) == (Outcome.SHM, f"{silence}: {words}")
    assert describe_worker("EOFError", FILES) == (Outcome.SHM, f"{words}: EOFError")  # not by what training read


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("RuntimeError: unable to write to file </torch_5_5_5>: No space left on device (28)\n", True),
        ("RuntimeError: unable to resize file </torch_5_5_5> to the right size: File too large (27)\n", True),
        ("OSError: [Errno 27] File too large: '/home/me/cache'\n", False),
        ("RuntimeError: unable to mmap 64 bytes from file </torch_5_5_5>: Cannot allocate memory (12)\n", False),
        ("OSError: [Errno 28] No space left on device: '/home/me/cache'\n", False),
        (FILES, True),
        ("their own words: too many open files\n", False),
    ],
)
def test_a_lost_batch_is_known_by_torchs_own_words(output: str, expected: bool) -> None:
    assert (lost_batch(output) is not None) is expected


@pytest.mark.parametrize(
    ("signal", "outcome", "message"),
    [
        ("", Outcome.WORKER_DIED, "reset"),
        ("segmentation fault", Outcome.WORKER_DIED, "a loader worker died (segmentation fault): reset"),
        ("bus error", Outcome.SHM, "bus error in a loader worker: shared memory (/dev/shm) was too small"),
    ],
)
def test_a_dead_worker_is_known_by_what_torch_wrote_in_it(signal: str, outcome: Outcome, message: str) -> None:
    output = f"ERROR: Unexpected {signal} encountered in worker.\n" if signal else ""
    assert describe_worker("reset", output) == (outcome, message)
