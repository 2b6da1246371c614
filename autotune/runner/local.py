"""The tuner's side of the process boundary: the process for a configuration, and its outcome."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import psutil

from autotune.config import Config
from autotune.encoding import from_json, to_json
from autotune.errors import NothingFeasibleError, ScriptEndsError, UsageError, UserCodeError
from autotune.machine.descendants import FIRST, LATER
from autotune.machine.host import Host, inspect_host
from autotune.machine.nvml import open_gpu
from autotune.outcome import Outcome
from autotune.probes import FirstLosses, NumericsCheck
from autotune.records import Attempt, Request, ScriptFacts, WorkloadFacts
from autotune.runner.card import MOST_NAMED, Cards, holders
from autotune.runner.device_lock import DeviceLock
from autotune.runner.process import MeasuringProcess, ProcessLostError
from autotune.runner.revision import extract
from autotune.torch_import import OtherEnvironmentError, Variables
from autotune.workload import ImportedWorkload, PickledWorkload, Script, WorkloadSource

LOAD_LIMIT = 300.0
"""Seconds in which a workload must have been built for the first time."""
MOST_PATIENCE = 60.0
"""Seconds, a tenth of the budget at most, for which a script that trains on other batches is waited for."""
LEAST_RELOAD, RELOAD_FACTOR = 30.0, 10
"""After that it hangs once it takes so many seconds, and so many times the longest yet."""
DEVICE_PATIENCE = 60.0
"""Seconds for which an accelerator is waited for that another tuner holds."""
OF_ONE_PROCESS = ("numerics", "noise", "anatomy", "store")
"""Parts measured in one process, also where several ranks train: they are about the model, not the ranks."""
LONGEST_SLEEP = 1.0
"""Seconds of the machine's sleep from which a measurement does not count."""
MAX_PROCESSES = 3
"""Processes that are kept ready, each with its own number of threads."""
KEPT_SECONDS = 10.0
"""Seconds to a script's first batch from which the files of its first start lie beneath the later ones."""
REMEDIES = {
    Outcome.DEVICE_OOM: "end what holds the accelerator's memory, or pass another --device",
    Outcome.HOST_OOM: "end what holds the machine's memory, or load less",
    Outcome.SHM: "allow more shared memory (/dev/shm) and open files (ulimit -n)",
    Outcome.SUSPECT: "wait until the others have ended",
}
"""What to do where the machine, and not the user's code, did not allow the workload to be loaded."""
WAITING = "waiting for the accelerator: another autotune measures on it, {holder}"
LEAST_CPUS = 0.1
"""CPUs that a process must have used to be named."""


