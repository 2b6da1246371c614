"""Connecting to a running Ray cluster, quietly."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autotune.errors import UsageError

__all__ = ["HOW_TO_START", "answers", "connect", "import_ray", "reason_of", "require_own_host", "silence"]

MISSING = "--engine ray: Ray is missing: pip install 'torch-autotune[ray]'"
HOW_TO_START = (
    "start one with ray start --head, and on each other host ray start --address=HOST:6379; then run autotune on one "
    "of them, with RAY_ADDRESS where several clusters run there"
)
CLIENT = "a client of Ray cannot tune; run autotune on a host of the cluster"
CONNECT_LIMIT = 2.0
"""Seconds in which a head node lets itself be connected to."""


def import_ray() -> Any:
    """Return the package. Raises ``UsageError`` where there is none."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UsageError(MISSING) from None


def connect(ray: Any) -> None:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or to the one of this host. Raises ``UsageError``."""
    address = os.environ.get("RAY_ADDRESS") or "auto"
    if address.startswith("ray://"):
        raise UsageError(f"RAY_ADDRESS {address}: {CLIENT}")
    if address not in ("auto", "local") and not answers(address):
        raise UsageError(f"--engine ray: no Ray cluster answers at RAY_ADDRESS {address}; {HOW_TO_START}")
    try:
        with _own_signals(), _without_command_line():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:
        raise UsageError(f"--engine ray: no Ray cluster was reached: {reason_of(error)}; {HOW_TO_START}") from None
    atexit.unregister(ray.shutdown)  # it waits for long where the cluster is gone; ``close`` does it


def require_own_host(ray: Any) -> None:
    """Raise ``UsageError`` where the caller has connected as a client, from a host that is none of the cluster's."""
    if ray.util.client.ray.is_connected():
        raise UsageError(CLIENT)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what the signals do: Ray would let SIGTERM end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


@contextmanager
def _without_command_line() -> Iterator[None]:
    """Keep the command line here: Ray would show it, and the password in a URL, to everyone in the cluster."""
    details = importlib.import_module("ray._private.utils")
    asked = details.__dict__.get("get_entrypoint_name")
    if asked is None:
        yield
        return
    details.__dict__["get_entrypoint_name"] = lambda: "autotune"
    try:
        yield
    finally:
        details.__dict__["get_entrypoint_name"] = asked


def silence() -> Callable[[], None]:
    """Let Ray's listener print nothing: it would write of lost nodes to stdout. Return what undoes that."""
    worker = importlib.import_module("ray._private.worker")
    printing = getattr(worker, "print_to_stdstream", None)
    if printing is None:
        return lambda: None
    worker.__dict__["print_to_stdstream"] = lambda *_, **__: None
    return lambda: worker.__dict__.update(print_to_stdstream=printing)


def answers(address: str) -> bool:
    """Tell whether something listens there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT):
            return True
    except (OSError, ValueError):
        return False


def reason_of(error: Exception) -> str:
    """Return the first line of what Ray says, without its stack."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{lines[0].rstrip('.') if lines else 'no reason given'} ({type(cause).__name__})"
