"""The exceptions of autotune.

    AutotuneError                exit 1
    ├── UsageError               exit 2    a flag, an argument or a reference is wrong
    ├── UserCodeError            exit 3    the user's code fails on the baseline configuration
    │   └── ScriptEndsError      exit 3    a script ends too early in every configuration
    ├── NothingFeasibleError     exit 4    no configuration could be measured
    ├── ConfigFileError          exit 5    a config file cannot be read or written
    ├── StorageError             exit 5    a study cannot be read or written
    └── InterruptedRunError      exit 130  stopped by the user before anything was known

The exit code lives on the class; only ``autotune.cli`` turns it into a process exit.
"""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60


class AutotuneError(Exception):
    """Base of every error that autotune raises on purpose."""

    exit_code = 1


class UsageError(AutotuneError):
    """A flag, an argument or a reference is wrong; the message names it and the way out."""

    exit_code = 2


class UserCodeError(AutotuneError):
    """The user's model, dataset or training step fails on the baseline configuration.

    ``user_traceback`` is their traceback without autotune's own frames; empty when there is none.
    """

    exit_code = 3

    def __init__(self, message: str, user_traceback: str = "") -> None:
        super().__init__(message)
        self.user_traceback = user_traceback


class ScriptEndsError(UserCodeError):
    """A script ends before anything can be measured, whatever the configuration; the message says when."""


class NothingFeasibleError(AutotuneError):
    """No configuration could be measured; the message gives the baseline's outcome."""

    exit_code = 4


class ConfigFileError(AutotuneError):
    """A config file cannot be read or written; the message names file, key and what is allowed."""

    exit_code = 5


class StorageError(AutotuneError):
    """A study cannot be read or written."""

    exit_code = 5


class InterruptedRunError(AutotuneError):
    """The user stopped the run before any configuration was measured."""

    exit_code = 130


def shown(value: object) -> str:
    """Return a value as Python writes it, shortened."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python does not write out a number of thousands of digits
        return "a number of thousands of digits"
