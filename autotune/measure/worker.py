"""The measuring process: ``python -m autotune.measure.worker``.

Answers the requests that come through the socket whose number is its first argument, by
``autotune.protocol``. A second one is the number of a file with a pickled workload. ``open`` begins a session
of one or several ranks, ``load``, ``inspect`` and ``measure`` are for it, ``close`` ends it. The end of a session is
told with the number of its ``open``.
"""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import sys
from contextlib import nullcontext, suppress
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

from autotune.config import Config
from autotune.encoding import from_json, to_json
from autotune.errors import ScriptEndsError, UsageError, UserCodeError
from autotune.machine.descendants import MARK, remove_scratch
from autotune.measure.device import open_device
from autotune.measure.failures import classify, user_traceback
from autotune.measure.rank_group import ALONE, RankGroup
from autotune.measure.rank_launch import (
    RankFailedError,
    make_default_group,
    meet_in_files,
    raise_failure,
    run_ranks,
)
from autotune.measure.script import ScriptLoop
from autotune.measure.script_losses import first_losses
from autotune.measure.script_run import ScriptRun
from autotune.measure.session import Session
from autotune.measure.subreaper import become_subreaper, end_at_once, end_of, fork, prepare_session
from autotune.measure.trackers import switch_off
from autotune.measure.writes import Hold, hold_writes, moved, refuse_large, refuse_present
from autotune.protocol import Channel
from autotune.records import Request, ScriptFacts
from autotune.sites import keep_threads
from autotune.torch_import import OtherEnvironmentError, require_same_environment, set_variables
from autotune.workload import ImportedWorkload, PickledWorkload, Script, load

HIGH = (500, 200, 100)
"""First numbers for inherited descriptors, as high as the system allows: code that closes or writes to foreign
descriptors begins low."""


def main() -> None:
    """Answer requests until the tuner ends; where it is safe, each session in a fork of its own.

    On Linux this process imports every session's modules, and loads and computes nothing itself.
    """
    become_subreaper()
    with suppress(EOFError, ConnectionError):
        channel, *pickled = [_move(int(number)) for number in sys.argv[1:]]
        _serve_sessions(Channel(channel), pickled)
    remove_scratch(os.environ.get(MARK))  # nothing is left where the tuner has ended without a word


def _serve_sessions(channel: Channel, pickled: list[int]) -> None:
    while True:
        number, message = channel.receive()
        if message["op"] != "open":  # for a session that has ended meanwhile, as the tuner has been told
            return
        ranks = message.get("ranks", 1)
        if not sys.platform.startswith("linux"):
            prepare_session()
            _serve_session(channel, number, ranks, pickled)
            channel.send(number, {"closed": 0})
            return
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # the first optimizer imports for more than a second
        if ranks > 1:
            import_module("torch._dynamo")  # torch needs it once it wraps a model
        gc.freeze()  # no collection in a session goes through all that was imported
        session = fork()
        if session == 0:
            prepare_session()
            _serve_session(channel, number, ranks, pickled)
            end_at_once()
        channel.send(number, {"closed": end_of(session)})


def _serve_session(channel: Channel, number: int, ranks: int, pickled: list[int]) -> None:
    """Answer the requests of the session that request ``number`` opens.

    Several ranks are forked where the writes of a script are held already. Once one has failed, nobody answers.
    """
    channel.send(number, {"opened": True})
    request, message = first = _next_request(channel)
    if message["op"] == "close":
        return None
    try:
        set_variables(message.get("usual", {}))
        hold = _held(message["script"]) if message.get("script") else None
    except Exception as error:
        channel.send(request, _refusal(error))
    else:
        if ranks == 1:
            return _serve(channel, ALONE, pickled, first, hold)
        failure = run_ranks(ranks, lambda group: _serve(channel, group, pickled, first, hold))
        if failure is None:
            return None
        channel.send(number, {"failed": failure})
    while _next_request(channel)[1]["op"] != "close":
        pass
    return None


def _serve(
    channel: Channel, group: RankGroup, pickled: list[int], first: tuple[int, dict[str, Any]], hold: Hold | None
) -> None:
    """Answer the first request of a session and the others, up to its end; of several ranks the first replies."""
    session: Session | None = None
    number, message = first
    while message["op"] != "close":
        try:
            if message["op"] == "load":
                with require_same_environment() if message["is_new"] else nullcontext():
                    session = _load(message, group, pickled, hold)
                reply: dict[str, Any] = {"loaded": all(group.gather(True))}
            else:
                reply = _reply(message, session, group, hold)
        except RankFailedError:
            raise
        except Exception as error:
            reply = _refusal(error)
            if group.size > 1:
                raise_failure(reply, error)
        if group.leads:
            channel.send(number, reply)
        number, message = group.tell(_next_request(channel) if group.leads else first)


