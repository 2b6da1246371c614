"""A real PostgreSQL for the tests: in a folder of its own, on a free port, with a password."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

USER, PASSWORD = "tuner", "s3cret-of-the-tuner"
BINARIES = ("initdb", "pg_ctl", "postgres")


class Server:
    """A cluster that is started and stopped like any; no process of it is the superuser's."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._folder = folder
        self._data = folder / "data"
        self.port = free_port()
        self._frozen: list[psutil.Process] = []
        (folder / "password").write_text(PASSWORD)
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            for path in (folder, folder / "password"):
                shutil.chown(path, "nobody")
        flags = ("-U", USER, "--auth", "scram-sha-256", "--pwfile", str(folder / "password"), "-E", "UTF8")
        self._run("initdb", "-D", str(self._data), "--no-locale", "--no-sync", *flags)

    def url(self, database: str, *, user: str = USER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self._folder / "log"), "-w", "-o", options, "start")

    def stop(self) -> None:
        """Stop as a machine that loses its power does."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def freeze(self) -> None:
        """Let no process of it do anything, while the kernel still takes what is sent to it."""
        self._frozen = self._processes()
        for process in self._frozen:  # the first of them, which alone starts others, at first
            process.suspend()

    def thaw(self) -> None:
        while self._frozen:
            self._frozen.pop().resume()

    def _processes(self) -> list[psutil.Process]:
        postmaster = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        return [postmaster, *postmaster.children()]

    @property
    def is_running(self) -> bool:
        return (self._data / "postmaster.pid").exists()

    def make_database(self) -> str:
        import psycopg

        name = f"d{uuid.uuid4().hex}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def _run(self, program: str, *arguments: str) -> None:
        owner = "nobody" if os.geteuid() == 0 else None
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            cwd=self._folder,
            user=owner,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a pipe would be held open by the server
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
        assert done.returncode == 0, f"{program} {' '.join(arguments)}: {self._log()}"

    def _log(self) -> str:
        log = self._folder / "log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else "no log"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_binaries() -> Path | None:
    """Return the folder of the server's programs, which distributions keep out of the path."""
    found = [Path(path).resolve().parent for path in [shutil.which("postgres")] if path]
    if shutil.which("pg_config"):
        found.append(Path(subprocess.check_output(["pg_config", "--bindir"], text=True).strip()))
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if all((folder / name).exists() for name in BINARIES)), None)


def missing(what: str) -> None:
    """Skip where a developer has no server; fail where the tests are to say something."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing: .ci/run installs it")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    binaries = find_binaries()
    if binaries is None:
        missing("PostgreSQL's server (apt-get install postgresql)")
    try:
        import psycopg  # noqa: F401
    except ImportError:
        missing("psycopg (pip install 'torch-autotune[postgresql]')")
    assert binaries is not None
    folder = Path(tempfile.mkdtemp(prefix="autotune-server-"))
    found = Server(binaries, folder)
    try:
        found.start()
        yield found
    finally:
        if found.is_running:
            found.stop()
        shutil.rmtree(folder)


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """The URL of a database of a test's own; a server that the test has stopped or frozen runs again afterwards."""
    yield server.make_database()
    server.thaw()
    if not server.is_running:
        server.start()


def environment(**changes: str) -> dict[str, str]:
    """What another process of Python finds the same packages with."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **changes}
