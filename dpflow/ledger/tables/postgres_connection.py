"""A connection to PostgreSQL that keeps what it acknowledges, and its errors.

A server that may lose an acknowledged commit is refused: `fsync`, `full_page_writes`
and `synchronous_commit` are read back, and so is whether it is a standby.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, dict_row

from dpflow.exceptions import ConfigurationError, LedgerMissing, LedgerUnavailable
from dpflow.interrupts import contextmanager, suppress
from dpflow.ledger.tables.errors import busy, refuse_damaged, unusable
from dpflow.ledger.tables.owners import Liveness, names_here
from dpflow.ledger.tables.statements import SQL
from dpflow.locks import LOCK_SECONDS, TurnQueue

#: How long one statement may take, and a transaction may idle, on the server.
STATEMENT_SECONDS: Final = 120.0
IDLE_SECONDS: Final = 60.0
#: A server that stopped without closing its sockets answers nothing.
_GRACE_SECONDS: Final = 10.0
_DEFAULTS: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "dpflow",
}
_FIXED: Final = {"client_encoding": "utf8", "autocommit": True}
#: Settings under which a server keeps what it acknowledges, and their safe values.
_DURABLE: Final = ("synchronous_commit", "fsync", "full_page_writes")
_SAFE: Final = ("on", "remote_apply")
_URL: Final = re.compile(
    r"postgres(?:ql)?://"
    r"(?:[^/@:?#\s]*(?::[^/@:?#\s]*)?@)?"  # user and password
    r"[A-Za-z0-9._,:%\[\]-]*"  # hosts and ports
    r"(?:/[^/@:?#\s]*)?(?:\?[^#@\s]*)?"  # database and options
)
_NO_LEDGER: Final = ("42P01", "3F000", "3D000")
#: Words of the driver's messages about a connection, and what they mean. The message
#: itself is not shown: it may quote the URL, and a mask would show where.
_NO_CONNECTION: Final = {
    "connections for role": "the role has all the connections of its CONNECTION LIMIT",
    "connections for data": "the database has all the connections of its limit",
    "clients|slots": "the server has all the connections of its max_connections",
    "definition of service|service file": "no file defines the service of PGSERVICE",
    "read-only|standby mode": "no server is as target_session_attrs demands",
    "not support SSL": "the server has no TLS, and sslmode demands it",
    "certificate|SSL|TLS": "client and server agree on no TLS; see sslmode",
    "password": "the server needs another user or password",
    "pg_hba": "the server's pg_hba.conf does not admit this user from this address",
    "log in|permission denied": "the role may not log in, or not to this database",
    "not currently accepting": "the database accepts no connections",
    "starting up|shutting down|not yet": "the server is starting or stopping",
    "does not exist": "there is no such database or role",
    "refused|No such file|route": "no server accepts connections at this address",
    "timeout|timed out": "the server does not answer",
    "host name|resolve": "the name of the host cannot be resolved",
    "closed": "the server closed the connection",
}


class Connection(psycopg.Connection[TupleRow]):
    """A connection whose every wait has an end.

    Attributes:
        properties: The answer to the question `prepare_connection`, by name.
        prepared: Names of the statements that its pipelines prepared, by their texts.
    """

    properties: Mapping[str, Any]
    prepared: dict[bytes, bytes]

    def wait(self, gen: Any, interval: Any = 0.1, timeout: Any = None) -> Any:
        """Wait for the server, at most so long that a stopped one is noticed.

        After an error the connection is closed, and what still waits for it waits no
        more.
        """
        if self.closed:
            return None
        try:
            patience = STATEMENT_SECONDS + _GRACE_SECONDS
            return super().wait(gen, interval, timeout or patience)
        except BaseException:
            self.close()
            raise


class Server:
    """A session of the ledger's server.

    One thread at a time uses its connection, and never across a fork.

    Args:
        url: `postgresql://user:password@host:port/database?options`.

    Attributes:
        address: The URL without any secret, for messages.
        login: The name under which the server knows this process; None before the
            first connection.

    Raises:
        ConfigurationError: If the URL cannot be read.
    """

    #: What the server keeps, for messages.
    keeps = "ledger"
    #: How long the server lets a transaction wait for a lock.
    lock_seconds = LOCK_SECONDS

    def __init__(self, url: str) -> None:
        options: dict[str, Any] = {}
        with suppress(psycopg.Error):
            # A password could be taken for something else in any other URL.
            options = conninfo_to_dict(url) if _URL.fullmatch(url) else {}
        if not options:
            # Neither it nor the driver's message is shown: both may hold a password.
            msg = (
                f"the {self.keeps}'s URL cannot be read; write "
                "postgresql://user:password@host:5432/database, with characters "
                "such as @, : and / in the password written as %40, %3A and %2F"
            )
            raise ConfigurationError(msg)
        self._options = {**_DEFAULTS, **options, **_FIXED}
        self.address = _without_password(options)
        self.login: str | None = None
        self._connection: Connection | None = None
        self._pid = os.getpid()
        _servers.add(self)

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Give the connection to a block; after an error it is never used again."""
        try:
            yield self.open()
        except BaseException as error:
            self.drop()
            if isinstance(error, psycopg.Error):
                raise self.translate_error(error) from None
            raise

    def open(self) -> Connection:
        """Return the connection; a new one if it is not idle, or has ended."""
        connection = self._connection
        if connection is None or self._pid != os.getpid() or _is_stale(connection):
            self.drop()
            connection = self._connection = self.connect()
        return connection

    def drop(self) -> None:
        """Close the connection, if there is one; in a forked child, give it up."""
        connection, self._connection = self._connection, None
        own, self._pid = self._pid == os.getpid(), os.getpid()
        if connection is not None:
            connection.close() if own else _abandon(connection)

    def connect(self) -> Connection:
        """Open a connection and check that the server keeps what it acknowledges.

        Raises:
            LedgerUnavailable: If the server is out of reach or not durable.
            LedgerMissing: If there is no such database.
        """
        connection: Connection | None = None
        limits = {
            "lock_timeout": f"{self.lock_seconds}s",
            "statement_timeout": f"{STATEMENT_SECONDS}s",
            "idle_timeout": f"{IDLE_SECONDS}s",
        }
        try:
            connection = Connection.connect(**self._options)
            # In a transaction of its own, should a pooler stand in between.
            cursor = connection.cursor(row_factory=dict_row)
            (properties,) = cursor.execute(SQL["prepare_connection"], limits)
            (settings,) = connection.execute(SQL["durable"])
            self.check_durable(settings)
            if properties["pid"] != connection.info.backend_pid:
                self._refuse(
                    "is behind a connection pooler, and a session of its own is "
                    "needed; point the URL at the server"
                )
            if properties["server_encoding"] != "UTF8":
                self._refuse(
                    f"has a database of encoding {properties['server_encoding']}, "
                    "which cannot keep every name; make one of encoding UTF8"
                )
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, psycopg.Error):
                raise self.translate_error(error) from None
            raise
        connection.properties, self.login = properties, properties["login"]
        connection.prepared = {}
        return connection

    def check_durable(self, settings: Sequence[Any]) -> None:
        """Refuse settings under which an acknowledged commit may be lost.

        Args:
            settings: The answer to the question `durable`.

        Raises:
            LedgerUnavailable: If there are any; says which.
        """
        *values, in_recovery = settings
        if in_recovery:
            self._refuse(
                "is a standby in recovery; what it shows may be old. Point the URL at "
                "the primary, or add `?target_session_attrs=read-write` to a URL of "
                "several hosts."
            )
        for name, value in zip(_DURABLE, values, strict=True):
            if value not in _SAFE:
                self._refuse(
                    f"has {name} = {value}, so a crash may lose what it acknowledged; "
                    "set it to on (in postgresql.conf, for the role and the database)"
                )

    def _refuse(self, what: str) -> NoReturn:
        msg = f"the server of the {self.keeps} {self.address} {what}"
        raise LedgerUnavailable(msg, ledger=self.address)

    def translate_error(self, error: psycopg.Error) -> Exception:
        """Turn a driver's error into the ledger's, without any secret."""
        code, text, address = error.sqlstate or "", self.clean(error), self.address
        unknown = re.search(r'database ".*" does not exist', str(error))
        wrong = psycopg.IntegrityError | psycopg.DataError | psycopg.ProgrammingError
        if code in _NO_LEDGER or (unknown and not code):
            msg = (
                f"there is no ledger at {address} ({text}). For a new project, make "
                "one with `dpflow ledger init`; if there was one, restore it: a new, "
                "empty ledger would forget what has been spent."
            )
            return LedgerMissing(msg, ledger=address)
        if code == "55P03":
            advice = ", or find the holder in pg_stat_activity"
            return busy(address, "process", self.lock_seconds, advice)
        if code == "42501":
            return self.deny(text)
        if isinstance(error, wrong) or code.startswith("XX"):
            return refuse_damaged(text, address)
        return unusable(text, address)

    def deny(self, text: str) -> LedgerUnavailable:
        """Return the error for a role that lacks a right."""
        msg = (
            f"the role that uses the ledger {self.address} may not do this: {text}. "
            "`dpflow ledger roles --sql` shows who may: steps and a freeze need the "
            "role dpflow_worker, opening a term and unfreezing dpflow_operator."
        )
        return LedgerUnavailable(msg, ledger=self.address)

    def clean(self, error: psycopg.Error) -> str:
        """Return the server's message in one line, or what the driver's means."""
        if text := error.diag.message_primary:
            return f"{' '.join(text.split()).rstrip('.')} (SQLSTATE {error.sqlstate})"
        # A name may hold any words.
        text = re.sub(r"""\s*("[^"]*"|'[^']*')""", "", str(error))
        meanings = (v for k, v in _NO_CONNECTION.items() if re.search(k, text))
        return next(meanings, "the connection failed or is lost; `psql` says why")


