"""Addresses of servers, and messages that show no password."""

from __future__ import annotations

import secrets

import psycopg
import pytest

from dpflow.exceptions import ConfigurationError, LedgerUnavailable
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.storage.postgres import PostgresStorage
from dpflow.ledger.storage.postgres_connection import Server
from tests.postgres import server

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
def test_a_place_is_its_url_without_a_secret(url: str, place: str) -> None:
    """So that any message may say it."""
    assert PostgresStorage(url).place == place


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
def test_a_url_that_cannot_be_read_is_not_quoted(url: str) -> None:
    """The driver would quote what it takes for a port, which is half a password."""
    with pytest.raises(ConfigurationError, match="cannot be read") as caught:
        open_ledger(url)
    assert "s3cr3t" not in f"{caught.value} {caught.value.__context__}"


def test_a_server_out_of_reach_is_unavailable() -> None:
    """With the place and the reason, without the password."""
    url = f"postgresql://ann:{secrets.token_hex(8)}@127.0.0.1:1/x?connect_timeout=2"
    password = url.split(":")[2].partition("@")[0]
    with pytest.raises(LedgerUnavailable, match=r"ann@127\.0\.0\.1:1/x") as caught:
        open_ledger(url, witness="none")
    assert password not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("password", ["a", "connection", "hunter2"])
def test_a_driver_s_message_is_never_shown(password: str) -> None:
    """A mask would show where a short password stands in a sentence that all know."""
    url = f"postgresql://app:{password}@db/x"
    failed = f'connection failed: {url} at "127.0.0.1": Connection refused'
    error = Server(url).translated(psycopg.OperationalError(failed))
    assert str(error) == (
        "the ledger postgresql://app@db/x cannot be used: no server accepts "
        "connections at this address. The step did not run and nothing was charged "
        "unless `dpflow history` shows it."
    )


def test_a_database_that_cannot_keep_every_name_is_refused() -> None:
    """At the first connection, before anything is charged."""
    odd = server().new_database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(LedgerUnavailable, match="encoding LATIN1"):
        create_ledger(odd)
    server().drop(odd)
