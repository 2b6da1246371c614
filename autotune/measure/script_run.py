"""A script in its greenlet: how it is started and left, and why it has ended."""

from __future__ import annotations

import builtins
import functools
import gc
import hashlib
import multiprocessing.context
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from greenlet import getcurrent, greenlet

from autotune.errors import UserCodeError
from autotune.measure.children import TRAINS, refuse_training_children, remedy, tell
from autotune.measure.failures import is_known, user_traceback
from autotune.measure.rank_group import ALONE, RankGroup
from autotune.measure.rank_launch import of_rank
from autotune.measure.writes import Hold, refuse_large
from autotune.sites import place_of
from autotune.workload import Script

LEAST_STEPS = 20
"""Steps of an optimizer from which a script that ends is started again."""


class StoppedError(BaseException):
    """Ends a thread of the script's, where the script is refused."""


class ScriptRun:
    """A script that runs as ``__main__`` beside the measuring code, in one thread with it."""

    def __init__(self, source: Script, hold: Hold | None = None, *, group: RankGroup = ALONE) -> None:
        self.source, self.hold, self.group = source, hold, group
        self._file = Path(source.path).resolve()
        self._working_folder, self._folder = Path.cwd(), source.folder
        self.name = Path(source.path).name
        self._has_asked = False
        """Whether it has asked for input."""
        self._pid = os.getpid()
        self._modes = self._first_modes = _Modes.now()
        self._end: BaseException | None = None
        self._refusal: UserCodeError | None = None
        """Why it cannot be measured, once that is known."""
        self._error_at: int | None = None
        """Steps after which it has ended by an error."""

    def fingerprint(self, workload: str) -> str:
        """Return a digest of the script, its arguments and what it trains; other code is in the ``workload``'s own."""
        parts = [workload, repr(list(self.source.arguments)), hashlib.sha256(self._file.read_bytes()).hexdigest()]
        parts += [self.source.loop] if self.source.loop else []
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def install(self) -> None:
        """Hear of input, of large files, and of children that would train."""
        self._measuring = getcurrent()
        ask_user = builtins.input

        def ask_nobody(*given: Any) -> str:
            self._has_asked = True
            return ask_user(*given)

        builtins.input = ask_nobody
        if self.hold is not None:
            refuse_large(self._refuse_large)
        are_held = self.hold is None or self.hold.means != "python"
        refuse_training_children(str(self._file), self.source.module, self._refuse_children, are_held=are_held)
        sys.path.insert(0, str(self._folder))

    def launch(self) -> None:
        """Run the script until it asks for a batch, or ends."""
        self._modes = self._first_modes
        run = ScriptRun._run if self.group.size == 1 else of_rank(self.group.rank, ScriptRun._run)
        self._script = greenlet(functools.partial(run, self))
        self.resume(None)

    def launch_again(self) -> None:
        """Run the script once more in this process, and in all ranks, where its files are as at first."""
        self._end = None
        gc.collect()  # its model, before there is another
        allow_settings_again()
        self.group.barrier()
        if self.hold is not None and self.group.leads:
            self.hold.begin_anew()
        self.group.barrier()
        os.chdir(self._working_folder)
        self.launch()

    def resume(self, batch: Any) -> None:
        """Give the script a batch that it has asked for, and wait for it to ask again, or to end."""
        ours = _Modes.now()
        self._modes.apply()
        self._script.switch(batch)
        self._modes = _Modes.now()
        ours.apply()
        if self._refusal is not None:
            raise self._refusal

    def wait(self) -> Any:
        """Return the batch that the measuring code gives the script, which waits meanwhile."""
        return self._measuring.switch()

    @property
    def has_ended(self) -> bool:
        """Whether the script has come to its end."""
        return self._script.dead

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is not the script that runs now, but the measuring code, or a process that was forked."""
        return os.getpid() != self._pid or getcurrent() is self._measuring

    def _run(self, _: Any) -> None:
        try:
            self.source.run()
        except StoppedError:
            pass
        except BaseException as error:
            self._end = error
        if os.getpid() != self._pid:  # a process that the script has forked
            os._exit(1 if self._end else 0)

    def ends_by_itself(self, lived: int) -> bool:
        """Return whether the script has ended, after so many steps, as it would with every setting.

        An error may be the end of a schedule: then it comes after the same number of steps each time. Of several ranks
        one alone may have failed, for which the others wait.
        """
        end = self._end
        if isinstance(end, SystemExit) and isinstance(end.__context__, Exception):
            end = end.__context__
        if end is None or (isinstance(end, SystemExit) and end.code in (None, 0)):
            return True
        is_of_users = isinstance(end, (Exception, SystemExit)) and not isinstance(end, UserCodeError)
        if not is_of_users or is_known(end) or lived < LEAST_STEPS or self.group.size > 1:
            return False
        is_first, self._error_at = self._error_at in (None, lived), lived
        return is_first

    def failure(self, lived: int, *, has_loop: bool, loops: Iterable[str] = ()) -> BaseException:
        """Return why the script has ended after so many steps, in its training loop or before, and its ``loops``."""
        when = f"after {lived} steps of an optimizer"
        if isinstance(self._end, SystemExit) and isinstance(self._end.__context__, Exception):
            return self._end.__context__  # that it was about to tell
        if isinstance(self._end, SystemExit):
            return UserCodeError(f"{self.name} called sys.exit({self._end.code!r}) {when}")
        if isinstance(self._end, EOFError) and self._has_asked:
            return UserCodeError(f"{self.name} asks for input, and there is nobody to answer: pass it as an argument")
        if self._end is not None and "environment variable RANK expected" in str(self._end):  # torch's words
            way = "pass --ranks 2 where torchrun --nproc-per-node 2 starts it"
            return UserCodeError(f"{self.name} trains in the ranks of a launcher: {way}", user_traceback(self._end))
        if self._end is not None:
            return self.hold.explain(self._end) if self.hold else self._end
        if has_loop or (lived and self.source.samples_per_step):
            return UserCodeError(f"{self.name} ended {when}: its loop is too short to be measured; pass more epochs")
        if self.source.loop is not None:
            drew = f"it drew from DataLoaders in {', '.join(loops)}" if loops else "it drew from no DataLoader"
            return UserCodeError(f"--loop {self.source.loop}: {self.name} ended {when} without a loop there; {drew}")
        return UserCodeError(
            f"{self.name} ended {when}, and none of them came between two batches of one DataLoader: autotune varies "
            f"the DataLoader that training iterates; {self.counting}"
        )

    @property
    def counting(self) -> str:
        """The command that measures the script without a DataLoader, in words."""
        name = self.source.name
        return f"python -m autotune compare '{name}' '{name} --other' counts its steps"

    def require_own_process(self) -> None:
        """Refuse the script where it asks in a process that it has forked."""
        if os.getpid() != self._pid:
            tell(self._pid)

    def require_own_thread(self, what: str) -> None:
        """Refuse the script where it asks in another thread than its own."""
        if getcurrent() is not self._script:
            self.stop(f"iterates {what} in another thread, where it is not measured")

    def stop(self, why: str) -> NoReturn:
        """Refuse the script, which cannot be measured."""
        self._refuse(f"{self.name} {why}")

    def _refuse(self, told: str) -> NoReturn:
        """Leave the script for good: nothing that it catches keeps it going."""
        self._refusal = self._refusal or UserCodeError(told)
        self.require_own_process()
        if threading.current_thread() is not threading.main_thread():
            os.kill(self._pid, TRAINS)  # the main thread waits for batches
            raise StoppedError
        if getcurrent() is self._measuring:
            raise self._refusal
        self._measuring.switch()
        raise StoppedError  # a script that is refused is never switched to

    def _refuse_large(self, told: str) -> NoReturn:
        """Refuse the script, which is about to change a large file; a worker tells of it by its error."""
        if os.getpid() != self._pid:
            raise UserCodeError(told)
        self._refuse(told)

    def _refuse_children(self) -> NoReturn:
        place, inside = place_of(sys._getframe(1), self.source)
        self._refuse(f"{place} trains in child processes, which are not measured: {remedy(inside)}")


@dataclass(frozen=True, slots=True)
class _Modes:
    """The modes of torch that belong to the thread: autograd's and those of autocast, by device."""

    grad: bool
    cache: bool
    autocast: Mapping[str, tuple[bool, torch.dtype]]
    device: torch.device
    """The default one."""

    @classmethod
    def now(cls) -> _Modes:
        kinds = ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)
        casts = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
        return cls(torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), casts, torch.get_default_device())

    def apply(self) -> None:
        torch.set_grad_enabled(self.grad)
        torch.set_autocast_cache_enabled(self.cache)
        for kind, (enabled, dtype) in self.autocast.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        if self.device != torch.get_default_device():
            torch.set_default_device(None if self.device.type == "cpu" else self.device)


def allow_settings_again() -> None:
    """Let a script make settings once more that torch and Python allow once in a process."""
    torch.set_num_interop_threads = lambda nthreads: None
    multiprocessing.context._default_context._actual_context = None  # type: ignore[attr-defined]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
