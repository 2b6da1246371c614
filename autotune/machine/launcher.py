"""Launchers of ranks: those that have started this process, and those that a script starts.

Of the ranks of torchrun or accelerate launch the first works for all: it measures with ranks of its own. The others
wait for its end, and have its exit code.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
PROGRAMS = ("torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun")
"""Programs that start a script in several processes."""
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that do."""
STARTS = {"subprocess.Popen": 1, "os.system": 0, "os.exec": 1, "os.posix_spawn": 1}
"""Events of Python's audit hooks by which a program is started, and the place of its command in their arguments."""
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

    def heed(event: str, given: tuple[Any, ...]) -> None:
        place = STARTS.get(event)
        if place is not None and os.getpid() == this and _is_launch(given[place], script, modules):
            hear()

    sys.addaudithook(heed)


def _is_launch(command: Any, script: str, modules: Sequence[str]) -> bool:
    """Return whether a command starts the script once more, or a launcher of scripts, also by their modules."""
    parts = [command] if isinstance(command, (str, bytes)) else list(command)
    words = [word for part in parts for word in os.fsdecode(part).split()]  # a shell has all in one part
    return any(os.path.basename(word) in PROGRAMS for word in words[:3]) or any(
        word in modules or (word.endswith(".py") and os.path.realpath(word) == os.path.realpath(script))
        for word in words
    )