def _without_password(options: Mapping[str, Any]) -> str:
    user = f"{options['user']}@" if options.get("user") else ""
    host, port = str(options.get("host") or ""), options.get("port")
    database = options.get("dbname") or options.get("user") or ""
    if host.startswith("/"):
        return f"postgresql://{user}/{database}?host={host}"
    return f"postgresql://{user}{host}{f':{port}' if port else ''}/{database}"


#: All that may have a connection when this process forks.
_servers: WeakSet[Server] = WeakSet()


def _leave_all_to_parent() -> None:
    for server in list(_servers):
        server.drop()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _is_stale(connection: Connection) -> bool:
    """Return True if a connection is not idle, or something came on it meanwhile."""
    info = connection.info
    if info.transaction_status != TransactionStatus.IDLE or info.pipeline_status:
        return True
    with suppress(OSError, ValueError, psycopg.Error):
        waiting = select.poll()
        waiting.register(connection.pgconn.socket, select.POLLIN)
        return bool(waiting.poll(0))
    return True


def _abandon(connection: Connection) -> None:
    """Drop an inherited connection in a forked child without telling the server."""
    # It may have been closed before the fork.
    with suppress(OSError, psycopg.Error):
        silence = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(silence, connection.pgconn.socket, inheritable=False)
        os.close(silence)
        connection.close()


