"""A connection that fails says why, without any text that may hold a secret."""

from __future__ import annotations

import psycopg
import pytest

from dpflow.exceptions import ConfigurationError, LedgerMissing, LedgerUnavailable
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.tables.postgres import PostgresDatabase
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
        (
            "postgresql://a:hidden@127.0.0.1:1/x",
            r"a@127\.0\.0\.1:1.* no server accepts",
        ),
    ],
)
def test_a_real_server_gives_the_reason(place, reason):
    """The words of the driver are those that the installed one says."""
    at = place.format(at="postgresql://postgres@", host=server().folder)
    kind = LedgerMissing if "missing" in place else LedgerUnavailable
    with pytest.raises(kind, match=reason) as error:
        Server(at).connect()
    assert "hidden" not in str(error.value)
    assert error.value.__cause__ is None


SECRET = "s3cr3t/w@rd"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://ann:pw@db:5433/x", "postgresql://ann@db:5433/x"),
        ("postgres://ann:pw@db/x?sslmode=require", "postgresql://ann@db/x"),
        ("postgresql://db/x", "postgresql://db/x"),
        ("postgresql://ann@/x?host=/run/pg", "postgresql://ann@/x?host=/run/pg"),
        ("postgresql://ann@db/x?password=pw", "postgresql://ann@db/x"),
    ],
)
def test_a_place_is_its_url_without_a_secret(url, place):
    """So that any message may say it."""
    assert PostgresDatabase(url).address == place


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@db:port/x",
        f"postgresql://ann:{SECRET}@db/x?unheard=of",
        f"postgresql://ann:{SECRET}@[db/x",
        f"postgresql://ann:{SECRET}@db/x",
        "postgresql://ann:s3cr3t@12@db/x",
        "postgresql://ann:s3cr3t/12@db/x",
        "postgresql://ann:s3cr3t?12@db/x",
        "postgresql://ann:s3cr3t#12@db/x",
        "postgresql://ann:12:s3cr3t@db/x",
        "postgresql://ann:s3cr3t%zz@db/x",
    ],
)
def test_a_url_that_cannot_be_read_is_not_quoted(url):
    """The driver would quote what it takes for a port, which is half a password."""
    with pytest.raises(ConfigurationError, match="cannot be read") as caught:
        open_ledger(url)
    assert "s3cr3t" not in f"{caught.value} {caught.value.__context__}"


@pytest.mark.parametrize("password", ["a", "connection", "hunter2"])
def test_a_driver_s_message_is_never_shown(password):
    """A mask would show where a short password stands in a sentence that all know."""
    url = f"postgresql://app:{password}@db/x"
    failed = f'connection failed: {url} at "127.0.0.1": Connection refused'
    error = Server(url).translate_error(psycopg.OperationalError(failed))
    assert str(error) == (
        "the ledger postgresql://app@db/x cannot be used: no server accepts "
        "connections at this address. The step did not run and nothing was charged "
        "unless `dpflow history` shows it."
    )