class ProcessRunner:
    """Measures on this machine, in sessions: processes that have loaded the workload.

    On a CPU, configurations with the same threads, ranks and options share a session. On an accelerator a session
    trains with one batch size and precision, because memory fragments and kernels are chosen per process. Options stay
    on a model and in its process, so each set of them has sessions of its own.
    A session that forks loader workers never reads the dataset, or workers would inherit its offsets, threads and
    locks: what reads has a session of its own, for all probes of steps and losses. ``request.fresh`` always opens a new
    one, and a failure ends the one it happened in. The user's code that fails after batches of other sizes, whose state
    a model may keep, is tried once more in a new one.
    """

    def __init__(
        self,
        source: WorkloadSource,
        device: str = "auto",
        *,
        patience: float = DEVICE_PATIENCE,
        on_wait: Callable[[str], None] = lambda message: None,
        oversubscribe_ranks: bool = False,
        load_limit: float = LOAD_LIMIT,
        beside: ProcessRunner | None = None,
        python: str | None = None,
    ) -> None:
        """Take the workload and the device; ``on_wait`` is told who holds an accelerator, and where writes go.

        Another tuner is waited for, ``patience`` seconds at most, and the workload, ``load_limit``. More ranks than the
        host has CPUs and GPUs are started only where ``oversubscribe_ranks`` says so. A runner ``beside`` another takes
        turns with it, and shares its processes and accelerators. ``python`` is another interpreter.
        """
        self._source = source
        self._patience, self._load_limit = patience, min(load_limit, LOAD_LIMIT)
        self._on_wait = on_wait
        self._oversubscribe_ranks = oversubscribe_ranks
        self._pickled: IO[bytes] | None = None
        self._locks: dict[str, DeviceLock] = beside._locks if beside else {}
        self._cards = Cards()
        self._device, self._python = device, python
        self._processes: dict[tuple[Any, ...], MeasuringProcess] = beside._processes if beside else {}
        self._runners: list[ProcessRunner] = beside._runners if beside else []
        self._runners.append(self)
        self._first = f"{FIRST}-{len(self._runners)}"
        """Folder of the scratch folder with what its first session wrote."""
        self._session: MeasuringProcess | None = None
        self._common: tuple[Any, ...] = ()
        """The settings of the session's configurations."""
        self._step: Any = None
        """The step that it is for; ``None`` before its first."""
        self._sizes = set[int]()
        """The batch sizes that it was asked for."""
        self._on_cpu = False
        self.loading = self._opening = 0.0
        """Seconds that a session took to load the workload, at most, and that opening the last ones took."""
        self._room = list[int]()
        """The most device memory that each rank could have so far, in bytes."""
        self.script: ScriptFacts | None = None
        """The facts of a script, once it was inspected."""
        self._variables: Variables | None = None
        """Variables that the user's code sets before it imports torch; ``None`` until it has been loaded."""
        self._keeper: MeasuringProcess | None = None
        """The process whose first session's files lie beneath those of later sessions."""

    def inspect(self, baseline: Config) -> WorkloadFacts:
        """Load the workload in a process that the baseline can be measured in, and describe it.

        An accelerator is this tuner's from here on. Raises ``UsageError``, also where another one keeps it,
        ``UserCodeError``, and ``NothingFeasibleError`` where there is too little memory to load it.
        """
        self._variables = None
        try:
            reply = _unwrap(self._open(baseline).ask({"op": "inspect"}, self._load_limit))
        except ProcessLostError as lost:
            message = f"loading the workload: {lost}"
            if lost.outcome in REMEDIES:
                raise NothingFeasibleError(f"{message}; {REMEDIES[lost.outcome]}") from None
            raise UserCodeError(message, lost.tail) from None
        facts, script = from_json(WorkloadFacts, reply["facts"]), reply["script"]
        self.script = script and from_json(ScriptFacts, script)
        self._on_cpu = facts.device == "cpu"
        self._common, self._step = self._session_key(baseline)[0], None
        if self.script is not None:
            first = self._session
            self._end_session()  # the script has read samples itself: no worker may inherit what it has open
            self._keeper = first if self.loading > KEPT_SECONDS else None
            for told in self.script.told:
                self._on_wait(told)
        if not self._on_cpu:
            opened = map(open_gpu, (facts.device_uuid, *facts.other_devices))
            self._cards = Cards([gpu for gpu in opened if gpu is not None])
            self._take(facts.device_uuid or facts.device, *facts.other_devices)
        return facts

    def _take(self, *devices: str) -> None:
        """Wait until no other tuner uses any of these devices, and keep them; always in the same order.

        Who waits has no session open, and so holds no memory of the device.
        """

        def begin_to_wait(holder: str) -> None:
            self._end_session()
            self._on_wait(WAITING.format(holder=holder))

        for device in sorted({*devices}.difference(self._locks)):
            lock = DeviceLock(device)
            lock.take(self._patience, begin_to_wait)
            self._locks[device] = lock

    def measure(self, config: Config, request: Request) -> Attempt:
        """Measure one configuration; failures are outcomes, never exceptions.

        Raises ``ScriptEndsError`` where no configuration can be measured.
        """
        begin, slept, usage = time.monotonic(), suspended_seconds(), cpu_usage()
        self._opening = 0.0
        attempt = self._attempt(config, request)
        if attempt.outcome is Outcome.USER_ERROR and self._sizes - {config.batch_size}:
            left = request.time_limit - (time.monotonic() - begin)  # the model may keep state of another batch's size
            attempt = self._attempt(config, replace(request, fresh=True, time_limit=left))
        if request.fresh or _needs_plain_model(config, request) or not attempt.found:
            self._end_session()  # a failure may have left weights, memory or the device in any state
        attempt = replace(attempt, seconds=time.monotonic() - begin, opening=self._opening)
        slept = suspended_seconds() - slept
        if slept > LONGEST_SLEEP:
            message = f"the machine was suspended for {slept:.0f} s during the measurement"
            return Attempt(outcome=Outcome.SUSPECT, message=message, seconds=attempt.seconds)
        return _with_names(attempt, usage)

    def _attempt(self, config: Config, request: Request) -> Attempt:
        try:
            return self._ask_to_measure(config, request)
        except ProcessLostError as lost:
            outcome = lost.outcome
            if outcome is Outcome.DEVICE_OOM and self.loading:  # it had room to be loaded before
                outcome = Outcome.SUSPECT
            return Attempt(outcome=outcome, message=str(lost), details=lost.tail)
        except ScriptEndsError:
            self._end_session()
            raise
        except (UsageError, UserCodeError) as error:
            details = getattr(error, "user_traceback", "")
            return Attempt(outcome=Outcome.USER_ERROR, message=str(error), details=details)

    def close(self) -> None:
        """End every process and its descendants; the accelerator stays this tuner's, which may go on."""
        for runner in self._runners:
            runner._session = None
        while self._processes:
            self._processes.popitem()[1].stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        finally:
            while self._locks:
                self._locks.popitem()[1].free()
            if self._pickled is not None:
                self._pickled.close()
                self._pickled = None
            self._cards = Cards()

    def _compare(self, config: Config, seconds: float) -> Attempt:
        """Compare the losses of a script in a precision with those in fp32, and with those of other random numbers."""
        begin = time.monotonic()
        full = replace(config, amp="off")
        reference, other, found = (
            self.losses(each, seconds - (time.monotonic() - begin), seed)
            for each, seed in ((full, 0), (full, 1), (config, 0))
        )
        check = NumericsCheck(
            reference_losses=reference,
            other_losses=other,
            losses=found,
            overflows=(),
            settles=True,
            seconds=time.monotonic() - begin,
        )
        return Attempt(outcome=Outcome.OK, payload=check)

    def _ask_to_measure(self, config: Config, request: Request) -> Attempt:
        if request.part == "numerics" and isinstance(self._source, Script):
            return self._compare(config, request.time_limit)
        if request.part == "losses":
            losses = self.losses(config, request.time_limit)
            return Attempt(outcome=Outcome.OK, payload=FirstLosses(losses=losses))
        config = self._as_asked(config, request)
        common, step = self._session_key(config, request)
        if request.fresh or not self._is_open(common, step):
            self._open(config)
            self._common, self._step = common, None
        self._step = step or self._step
        self._sizes.add(config.batch_size)
        assert self._session is not None
        if request.store is not None:
            request = replace(request, store=os.path.join(self._session.scratch, request.store))
        message = {"op": "measure", "config": config.to_document(), "request": asdict(request), "room": self._room}
        reply = _unwrap(self._session.ask(message, request.time_limit))
        attempt = from_json(Attempt, reply)
        part = attempt.measurement or attempt.compute
        if part is not None and part.memory == "device":
            ranks = [rank.memory_limit_bytes for rank in attempt.measurement.ranks] if attempt.measurement else []
            rooms = ranks or [part.memory_limit_bytes] * (config.ranks == 1)
            self._room = [max(pair) for pair in zip_longest(self._room, rooms, fillvalue=0)]
        return self._session.explain(attempt) if attempt.outcome is Outcome.WORKER_DIED else attempt

    def _as_asked(self, config: Config, request: Request) -> Config:
        """Return a configuration as a part asks for it: without workers, or with one.

        A probe of the step needs a few batches. It reads them, or has them from a worker where the open session forks.
        """
        if request.part in OF_ONE_PROCESS and not isinstance(self._source, Script):
            config = replace(config, ranks=1)
        if request.part == "training":
            return config
        reading = config.without_workers
        forking = config if config.num_workers else replace(config, num_workers=1)
        is_open = not request.fresh and self._is_open(*self._session_key(forking, request))
        return forking if request.part == "loader" or (is_open and request.part != "anatomy") else reading

    def _session_key(self, config: Config, request: Request | None = None) -> tuple[tuple[Any, ...], Any]:
        """Return the settings that configurations of one session have in common, and the step that it is for.

        On an accelerator that is the one of training, or those of all probes: from small to large, memory is not taken
        twice. The loader's probe makes no step.
        """
        plain = _needs_plain_model(config, request)
        common = (*self._threads(config), config.ranks, config.options, plain, config.num_workers > 0)
        if self._on_cpu or (request is not None and request.part == "loader"):
            return common, None
        return common, config.step_key if request is None or request.part == "training" else "probes"

    def _is_open(self, common: tuple[Any, ...], step: Any) -> bool:
        """Return whether the open session is one for a step with these settings, or may become it."""
        is_free = None in (step, self._step) or step == self._step
        return self._session is not None and common == self._common and is_free

    def losses(self, config: Config, seconds: float, seed: int = 0) -> tuple[float, ...]:
        """Return the first losses of a script that is started anew with a configuration and a seed.

        Raises ``UserCodeError``, ``UsageError`` and ``ProcessLostError``, this also after so many seconds.
        """
        process, message, _ = self._begin(config)
        try:
            message |= {"op": "losses", "seed": seed}
            return tuple(_unwrap(process.ask(message, seconds))["losses"])
        finally:
            self._end_session()

    def _begin(self, config: Config) -> tuple[MeasuringProcess, dict[str, Any], MeasuringProcess | None]:
        """Open a session with the configuration's threads; return the request to load the workload in it.

        The third is the process whose first session's files lie beneath.
        """
        for runner in self._runners:
            runner._end_session()
        if config.ranks > 1:
            _require_room(config.ranks, None if self._oversubscribe_ranks else inspect_host())
        threads = self._threads(config)
        folder = _folder_on_disk() if isinstance(self._source, Script) else None
        process = self._processes.pop(threads, None) or MeasuringProcess(
            self._environment(config), self._workload(), folder, self._python
        )
        self._processes[threads] = self._session = process  # the last used comes last
        while len(self._processes) > MAX_PROCESSES:
            self._processes.pop(next(key for key, each in self._processes.items() if each is not self._keeper)).stop()
        self._cards.prepare()
        _unwrap(process.open(config.ranks))
        message = _load_message(self._source, self._device, config)
        message["is_new"] = self._variables is None and not isinstance(self._source, PickledWorkload)
        usual = os.environ | _torchruns(config)
        message["usual"] = {name: usual.get(name) for name in self._variables or {}}
        keeper = self._keeper if self._keeper in self._processes.values() else None
        if isinstance(self._source, Script):
            message["script"]["patience"] = min(MOST_PATIENCE, self._load_limit / 10)
            beneath = keeper and os.path.join(keeper.scratch, self._first)
            own = LATER if self.script else self._first
            message["script"] |= {"known": self.script and to_json(self.script), "own": own, "beneath": beneath}
            if self._source.base:
                message["script"]["archive"] = extract(self._source.base, Path(process.scratch, self._source.base[1]))
        return process, message, keeper

    def _threads(self, config: Config) -> tuple[Any, ...]:
        return self._python, self._workload(), *self._environment(config).items(), config.inter_op_threads

    def _environment(self, config: Config) -> Variables:
        """Return the variables that torch is imported with: the user's code has its own, but for searched threads."""
        return {**_torchruns(config), **(self._variables or {}), **config.thread_environment()}

    def _open(self, config: Config) -> MeasuringProcess:
        asked = time.monotonic()
        process, message, keeper = self._begin(config)
        begin, limit = time.monotonic(), self._load_limit
        if self.loading:
            limit = min(limit, max(LEAST_RELOAD, RELOAD_FACTOR * self.loading))
        try:
            _unwrap(process.ask(message, limit))
        except (ProcessLostError, UserCodeError) as lost:
            if isinstance(lost, ProcessLostError):
                self._end_session()  # or it would be found among the holders
                if lost.outcome in (Outcome.DEVICE_OOM, Outcome.SUSPECT) and (held := holders()):
                    raise ProcessLostError(lost.outcome, f"{lost}; {held}", lost.tail) from None
            if keeper is None:
                raise
            self._keeper = None  # it may have ended because of the first session's files
            return self._open(config)
        except OtherEnvironmentError as other:
            self._variables, self._session = other.variables, None
            self._forget(process)
            process.stop()
            return self._open(config)
        self._variables = self._variables or {}
        now = time.monotonic()
        self.loading, self._opening = max(self.loading, now - begin), self._opening + now - asked
        return process

    def _workload(self) -> int | None:
        """Return the descriptor of a file with the pickled workload, which nobody can write to; ``None`` without."""
        if isinstance(self._source, PickledWorkload) and self._pickled is None:
            try:
                with tempfile.NamedTemporaryFile(prefix="autotune-") as file:
                    file.write(self._source.blob)
                    file.flush()
                    self._pickled = Path(file.name).open("rb")  # noqa: SIM115  # until the tuner has ended
            except OSError as error:
                raise UsageError(f"the workload cannot be copied to {tempfile.gettempdir()}: {error}") from None
        return None if self._pickled is None else self._pickled.fileno()

    def _end_session(self) -> None:
        """End the session; a process that does not close it in time is killed with everything it has started."""
        session, self._session, self._sizes = self._session, None, set()
        if session is not None and not session.close():
            session.stop()
            self._cards.was_killed = True
            self._forget(session)

    def _forget(self, process: MeasuringProcess) -> None:
        for key in [key for key, kept in self._processes.items() if kept is process]:
            del self._processes[key]