#: dpflow itself never takes such a lock.
_ADVICE = " once pg_terminate_backend has ended it (mode 'ExclusiveLock' in pg_locks)"


class SessionOwners(Liveness):
    """The owners of one ledger, as locks in its database.

    Args:
        server: A session with the server of the ledger, for the owners only.
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        # A server that does not answer holds up no other ledger's owners.
        self._lock = TurnQueue()
        #: The connection in which the lock of the name was taken.
        self._holder: Connection | None = None

    def _mine(self) -> str:
        name = super()._mine()
        with self._session():
            return name

    def _is_held(self, owner: str) -> bool:
        with self._session() as connection:
            answer = connection.execute(SQL["owner_alive"], _key(owner))
            return answer.fetchone() is not None

    def _give_up(self) -> None:
        super()._give_up()
        self._server.drop()

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """Give a session that has the lock of this process's name, if it has one."""
        with self._server.session() as connection:
            if connection is not self._holder and self._name in names_here:
                # Shared, so that a session that the server has not given up is no
                # obstacle.
                try:
                    connection.execute(SQL["take_owner"], _key(self._name))
                except psycopg.errors.LockNotAvailable:
                    holder = "session, under the name of this process,"
                    address, waited = self._server.address, self._server.lock_seconds
                    raise busy(address, holder, waited, _ADVICE) from None
                self._holder = connection
            yield connection


def _key(owner: str) -> dict[str, int]:
    """Return the number of an owner's lock."""
    return {"key": int.from_bytes(bytes.fromhex(owner)[:8], signed=True)}
