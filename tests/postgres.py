"""A real PostgreSQL server for the tests: one per test run, a database per test.

It listens on a Unix socket only and keeps its files in memory where it can. The
binaries come from the wheel `pgserver`, else from the system. If none can start, the
tests that need it fail: they are never skipped.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.in_memory import MEMORY

#: PostgreSQL refuses to run as root.
_OWNER: dict[str, Any] = {}
if os.geteuid() == 0:
    _OWNER = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid}
_SECONDS = 30
_SETTINGS = (
    "listen_addresses=",
    "max_connections=200",
    "shared_buffers=32MB",
    "max_wal_size=256MB",
    "wal_level=replica",
    "log_min_messages=fatal",
)


def _candidates() -> Iterator[Path]:
    wheel = find_spec("pgserver")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "pginstall" / "bin"
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    program = shutil.which("initdb")
    if program is not None:
        yield Path(program).resolve().parent


@cache
def binaries() -> Path:
    """Return the folder of the first PostgreSQL that runs here."""
    tried = []
    for folder in _candidates():
        try:
            _run(folder / "postgres", "--version")
        except (OSError, subprocess.CalledProcessError) as error:
            tried.append(f"{folder}: {error}")
        else:
            return folder
    msg = f"no PostgreSQL can run here (pip install pgserver); tried {tried}"
    raise RuntimeError(msg)


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    subprocess.run(words, check=True, capture_output=True, cwd="/", **_OWNER)


def _end_with_parent() -> None:
    """Let the kernel end the server should the tests be killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


class PostgresServer:
    """A server with a data folder of its own.

    Args:
        standby_of: A stopped server of whose files this one is a standby.
        on_disk: Keep the files on disk, as a benchmark must.
    """

    def __init__(
        self, standby_of: PostgresServer | None = None, *, on_disk: bool = False
    ) -> None:
        enough = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2**31
        memory = MEMORY if enough and not on_disk else None
        self.folder = Path(tempfile.mkdtemp(prefix="dpflow-pg-", dir=memory))
        self.data = self.folder / "data"
        self.process: subprocess.Popen[bytes] | None = None
        if standby_of is None:
            self._own()
            words = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
            _run(binaries() / "initdb", "-D", self.data, *words, "--no-sync")
        else:
            shutil.copytree(standby_of.data, self.data)
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            (self.data / "standby.signal").touch()
        self._own()
        self.start()

    def _own(self) -> None:
        for path in (self.folder, *self.folder.rglob("*")) if _OWNER else ():
            shutil.chown(path, **_OWNER)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        words = [f"-c{setting}" for setting in _SETTINGS]
        command = [str(binaries() / "postgres"), "-D", str(self.data), "-k"]
        command += [str(self.folder), *words]
        until = time.monotonic() + _SECONDS
        while True:
            # It ends where children of a killed server still hold its memory.
            if self.process is None or self.process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    self.process = subprocess.Popen(
                        command,
                        stdout=log,
                        stderr=log,
                        cwd="/",
                        preexec_fn=_end_with_parent,  # noqa: PLW1509 (no thread yet)
                        **_OWNER,
                    )
            try:
                return self.run()
            except psycopg.OperationalError as error:
                if time.monotonic() > until:
                    text = (self.folder / "log").read_text("utf-8")
                    msg = f"the test server does not start: {error}\n{text}"
                    raise RuntimeError(msg) from error
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT in order, SIGQUIT and SIGKILL as in a crash."""
        if self.process is None:
            return
        if how is signal.SIGKILL:
            # A killed postmaster's children end by themselves, but need a moment.
            task = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
            children = Path(task).read_text("ascii").split()
            self.process.kill()
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        else:
            self.process.send_signal(how)
        self.process.wait(_SECONDS)
        self.process = None

    def destroy(self) -> None:
        """Stop the server and remove its files."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, user: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def run(self, *statements: str, database: str = "postgres") -> None:
        """Run statements as the superuser, each in a transaction of its own."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def new_database(self, options: str = "") -> str:
        """Make an empty database and return its URL."""
        name = f"t{uuid.uuid4().hex}"
        # By files: the log of a database that is soon gone need not say all of it.
        self.run(f"CREATE DATABASE {name} STRATEGY file_copy {options}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Drop a database, even if it is in use."""
        self.run(f"DROP DATABASE {name_of(url)} WITH (FORCE)")

    def alter(self, url: str, setting: str) -> None:
        """Change a setting of all sessions with a database."""
        self.run(f"ALTER DATABASE {name_of(url)} SET {setting}")


def name_of(url: str) -> str:
    """Return the name of a database."""
    return url.partition("@/")[2].partition("?")[0]


@cache
def server() -> PostgresServer:
    """Return the server of this test run."""
    started, owner = PostgresServer(), os.getpid()

    def end() -> None:
        # A forked child may not end what its parent uses.
        if os.getpid() == owner:
            started.destroy()

    atexit.register(end)
    return started