def _with_names(attempt: Attempt, before: Mapping[int, Usage]) -> Attempt:
    measured = attempt.measurement
    if measured is None or not measured.conditions.is_crowded:
        return attempt
    named, cpus = busiest(before, cpu_usage(), own_processes(), attempt.seconds)
    conditions = replace(measured.conditions, neighbours=named, named_cpus=cpus)
    message = attempt.message.replace(measured.conditions.crowd_text, conditions.crowd_text)
    return replace(attempt, payload=replace(measured, conditions=conditions), message=message)


def _folder_on_disk() -> str | None:
    """Return the first folder for temporary files that lies on a disk; ``None`` without one.

    What a script writes goes there: a layer's files cannot lie in another layer, and in memory they count as such.
    """
    mounts = {each.mountpoint: each.fstype for each in psutil.disk_partitions(all=True)}

    def is_on_disk(folder: str) -> bool:
        places = (str(each) for each in (Path(folder), *Path(folder).parents) if str(each) in mounts)
        return mounts.get(next(places, ""), "") not in ("tmpfs", "ramfs", "overlay")

    folders = (os.path.realpath(each) for each in (tempfile.gettempdir(), "/var/tmp") if os.access(each, os.W_OK))
    return next(filter(is_on_disk, folders), None)


def _require_room(ranks: int, host: Host | None) -> None:
    if sys.platform != "linux":
        raise UsageError(f"--ranks {ranks}: several are measured on Linux only; pass --ranks 1")
    if host is not None and ranks > (most := max(host.cpus, len(host.gpus))):
        has = f"{host.cpus} CPUs" + (f" and {len(host.gpus)} GPUs" if host.gpus else "")
        raise UsageError(f"--ranks {ranks}: this host has {has}; pass --ranks {most}, or --oversubscribe-ranks")


