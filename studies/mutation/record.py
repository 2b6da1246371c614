"""Make forty slips of a developer in the code, one at a time: does the README's test command notice each?

    python -m studies.mutation.record
    python -m studies.mutation.record 0 17  # some of them again, by their place in faults.py, beside what is recorded

All is done in a copy of the repository's files. The tests of the same name are run first, and all of them where those
notice nothing: what a part of the command notices the whole notices. Without any fault they have to pass; ``seconds``
says how long that took. Writes ``recorded/faults.json`` beside this script.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

from autotune.machine.host import inspect_host
from studies.mutation.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).resolve().parent / "recorded" / "faults.json"
LIMIT = 15 * 60.0
"""Seconds after which tests that have not ended have noticed a fault."""
PASSED, FAILED, STOPPED, NONE_RUN = 0, 1, 2, 5
"""What pytest exits with; side by side it stops after the first that fails."""
OUT_OF_TIME = f"no end after {LIMIT:.0f} s"
SHOWN = 4000
"""Characters of the output that an error shows."""


def main() -> None:
    chosen = [FAULTS[int(number)] for number in sys.argv[1:]]
    found = recorded() if chosen else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        copy(folder)
        about = without_fault(folder)
        for fault in chosen or FAULTS:
            found[fault] = struck(folder, fault)
            print(json.dumps(found[fault]), file=sys.stderr)
            write({**about, "faults": [found[each] for each in FAULTS if each in found]})


def recorded() -> dict[Fault, dict[str, object]]:
    if not RECORDED.exists():
        return {}
    known = json.loads(RECORDED.read_text(encoding="utf-8"))["faults"]
    return {Fault(each["path"], each["before"], each["after"]): each for each in known}


def write(document: dict[str, object]) -> None:
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def copy(folder: Path) -> None:
    """Copy all files of the repository, those that git does not know yet, too."""
    for name in filter(None, git("ls-files", "-coz", "--exclude-standard").split("\0")):
        if (ROOT / name).is_file():  # git lists what was deleted, too
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def without_fault(folder: Path) -> dict[str, object]:
    """Run all tests without any fault, and say where and how; an error where they fail."""
    begin, host = time.monotonic(), inspect_host()
    code, output = run_tests(folder)
    if code != PASSED:
        raise SystemExit(f"without a fault: {OUT_OF_TIME if code is None else f'exit code {code}'}\n{output[-SHOWN:]}")
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": {"cpu_model": host.cpu_model, "cpus": host.cpus, "versions": dict(host.versions)},
        "command": command(),
        "commit": git("rev-parse", "HEAD").strip(),
        "seconds": round(time.monotonic() - begin, 1),
    }


def command() -> str:
    """Return what the README's test command runs once all is installed."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _, tests = re.findall(r"<!-- command -->\n```sh\n(.*?)\n```", readme, flags=re.DOTALL)
    return tests.rpartition("&&")[2].strip()


def struck(folder: Path, fault: Fault) -> dict[str, object]:
    """Make one fault, and say what noticed it."""
    begin, file = time.monotonic(), folder / fault.path
    sound = file.read_text(encoding="utf-8")
    if sound.count(fault.before) != 1:
        raise ValueError(f"{fault.path}: not exactly once in it: {fault.before}")
    file.write_text(sound.replace(fault.before, fault.after), encoding="utf-8")
    try:
        by = noticed_by(folder, fault)
    finally:
        file.write_text(sound, encoding="utf-8")
    return {
        "path": fault.path,
        "before": fault.before,
        "after": fault.after,
        "caught": by is not None,
        "by": by,
        "seconds": round(time.monotonic() - begin, 1),
    }


def noticed_by(folder: Path, fault: Fault) -> str | None:
    """Return the first test that fails, or that the time was over; ``None`` where all pass."""
    for files in dict.fromkeys([fault.likely, ()]):
        code, output = run_tests(folder, files)
        if code is None:
            return OUT_OF_TIME
        if code in (FAILED, STOPPED):
            return first_failed(output)
        if code not in (PASSED, NONE_RUN):
            raise RuntimeError(f"{fault}: exit code {code}\n{output[-SHOWN:]}")
    return None


def run_tests(folder: Path, files: Iterable[str] = ()) -> tuple[int | None, str]:
    """Run the tests until one fails; return the exit code, ``None`` where the time was over, and the output."""
    program, *arguments = shlex.split(command())
    assert program == "python"
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    with tempfile.TemporaryFile() as output:  # a pipe would stay open as long as anything that was started
        process = psutil.Popen(
            [sys.executable, *arguments, "-x", *files], cwd=folder, env=environment, stdout=output, stderr=output
        )
        try:
            code = process.wait(LIMIT)
        except psutil.TimeoutExpired:
            code = None
        finally:
            end(process)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def end(process: psutil.Popen) -> None:
    """End what still runs of the tests."""
    with suppress(psutil.NoSuchProcess):
        for each in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def first_failed(output: str) -> str:
    """Return the first test of pytest's short summary."""
    summary = output.rpartition("short test summary info")[2]
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", summary, flags=re.MULTILINE)
    if named is None:
        raise RuntimeError(f"no test is named as failed\n{output[-SHOWN:]}")
    return named[1]


if __name__ == "__main__":
    main()
