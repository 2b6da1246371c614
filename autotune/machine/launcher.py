"""Launchers of ranks: those that have started this process, and those that a script starts.

Of the ranks of torchrun or accelerate launch the first works for all: it measures with ranks of its own. The others
wait for its end, and have its exit code.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile, groupby, pairwise
from typing import Any

from autotune.errors import UsageError

WITHOUT_RANKS = {
    "SLURM_STEP_TASKS_PER_NODE": ("srun", "SLURM_PROCID"),  # such as 8(x2); one task on each node is no rank
    "OMPI_COMM_WORLD_LOCAL_SIZE": ("mpirun", "OMPI_COMM_WORLD_RANK"),
    "MPI_LOCALNRANKS": ("mpirun", "PMI_RANK"),
}
"""Variables with the number of a host's processes, of launchers that give each its own GPU and CPUs; their names, and
the variable with the number of a process."""
OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
"""How the names of the variables begin that torchrun gives to ranks."""
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start a script in several processes."""
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
"""Events of Python's audit hooks by which a program is started."""
MPI = ("mpirun", "mpiexec", "horovodrun")
PROGRAMS = ("torchrun", "deepspeed", "accelerate", *MPI)
"""Programs that start a script in several processes, the last three any program."""
PYTHON, SHELL = re.compile(r"(i?python|pypy)[\d.]*[a-z]?(\.exe)?"), re.compile("(ba|da|k|z)?sh")
PROGRAM = re.compile("|".join((PYTHON.pattern, SHELL.pattern, *PROGRAMS)))
WRAPPER = re.compile("env|nohup|nice|ionice|numactl|taskset|timeout|time|stdbuf|sudo|srun|conda|uv|poetry|if|!|do")
"""Programs that start the one in their arguments, and words of a shell before a program."""
START_SECONDS, NAP = 30.0, 0.05
"""Seconds in which the processes of a launcher start, at most, and between two looks whether the first has."""


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those of a launcher; 0 ``ranks`` where they cannot be measured, with the reason."""

    rank: int
    ranks: int
    refusal: str = ""

    @classmethod
    def of_environment(cls) -> Launch | None:
        """Return the launch that this process is part of; ``None`` where it was started alone."""
        names = os.environ
        for size, (launcher, number) in WITHOUT_RANKS.items():
            if (tasks := (names.get(size) or "1").partition("(")[0]) != "1":
                way = f"start one, which has all of them, with --ranks {tasks}"
                refusal = f"{launcher} started {tasks} processes, each with its own share of GPUs and CPUs: {way}"
                return cls(int(names.get(number) or 0), 0, refusal)
        world, local = names.get("WORLD_SIZE") or "1", names.get("LOCAL_WORLD_SIZE", "")
        if world == "1":
            return None
        refusal = f"a launcher started {world} processes, {local or 'an unknown number'} of them on this host"
        refusal = "" if local == world and sys.platform == "linux" else f"{refusal}: start autotune alone, with --ranks"
        return cls(int(names.get("RANK") or 0), 0 if refusal else int(world), refusal)

    def run(self, work: Callable[[], int]) -> int:
        """Do the work of all in the first rank, and wait for it in the others; return its exit code in each."""
        if self.refusal:
            return UsageError.exit_code if self.rank else work()
        with socket.socket(socket.AF_UNIX) as door:
            address = f"\0autotune-{os.getuid()}-{os.environ.get('MASTER_PORT', '')}"  # no other host can reach it
            return self._follow(door, address) if self.rank else self._lead(door, address, work)

    def _lead(self, door: socket.socket, address: str, work: Callable[[], int]) -> int:
        door.bind(address)
        door.listen(self.ranks)
        for name in [name for name in os.environ if name.startswith(OF_RANKS)]:
            del os.environ[name]
        if os.environ.get("OMP_NUM_THREADS") == "1":
            del os.environ["OMP_NUM_THREADS"]  # torchrun's own; ranks get it again
        try:
            code = work()
        except SystemExit as end:  # --help
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        door.settimeout(START_SECONDS)
        with suppress(OSError):  # one that has ended
            for _ in range(1, self.ranks):
                door.accept()[0].send(bytes([code]))
        return code

    def _follow(self, door: socket.socket, address: str) -> int:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank has it too, and ends in its own time
        end = time.monotonic() + START_SECONDS
        with suppress(ConnectionError):  # it was killed
            while door.connect_ex(address) and time.monotonic() < end:
                time.sleep(NAP)
            return int.from_bytes(door.recv(1) or b"\1")
        return 1

    def ranks_for(self, command: str, asked: int | None) -> int:
        """Return the number of ranks for a command. Raises ``UsageError``."""
        if self.refusal or asked not in (None, self.ranks):
            other = f"the launcher started {self.ranks} ranks, not {asked}: leave out --ranks"
            raise UsageError(f"{command}: {self.refusal or other}")
        return self.ranks


def heed_launches(script: str, module: str | None, hear: Callable[[], object]) -> None:
    """Have ``hear`` called before this process starts the script once more, or a launcher of scripts."""
    this, modules = os.getpid(), (*MODULES, *([module, f"{module}.__main__"] if module else ()))
    launches = _Launches(os.path.realpath(script), modules)

    def heed(event: str, given: tuple[Any, ...]) -> None:
        if event in STARTS and os.getpid() == this and launches.has(event, given):
            hear()

    sys.addaudithook(heed)


@dataclass(frozen=True, slots=True)
class _Launches:
    """Commands that start a script once more, or a launcher of scripts, also by their modules."""

    script: str
    modules: Sequence[str]

    def has(self, event: str, given: tuple[Any, ...]) -> bool:
        """Return whether an event of an audit hook starts a command among them; never raises."""
        with suppress(Exception):  # a command that cannot be read will not start, or is too odd for a launch
            if event == "os.system":
                return self._in_shell(os.fsdecode(given[0]))
            return self._has([os.fsdecode(word) for word in (given[0], *given[1][1:])])  # its file, not its name for it
        return False

    def _in_shell(self, text: str) -> bool:
        return any(map(self._has, _commands(text[:10_000])))  # longer ones cost time

    def _has(self, words: Sequence[str]) -> bool:
        words = list(dropwhile(re.compile(r"\w+=").match, words))
        if words and WRAPPER.fullmatch(os.path.basename(words[0])):
            words = list(dropwhile(lambda word: not PROGRAM.fullmatch(os.path.basename(word)), words))
        if not words:
            return False
        file, *rest = words
        name = os.path.basename(file)
        if PYTHON.fullmatch(name):
            return self._in_python(rest)
        if SHELL.fullmatch(name):
            return self._in_shell(next(text for flag, text in pairwise(rest) if re.fullmatch(r"-\w*c", flag)))
        if name in MPI:
            return any(PYTHON.fullmatch(os.path.basename(word)) for word in rest)
        is_launcher = name in ("torchrun", "deepspeed") or [name, *rest[:1]] == ["accelerate", "launch"]
        return is_launcher or (os.sep in file and self._is_script(file))

    def _in_python(self, words: Sequence[str]) -> bool:
        for before, word in pairwise(["", *words]):
            if flag := re.match(r"-[a-zA-Z]*([cm])$", before):
                return flag[1] == "m" and word in self.modules
            if not (re.match("-.", word) or re.match("-[WX]$", before)):
                return self._is_script(word)
        return False

    def _is_script(self, word: str) -> bool:
        """Return whether a word is the script's path, or its name in another folder, which a shell may go to."""
        is_named = os.sep in word and os.path.basename(word) == os.path.basename(self.script)
        return os.path.realpath(word) == self.script or (is_named and not os.path.isabs(word))


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the commands in a shell's text, as words. Raises ``ValueError``."""
    ends = ";&|()<>\n"
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("`", "\n"), posix=True, punctuation_chars=ends)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    for is_end, words in groupby(lexer, lambda word: bool(word) and set(word) <= set(ends)):
        if not is_end:
            yield list(words)
