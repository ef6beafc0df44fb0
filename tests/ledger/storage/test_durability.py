"""A ledger on storage that is replicated below `fsync`: pinned, always witnessed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerRolledBack,
    LedgerUnavailable,
)
from dpflow.ledger import create_ledger, open_ledger
from tests.cli.support import run, run_fine, run_json
from tests.ledger.support import edit, granted, kinds, read
from tests.postgres import PostgresServer, server

PLATFORM = "platform"
#: How the schema's owner would give the durability to a ledger, and take it away.
MAKE = (
    "CREATE FUNCTION dpflow.platform_keeps() RETURNS boolean LANGUAGE sql AS 'SELECT "
    "true'"
)
DROP = "DROP FUNCTION dpflow.platform_keeps()"


@pytest.fixture(scope="module")
def lying() -> Iterator[PostgresServer]:
    """Give a server whose settings do not say that it keeps what it acknowledges."""
    started = PostgresServer("fsync=off", "full_page_writes=off")
    yield started
    started.destroy()


@pytest.fixture
def ledger_url(lying: PostgresServer) -> Iterator[str]:
    """Give an empty database on it."""
    found = lying.new_database()
    yield found
    lying.drop(found)


@pytest.fixture
def witness() -> Iterator[str]:
    """Give an empty database on another server, which keeps what it acknowledges."""
    found = server().new_database()
    yield found
    server().drop(found)


def test_replicated_storage_serves_with_a_witness_on_another_server(
    ledger_url: str, witness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the durability the same server is refused, whatever a process says."""
    for given in ({}, {"durability": "fsync"}):
        with pytest.raises(LedgerUnavailable, match=r"fsync = off.*--durability platf"):
            create_ledger(ledger_url, witness=witness, **given)
    create_ledger(ledger_url, witness=witness, durability=PLATFORM).close()
    monkeypatch.setenv("DPFLOW_WITNESS", witness)
    ledger = open_ledger(ledger_url)
    assert ledger.durability == PLATFORM
    granted(ledger)
    ledger.close()
    assert kinds(ledger_url) == ["open", "reserve"]
    assert len(read(witness, "SELECT FROM dpflow_witness.line WHERE number > 0")) == 1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (None, "is not set"),
        ("none", "is waived"),
        ("prefect:", "in Prefect's server"),
        ("/mnt/witness", "in a folder"),
    ],
)
def test_a_process_without_a_witness_elsewhere_is_refused(  # noqa: PLR0917
    setting: str | None,
    said: str,
    ledger_url: str,
    witness: str,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger says so, and no process for itself; a default one may waive it."""
    monkeypatch.delenv("DPFLOW_WITNESS")
    with pytest.raises(ConfigurationError, match=said):
        create_ledger(ledger_url, witness=setting, durability=PLATFORM)
    assert read(ledger_url, "SELECT to_regnamespace('dpflow')") == [(None,)]
    create_ledger(ledger_url, witness=witness, durability=PLATFORM).close()
    for place in (ledger_url, f"{ledger_url}&options=-cfsync.x%3Don"):
        with pytest.raises(ConfigurationError, match=f"{said}.*on another server"):
            open_ledger(place, witness=setting)
    assert kinds(ledger_url) == []
    create_ledger(postgres_url, witness="none").close()
    granted(open_ledger(postgres_url, witness="none"))


def test_a_witness_on_the_ledgers_own_server_is_refused(
    ledger_url: str, postgres_url: str, witness: str
) -> None:
    """Also in another database, where both servers pass by their settings."""
    for place in (witness, postgres_url):
        with pytest.raises(ConfigurationError, match="on the ledger's own server"):
            create_ledger(postgres_url, witness=place, durability=PLATFORM)
    with pytest.raises(LedgerMissing):
        open_ledger(postgres_url, witness="none")
    # The default durability asks for another database only.
    create_ledger(postgres_url, witness=witness).close()
    granted(open_ledger(postgres_url, witness=witness))


def test_the_witness_is_held_to_its_own_settings(
    lying: PostgresServer, ledger_url: str, witness: str
) -> None:
    """A ledger that lies beside it in its database makes up for nothing."""
    create_ledger(ledger_url, witness=witness, durability=PLATFORM).close()
    other = server().new_database()
    try:
        with pytest.raises(LedgerUnavailable, match=r"witness .* has fsync = off"):
            create_ledger(other, witness=ledger_url, durability=PLATFORM)
        with pytest.raises(LedgerUnavailable, match=r"witness .* has fsync = off"):
            create_ledger(other, witness=ledger_url)
    finally:
        server().drop(other)


def test_a_commit_that_nobody_waits_for_is_refused_all_the_same(
    lying: PostgresServer, ledger_url: str, witness: str
) -> None:
    """No storage below keeps what the server did not wait for."""
    create_ledger(ledger_url, witness=witness, durability=PLATFORM).close()
    name = ledger_url.partition("@/")[2].partition("?")[0]
    lying.run(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with pytest.raises(LedgerUnavailable, match="synchronous_commit = off") as error:
        granted(open_ledger(ledger_url, witness=witness))
    assert PLATFORM not in error.value.message


@pytest.mark.parametrize("was", ["fsync", PLATFORM])
def test_a_durability_that_changes_is_refused(
    was: str, postgres_url: str, lying: PostgresServer
) -> None:
    """By who had opened it, before anything is charged: nobody gets a weaker one."""
    place = postgres_url
    witness = server().new_database()
    if was == PLATFORM:
        place = lying.new_database()
    ledger = create_ledger(place, witness=witness, durability=was)
    granted(ledger)
    edit(place, DROP if was == PLATFORM else MAKE, locked=True)
    for _ in range(2):
        # Whatever is asked first: the connection was closed, and a new one is refused.
        with pytest.raises((LedgerCorrupt, LedgerUnavailable)) as error:
            granted(ledger)
        assert re.search(
            f"durability of .* was {was} when|has fsync = off", error.value.message
        )
    assert kinds(place) == ["open", "reserve"]
    ledger.close()
    server().drop(witness)
    if was == PLATFORM:
        lying.drop(place)


def test_what_the_platform_lost_is_noticed(
    lying: PostgresServer, ledger_url: str, witness: str
) -> None:
    """Its acknowledged charge is gone, the witness tells; a copy elsewhere as well."""
    ledger = create_ledger(ledger_url, witness=witness, durability=PLATFORM)
    granted(ledger)
    ledger.close()
    name = ledger_url.partition("@/")[2].partition("?")[0]
    copy = ledger_url.replace(name, f"{name}copy")
    lying.run(f"CREATE DATABASE {name}copy TEMPLATE {name}")
    granted(open_ledger(ledger_url, witness=witness))
    try:
        with pytest.raises(LedgerRolledBack):
            granted(open_ledger(copy, witness=witness))
        with pytest.raises(ConfigurationError, match="on another server"):
            open_ledger(copy, witness="none")
    finally:
        lying.drop(copy)


def test_a_file_has_no_server_below(tmp_path: Path) -> None:
    """It sets its own durability; a word that is none is shown."""
    place = f"sqlite:///{tmp_path}/ledger.db"
    with pytest.raises(ConfigurationError, match="this ledger is a file"):
        create_ledger(place, durability=PLATFORM)
    with pytest.raises(ConfigurationError, match="got 'none'"):
        create_ledger(place, durability="none")
    assert not list(tmp_path.iterdir())
    made = create_ledger(place, witness=str(tmp_path / "w"))
    assert made.durability == "fsync"


def test_commands_say_it(
    ledger_url: str,
    witness: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`init` writes it; `status`, `ledger status` and `verify` read it back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFLOW_LEDGER_URL", ledger_url)
    monkeypatch.setenv("DPFLOW_WITNESS", witness)
    assert "--durability platform" in run("ledger", "init").stderr
    run_fine("ledger", "init", "--durability", PLATFORM)
    for command in (("status",), ("ledger", "status"), ("ledger", "verify")):
        assert run_json(*command)["ledger"]["durability"] == PLATFORM
        assert re.search(f"[Dd]urability:? +{PLATFORM}", run_fine(*command))
    monkeypatch.setenv("DPFLOW_WITNESS", "none")
    assert "the witness is waived" in run("ledger", "verify").stderr
