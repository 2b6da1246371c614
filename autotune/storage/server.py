"""A database behind an Optuna URL: its connection, and messages where it fails."""

from __future__ import annotations

import re
import time
import warnings
from dataclasses import dataclass
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.pool import NullPool

from autotune.errors import UsageError

PSYCOPG = "postgresql+psycopg"
"""The driver of PostgreSQL that studies are kept with."""
CONNECTION = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "options": "-c TimeZone=UTC -c statement_timeout=30s -c lock_timeout=15s "
    "-c idle_in_transaction_session_timeout=20s",
}
"""Parameters of libpq: a server that says nothing more is given up, and a tuner that is gone locks nothing for long.

Times are UTC: Optuna compares heartbeats without their zone, and clocks go forward by an hour in spring.
"""
ATTEMPTS, BETWEEN_ATTEMPTS = 5, 0.5
"""How often tables are made, and the seconds between: two tuners that make them at the same time disturb each other."""
UNREADABLE = (
    "the URL of the study cannot be read; write postgresql://user@host:5432/database, and in a name or password "
    "%40 for @, %2F for / and %3A for :"
)
"""Message for a URL that may hold a password anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The signs of life of a tuner; whole seconds, as Optuna takes them."""

    interval: int = 10
    """Between two signs of life."""
    grace: int = 60
    """After the last of which a tuner counts as gone."""


HEARTBEAT = Heartbeat()


def open_database(location: str, heartbeat: Heartbeat = HEARTBEAT) -> RDBStorage:
    """Open the database behind a URL, and make Optuna's tables where there are none.

    Raises whatever the driver does; ``reason_of`` says it in one line.
    """
    url, options = _engine(location)
    for attempt in range(1, ATTEMPTS + 1):
        try:  # without a pool, of which a failed attempt would leave connections open
            RDBStorage(url, {**options, "poolclass": NullPool})
            break
        except (IntegrityError, ProgrammingError):
            if attempt == ATTEMPTS:
                raise
            time.sleep(BETWEEN_ATTEMPTS)
    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        return RDBStorage(
            url,
            options,
            heartbeat_interval=heartbeat.interval,
            grace_period=heartbeat.grace,
            skip_table_creation=True,
        )


def read_database(location: str) -> RDBStorage:
    """Open the database behind a URL to read it, which makes nothing and leaves no connection open.

    Raises whatever the driver does, as where there are no tables.
    """
    url, options = _engine(location)
    return RDBStorage(url, {**options, "poolclass": NullPool}, skip_table_creation=True)


def reason_of(error: BaseException, location: str) -> str:
    """Say in one line why a database cannot be used, without its password."""
    url = parse_url(location)
    if isinstance(error, ImportError) and url and _with_driver(url).drivername == PSYCOPG:
        return "its driver is missing: pip install 'torch-autotune[postgresql]'"
    while not isinstance(error, DBAPIError) and error.__cause__ is not None:  # Optuna says nothing itself
        error = error.__cause__
    said = error.orig if isinstance(error, DBAPIError) and error.orig else error
    words = str(said).replace(location, without_password(location)) or type(said).__name__
    parts: list[tuple[str, Any]] = [("password", url.password), *url.query.items()] if url else []
    for secret in (value for name, value in parts if value and re.search("pass|pwd", name.lower())):
        words = words.replace(str(secret), "***")
    return " ".join(words.split())[:300]


def parse_url(location: str) -> URL | None:
    """Return the parts of a URL; ``None`` where they cannot be told apart, as with an @ in a password."""
    userinfo_and_place = re.sub(r"\?[\w.]+=.*", "", location.partition("://")[2], flags=re.DOTALL)
    if "://" not in location or userinfo_and_place.count("@") > 1:
        return None
    try:
        return make_url(location)
    except (ArgumentError, ValueError):
        return None


def require_url(location: str) -> None:
    """Raise ``UsageError`` where a URL cannot be used: its parts cannot be told apart, or it names another driver.

    The message shows no part of a URL that cannot be read.
    """
    if "://" not in location:
        return
    url = parse_url(location)
    if url is None:
        raise UsageError(UNREADABLE)
    if url.drivername.startswith("postgresql+") and url.drivername != PSYCOPG:
        raise UsageError(f"--storage {url.drivername}://…: write postgresql://…, which is reached with psycopg")


def without_password(location: str) -> str:
    """Return a URL that may be shown; a file as it is."""
    if "://" not in location:
        return location
    url = parse_url(location)
    if url is None:  # it cannot be opened, but it may hold a password all the same
        masked = re.sub(r"://.*@", "://***@", location, flags=re.DOTALL)
        return re.sub(r"((?:pass|pwd)\w*=)[^&]*", r"\1***", masked, flags=re.IGNORECASE)
    secret = {name: "***" for name in url.query if "pass" in name.lower() or "pwd" in name.lower()}
    if url.password is None and not secret:
        return location
    return url.update_query_dict(secret).render_as_string(hide_password=True).replace("%2A%2A%2A", "***")


def _with_driver(url: URL) -> URL:
    # where a URL names no driver, SQLAlchemy's own choice depends on its version
    return url.set(drivername=PSYCOPG) if url.drivername in ("postgresql", "postgres") else url


def _engine(location: str) -> tuple[str, dict[str, Any]]:
    url, options = _with_driver(make_url(location)), dict[str, Any](pool_pre_ping=True)
    if url.get_backend_name() == "postgresql":
        # a claim relies on each statement seeing what others have committed, whatever the database's own default is
        options["isolation_level"] = "READ COMMITTED"
        options["connect_args"] = {name: value for name, value in CONNECTION.items() if name not in url.query}
    return url.render_as_string(hide_password=False), options