def _torchruns(config: Config) -> dict[str, str]:
    """Return the variables of several ranks, which have one thread each, as of ``torchrun``."""
    return {} if config.ranks == 1 or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}


def _needs_plain_model(config: Config, request: Request | None) -> bool:
    """Return whether a probe compares options with plain fp32: its session must be new, and is spent."""
    return bool(config.options) and request is not None and request.part == "numerics"


def _load_message(source: WorkloadSource, device: str, config: Config) -> dict[str, Any]:
    if isinstance(source, Script):
        return {"op": "load", "script": asdict(source), "config": config.to_document()}
    return {
        "op": "load",
        "model": source.model if isinstance(source, ImportedWorkload) else None,
        "dataset": source.dataset if isinstance(source, ImportedWorkload) else None,
        "path": source.path,
        "settings": {} if isinstance(source, ImportedWorkload) else source.settings,
        "device": device,
        "config": config.to_document(),
    }


def _unwrap(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply, or raise the error that it carries; ``ProcessLostError`` where it was not the user's."""
    if reply.get("error") == "usage":
        raise UsageError(reply["message"])
    if reply.get("error") == "environment":
        raise OtherEnvironmentError(reply["variables"])
    if reply.get("error") == "end":
        raise ScriptEndsError(reply["message"], reply["details"])
    if reply.get("error") == "user":
        outcome, details = Outcome(reply.get("outcome", Outcome.USER_ERROR)), reply.get("details", "")
        if outcome is not Outcome.USER_ERROR:
            raise ProcessLostError(outcome, reply["message"], details)
        raise UserCodeError(reply["message"], details)
    return reply


class Usage(NamedTuple):
    """The CPU time of a process so far."""

    name: str
    seconds: float
    """CPU seconds, in user code and in the kernel."""


def cpu_usage() -> dict[int, Usage]:
    """Return the CPU time of every visible process, by its number."""
    seen = (each.info for each in psutil.process_iter(["pid", "name", "cpu_times"]))
    return {each["pid"]: Usage(each["name"], sum(each["cpu_times"][:2])) for each in seen if each["cpu_times"]}


def own_processes() -> set[int]:
    """Return the numbers of this process and of all that it has started."""
    this = psutil.Process()
    return {this.pid, *(child.pid for child in this.children(recursive=True))}


def busiest(
    before: Mapping[int, Usage], after: Mapping[int, Usage], own: set[int], seconds: float
) -> tuple[tuple[str, ...], float]:
    """Return the other processes that used the CPUs most in so many seconds, in words, and their CPUs together.

    Processes that began and ended meanwhile, and invisible ones, are not among them.
    """
    used = [
        ((usage.seconds - before[number].seconds if number in before else usage.seconds) / seconds, number, usage.name)
        for number, usage in after.items()
        if number not in own
    ]
    named = [each for each in sorted(used, reverse=True) if each[0] >= LEAST_CPUS][:MOST_NAMED]
    texts = tuple(f"{name} (pid {number}) {cpus:.1f}" for cpus, number, name in named)
    return texts, sum(cpus for cpus, _, _ in named)


def suspended_seconds() -> float:
    """Return for how long the machine has slept so far, as on a closed lid; only differences mean anything."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return time.time() - time.monotonic()
