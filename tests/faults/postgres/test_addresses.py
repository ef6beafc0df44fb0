"""A connection that fails says why, without any text that may hold a secret."""

from __future__ import annotations

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
def test_what_the_driver_says_becomes_a_sentence(text, reason, monkeypatch):
    """The words of the driver decide, and not those of the names that it quotes."""

    def refuse(**_: object) -> None:
        raise psycopg.OperationalError(text)

    monkeypatch.setattr("psycopg.Connection.connect", refuse)
    with pytest.raises(LedgerUnavailable, match=reason) as error:
        Server("postgresql://worker:hidden@h/ledger").connect()
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("{at}/postgres?host={host}&user=unknown", "no such database or role"),
        ("{at}/missing?host={host}", "no such database or role"),
        ("{at}/postgres?host={host}&target_session_attrs=standby", "session_attrs"),
        ("{at}/postgres?host={host}&service=none", "the service of PGSERVICE"),
        ("postgresql://host.invalid/x", "host cannot be resolved"),
        ("postgresql://127.0.0.1:1/x", "no server accepts connections"),
    ],
)
def test_a_real_server_gives_the_reason(place, reason):
    """The words of the driver are those that the installed one says."""
    at = place.format(at="postgresql://postgres@", host=server().folder)
    kind = LedgerMissing if "missing" in place else LedgerUnavailable
    with pytest.raises(kind, match=reason):
        Server(at).connect()
