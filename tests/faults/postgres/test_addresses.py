"""A connection that fails says why, without any text that may hold a secret."""

from __future__ import annotations

import psycopg
import pytest

from dpflow.exceptions import ConfigurationError, LedgerMissing, LedgerUnavailable
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.tables.postgres import PostgresDatabase
from dpflow.ledger.tables.postgres_connection import Server
from tests.faults.postgres.test_servers import TABLES
from tests.postgres import server
from tests.snapshots import answers, differences


def test_what_the_driver_says_becomes_a_sentence(monkeypatch):
    """The words of the driver decide, and not those of the names that it quotes."""

    def sentence(text):
        def refuse(**_: object) -> None:
            raise psycopg.OperationalError(text)

        monkeypatch.setattr("psycopg.Connection.connect", refuse)
        with pytest.raises(LedgerUnavailable) as error:
            Server("postgresql://worker:hidden@h/ledger").connect()
        assert "hidden" not in str(error.value)
        return str(error.value)

    assert differences({"connections": answers("connections", sentence)}) == []


@pytest.mark.parametrize(("place", "reason"), TABLES["addresses"].items())
def test_a_real_server_gives_the_reason(place, reason):
    """The words of the driver are those that the installed one says."""
    at = place.format(at="postgresql://postgres@", host=server().folder)
    kind = LedgerMissing if "missing" in place else LedgerUnavailable
    with pytest.raises(kind, match=reason) as error:
        Server(at).connect()
    assert "hidden" not in str(error.value)
    assert error.value.__cause__ is None


def test_a_place_is_its_url_without_a_secret():
    """One that cannot be read is not quoted; the driver would quote half a password."""

    def place(url):
        if "s3cr3t" not in url:
            return PostgresDatabase(url).address
        with pytest.raises(ConfigurationError) as caught:
            open_ledger(url)
        assert "s3cr3t" not in f"{caught.value} {caught.value.__context__}"
        return str(caught.value)

    assert differences({"addresses": answers("addresses", place)}) == []


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