def _reply(message: dict[str, Any], session: Session | None, group: RankGroup, hold: Hold | None) -> dict[str, Any]:
    if message["op"] == "losses":
        return {"losses": _losses(message, group, hold)}
    if session is None:
        raise UsageError("load a workload first")
    if message["op"] == "inspect":
        return {"facts": session.facts(), "script": session.script()}
    config = Config.from_document(message["config"])
    reply: dict[str, Any] = to_json(session.measure(config, Request(**message["request"]), message["room"]))
    return reply


def _next_request(channel: Channel) -> tuple[int, dict[str, Any]]:
    try:
        return channel.receive()
    except (EOFError, ConnectionError):
        return 0, {"op": "close"}


def _refusal(error: Exception) -> dict[str, Any]:
    if isinstance(error, OtherEnvironmentError):
        return {"error": "environment", "variables": error.variables}
    if isinstance(error, UsageError):
        return {"error": "usage", "message": str(error)}
    if isinstance(error, ScriptEndsError):
        return {"error": "end", "message": str(error), "details": error.user_traceback}
    if isinstance(error, UserCodeError):
        return {"error": "user", "message": str(error), "details": error.user_traceback}
    outcome, message, _ = classify(error)
    return {"error": "user", "outcome": outcome, "message": message, "details": user_traceback(error)}


def _load(message: dict[str, Any], group: RankGroup, pickled: list[int], hold: Hold | None) -> Session:
    if message.get("script"):
        return _load_script(message, group, hold)
    if group.size > 1:
        make_default_group(group)
    config = Config.from_document(message["config"])
    config.apply_threads()
    path = tuple(message["path"])
    if message["model"] is not None:  # the device comes last: an imported module may say which are visible
        workload = load(ImportedWorkload(model=message["model"], dataset=message["dataset"], path=path))
        return Session(workload, message["device"], group, num_workers=config.num_workers)
    device = open_device(message["device"], group)
    blob = mmap.mmap(pickled[0], 0, access=mmap.ACCESS_READ)
    source = PickledWorkload(blob=blob, path=path, settings=message["settings"])
    return Session(load(source, device.torch_device), device, group, num_workers=config.num_workers)


def _load_script(message: dict[str, Any], group: RankGroup, hold: Hold | None) -> Session:
    given = message["script"]
    known = given["known"] and from_json(ScriptFacts, given["known"])
    loop = ScriptLoop(ScriptRun(_script_of(given), hold, group=group), known, given["patience"])
    config = Config.from_document(message["config"])
    config.apply_threads()
    keep_threads(config)
    try:
        loop.start()
    finally:
        if given["base"] and hold and not hold.layers.folders:
            refuse_present(given["base"], given["archive"])
    workload = loop.loaders.workload()
    device = known.device if known else next((str(each.device) for each in workload.model.parameters()), "cpu")
    device = device if group.size == 1 else device.partition(":")[0]  # each rank has its own
    return Session(workload, device, group, loop, num_workers=loop.loaders.existing().present["num_workers"])


def _script_of(given: dict[str, Any]) -> Script:
    known = {each.name: given[each.name] for each in fields(Script)}
    return Script(**{**known, "arguments": tuple(known["arguments"]), "base": None})


def _losses(message: dict[str, Any], group: RankGroup, hold: Hold | None) -> list[float]:
    given, config = message["script"], Config.from_document(message["config"])
    known = given["known"] and from_json(ScriptFacts, given["known"])
    if hold is not None:
        refuse_large(_raise)
    if group.size > 1:
        meet_in_files(group, _raise)
    config.apply_threads()
    return first_losses(_script_of(given), config, known, seed=message["seed"])


def _raise(told: str) -> NoReturn:
    raise UserCodeError(told)


def _held(given: dict[str, Any]) -> Hold | None:
    scratch = os.environ[MARK]
    if not given["allow_uploads"]:
        switch_off(scratch)
    if given["allow_writes"]:
        return None
    own, beneath = Path(scratch, given["own"]), Path(given["beneath"]) if given["beneath"] else None
    over = (given["base"][0], given["archive"]) if given["base"] else ()
    hold = hold_writes(given["path"], given["arguments"], own, beneath, over)
    if over and not hold.layers.folders:
        given |= {name: moved(os.path.realpath(given[name]), *over) for name in ("path", "root")}
    if over and not os.path.exists(given["path"]):
        raise UsageError(f"--base: {given['base'][1][:12]} has no {Path(given['path']).name} there")
    return hold


def _move(descriptor: int) -> int:
    for least in HIGH:
        with suppress(OSError):
            moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
            os.close(descriptor)
            return moved
    os.set_inheritable(descriptor, False)
    return descriptor


if __name__ == "__main__":
    main()
    end_at_once()
