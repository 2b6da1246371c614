"""A database server behind an Optuna URL: its connection, and messages where it fails."""

from __future__ import annotations

import json
import re
import time
import warnings
from dataclasses import dataclass
from typing import Any

from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import event, text
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.pool import NullPool

from autotune.errors import StorageError, UsageError
from autotune.storage.study_records import parse_url, without_password

PSYCOPG = "postgresql+psycopg"
"""The databases of Optuna that several tuners may write to at the same time."""
POSTGRESQL = {"postgresql": PSYCOPG, "postgres": PSYCOPG}
"""The driver of URLs that name none: SQLAlchemy's own choice depends on its version."""
CONNECTION = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Parameters of libpq, in seconds but the last, in milliseconds: a server that says nothing more is given up.

But for the first, the server is told the same: it gives up a tuner then.
"""
ATTEMPTS, BETWEEN_ATTEMPTS = 5, 0.5
"""How often tables are made, and the seconds between: two tuners that make them at the same time disturb each other."""
NO_SUCH_TABLE, NOT_ALLOWED = "42P01", "42501"
"""How PostgreSQL calls that."""
EACH_OTHER = "40"
"""How its names for deadlocks and the like begin."""
SETTINGS = """
SELECT set_config(name, given.value, false)
FROM json_each_text(%(settings)s) AS given JOIN pg_settings ON given.key = name
"""
"""Sets the settings that this version of the server knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """How a tuner shows that it is alive; whole seconds, as Optuna takes them."""

    interval: int = 10
    """Between two signs of life."""
    grace: int = 60
    """After the last of which a tuner counts as gone."""


HEARTBEAT = Heartbeat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long tuner and server wait for each other, in seconds."""

    answer: float = 20.0
    """For the answer to one question: a server that is silent for longer counts as away."""
    statement: float = 30.0
    """For one statement: the server gives it up then, since its tuner may be gone."""
    lock: float = 15.0
    """For locks of another connection."""
    idle: float = 20.0
    """For the rest of a transaction: a tuner that has disappeared in the middle of one locks nothing for longer."""


LIMITS = Limits()


class _RefusedError(Exception):
    """An operation that the server refused, in the form of SQLAlchemy's own error."""


def is_shared(location: str) -> bool:
    """Return whether a location is a server's, which several tuners may write to at the same time."""
    url = parse_url(location)
    return url is not None and _with_driver(url).drivername == PSYCOPG


def require_driver(location: str) -> None:
    """Raise ``UsageError`` where a URL names another driver of PostgreSQL than the one that studies are shared with."""
    url = parse_url(location)
    if url is not None and url.drivername.startswith("postgresql+") and url.drivername != PSYCOPG:
        raise UsageError(f"--storage {url.drivername}://…: write postgresql://…, which is reached with psycopg")


def open_database(location: str, heartbeat: Heartbeat = HEARTBEAT, limits: Limits = LIMITS) -> RDBStorage:
    """Open the database behind a URL, and make Optuna's tables where there are none.

    Raises whatever the driver does; ``reason_of`` says it in one line.
    """
    url = _with_driver(make_url(location))
    _make_tables(url, limits)
    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        database = RDBStorage(
            _text(url),
            _engine_options(url, limits),
            heartbeat_interval=heartbeat.interval,
            grace_period=heartbeat.grace,
            skip_table_creation=True,
        )
    event.listen(database.engine, "handle_error", _say_at_once)
    return database


def read_database(location: str) -> RDBStorage:
    """Open the database behind a URL to read it, which makes nothing and leaves no connection open.

    Raises ``StorageError`` where it has none of Optuna's tables, or others are making them, and whatever the driver
    does.
    """
    url = _with_driver(make_url(location))
    try:
        return RDBStorage(_text(url), {**_engine_options(url, LIMITS), "poolclass": NullPool}, skip_table_creation=True)
    except StorageInternalError as error:
        if _sqlstate(error) != NO_SUCH_TABLE:
            raise
    except IntegrityError:  # a tuner and Optuna here have written the version of the tables at the same time
        pass
    raise StorageError("holds no study of autotune")


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


def require_writable(database: RDBStorage, study_id: int) -> None:
    """Raise the driver's error where no trial can be added to a study; adds none."""
    with database.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(text("INSERT INTO trials (study_id, state) VALUES (:study, 'FAIL')"), {"study": study_id})
        transaction.rollback()


def _sqlstate(error: BaseException | None) -> str:
    """Return PostgreSQL's name of the error; empty where the server was not asked."""
    while error is not None:
        if found := getattr(getattr(error, "orig", error), "sqlstate", None):
            return str(found)
        error = error.__cause__
    return ""


def _make_tables(url: URL, limits: Limits) -> None:
    """Make Optuna's tables; without a pool, of which a failed attempt would leave connections open."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            RDBStorage(_text(url), {**_engine_options(url, limits), "poolclass": NullPool})
            return
        except (IntegrityError, ProgrammingError) as error:
            if attempt == ATTEMPTS or _sqlstate(error) == NOT_ALLOWED:
                raise
            time.sleep(BETWEEN_ATTEMPTS)


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _with_driver(url: URL) -> URL:
    return url.set(drivername=POSTGRESQL.get(url.drivername, url.drivername))


def _engine_options(url: URL, limits: Limits) -> dict[str, Any]:
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.get_backend_name() != "postgresql":
        return options

    def connect() -> Any:
        from autotune.storage.bounded_connection import BoundedConnection

        arguments, given = url.get_dialect()().create_connect_args(url)
        connection = BoundedConnection.connect(*arguments, **{**CONNECTION, **given})
        connection.seconds = limits.answer
        return connection

    def set_up(connection: Any, record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(SETTINGS, _session(limits))
        connection.commit()

    # claims rely on each statement seeing what others have committed, whatever the database's own default is
    return {**options, "creator": connect, "isolation_level": "READ COMMITTED", "pool_events": [(set_up, "connect")]}


def _session(limits: Limits) -> dict[str, str]:
    """Return the settings of a connection: times are UTC, and no server waits for ever for a tuner that is gone.

    Optuna compares heartbeats without their zone, and clocks go forward by an hour in spring.
    """
    times = {"statement": limits.statement, "lock": limits.lock, "idle_in_transaction_session": limits.idle}
    settings = {f"{name}_timeout": f"{1000 * seconds:.0f}" for name, seconds in times.items()}
    tcp = {
        f"tcp_{name.removeprefix('tcp_')}": f"{value}" for name, value in CONNECTION.items() if "connect" not in name
    }
    return {"settings": json.dumps({"TimeZone": "UTC", **settings, **tcp})}


def _say_at_once(context: ExceptionContext) -> None:
    """Keep Optuna from repeating failed operations, except conflicts of two transactions.

    It waits for seconds and asks five times, and the search waits for it.
    """
    error = context.sqlalchemy_exception
    if context.is_pre_ping or error is None or isinstance(error, IntegrityError):
        return
    if not _sqlstate(error).startswith(EACH_OTHER):
        raise _RefusedError(str(error.orig)) from error
