"""A connection that fails says why, without any text that may hold a secret."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from dpflow.exceptions import LedgerMissing, LedgerUnavailable
from dpflow.ledger.tables.postgres_connection import Server
from tests.postgres import server

FATAL = 'connection failed: connection to server at "h", port 5432 failed: FATAL:  '
#: What the driver says, and what dpflow does.
TEXTS = {
    FATAL + 'too many connections for role "password"': "role has all the connections",
    FATAL + 'too many connections for database "x"': "database has all the connections",
    FATAL + "sorry, too many clients already": "its max_connections",
    FATAL + "remaining connection slots are reserved for roles": "max_connections",
    FATAL + 'password authentication failed for user "timeout"': "user or password",
    "connection failed: fe_sendauth: no password supplied": "user or password",
    FATAL + 'no pg_hba.conf entry for host "h", user "x"': "pg_hba.conf does not admit",
    FATAL + 'database "x" is not currently accepting connections': "no connections",
    FATAL + "the database system is starting up": "starting or stopping",
    "failed: server does not support SSL, but SSL was required": "has no TLS",
    'root certificate file "/x/root.crt" does not exist': "agree on no TLS",
    "SSL error: certificate verify failed": "agree on no TLS",
    "failed: session is read-only": "target_session_attrs",
    "failed: server is in hot standby mode": "target_session_attrs",
    'definition of service "password" not found': "defines the service of PGSERVICE",
    'service file "/etc/pg_service.conf" not found': "defines the service of PGSERVICE",
    'could not translate host name "refused" to address': "host cannot be resolved",
    "connection timeout expired": "does not answer",
    "server closed the connection unexpectedly": "closed the connection",
    "what no driver has ever said": "`psql` says why",
}


@pytest.mark.parametrize(("text", "reason"), TEXTS.items())
def test_what_the_driver_says_becomes_a_sentence(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of the driver decide, and not those of the names that it quotes."""

    def refuse(**_: object) -> None:
        raise psycopg.OperationalError(text)

    monkeypatch.setattr("psycopg.Connection.connect", refuse)
    with pytest.raises(LedgerUnavailable, match=reason) as error:
        Server("postgresql://worker:hidden@h/ledger").connect()
    assert "hidden" not in str(error.value)


@pytest.fixture(scope="module")
def limits() -> Iterator[dict[str, str]]:
    """Give URLs of a real server that lead to no connection, by what is wrong."""
    database = server().new_database()
    name = database.partition("@/")[2].partition("?")[0]
    made = (f"CREATE ROLE {name}_few LOGIN CONNECTION LIMIT 0",)
    made += (f"CREATE ROLE {name}_none", f"CREATE ROLE {name}_all LOGIN")
    server().run(*made, f"ALTER DATABASE {name} CONNECTION LIMIT 0")
    yield {
        "role": server().url("postgres", f"{name}_few"),
        "database": server().url(name, f"{name}_all"),
        "login": server().url("postgres", f"{name}_none"),
        "unknown": server().url("postgres", f"{name}_unknown"),
        "missing": server().url(f"{name}_missing"),
        "attributes": f"{database}&target_session_attrs=standby",
        "service": f"{database}&service=none",
        "host": "postgresql://host.invalid/x",
        "refused": "postgresql://127.0.0.1:1/x",
    }
    server().drop(database)
    server().run(*(f"DROP ROLE {name}_{end}" for end in ("few", "none", "all")))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("role", "the role has all the connections"),
        ("database", "the database has all the connections"),
        ("login", "the role may not log in"),
        ("unknown", "no such database or role"),
        ("missing", "no such database or role"),
        ("attributes", "target_session_attrs"),
        ("service", "defines the service of PGSERVICE"),
        ("host", "host cannot be resolved"),
        ("refused", "no server accepts connections"),
    ],
)
def test_a_real_server_gives_the_reason(
    limits: dict[str, str], what: str, reason: str
) -> None:
    """The words of the driver are those that the installed one says."""
    kind = LedgerMissing if what == "missing" else LedgerUnavailable
    with pytest.raises(kind, match=reason):
        Server(limits[what]).connect()
