"""An upgrade changes the tables in one transaction, and each journal says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dpflow.exceptions import ConfigurationError, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.audit import upgrades
from dpflow.ledger.audit.upgrades import upgrade
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Replayed
from dpflow.ledger.tables.sqlite import _Opened
from tests.plain.support import charged, granted, request, url
from tests.postgres import server

ADDED = ["ALTER TABLE run ADD COLUMN note TEXT"]
NEXT = {6: {"sqlite": ADDED, "postgres": ADDED}}


@pytest.fixture(params=["sqlite", "postgres"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give a place for a ledger."""
    if request.param == "sqlite":
        yield url(tmp_path / "ledger.db")
    else:
        place = server().new_database()
        yield place
        server().drop(place)


def made(at: str, tmp_path: Path) -> tuple[Ledger, str]:
    """Make a ledger with a release and an open charge, which is returned."""
    ledger = create_ledger(at, witness=str(tmp_path / "witness"))
    released = request(ledger, "0.1", key="k")
    ledger.reserve(released)
    ledger.settle(released.reservation, value="1")
    return ledger, granted(ledger, "0.1")


def saved_at(at: str, tmp_path: Path) -> Path | None:
    """Return where the ledger is saved, if it is a file."""
    return tmp_path / "saved.db" if at.startswith("sqlite") else None


def test_an_upgraded_ledger_goes_on(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replayed from, settled and charged; an older process says its version."""
    ledger, charge = made(at, tmp_path)
    witness, saved = str(tmp_path / "witness"), saved_at(at, tmp_path)
    how = {"saved": saved, "witness": witness, "version": 6, "migrations": NEXT}
    assert upgrade(at, **how) == 5  # type: ignore[arg-type]
    assert upgrade(at, **how) == 6  # type: ignore[arg-type]
    with pytest.raises(LedgerUnavailable, match=r"version 6.*newer dpflow"):
        granted(ledger)
    with pytest.raises(LedgerUnavailable, match=r"version 6.*newer dpflow"):
        ledger.settle(charge)
    owners = ledger.owners
    monkeypatch.setattr(_Opened, "version", 6)
    upgraded = open_ledger(at, witness=witness)
    upgraded.owners = owners
    upgraded.settle(charge, outcome="failed")
    answer = upgraded.reserve(request(upgraded, "0.1", key="k"))
    assert isinstance(answer, Replayed)
    charged(upgraded, "0.1")
    assert verify(upgraded).bad == []
    with upgraded.reading() as transaction:
        transaction.begin(lock=False)
        rows = transaction.ask("read_journal_page", dataset="a", after=0, limit=99)
    assert [row[4] for row in rows].count("upgrade") == 1
    if saved is not None:
        monkeypatch.setattr(_Opened, "version", 5)
        # The witness has the entry of the upgrade: no older copy decides again.
        with pytest.raises(Exception, match="lacks entry"):
            granted(open_ledger(url(saved), witness=witness))
        assert verify(open_ledger(url(saved), witness="none")).bad == []


@pytest.mark.parametrize(
    ("version", "migrations", "match"),
    [(4, {}, "newer dpflow"), (6, {}, "dpflow that made it"), (7, NEXT, "made it")],
)
def test_other_versions_are_refused(
    at: str, tmp_path: Path, version: int, migrations: upgrades.Migrations, match: str
) -> None:
    """In words that say the version; nothing is changed."""
    ledger, _ = made(at, tmp_path)
    with pytest.raises(LedgerUnavailable, match=f"version 5.*{match}"):
        upgrade(at, saved=None, witness="none", version=version, migrations=migrations)
    granted(ledger, "0.1")


def test_a_failed_migration_changes_nothing(at: str, tmp_path: Path) -> None:
    """Neither tables, nor version, nor journals; a damaged ledger is not begun."""
    ledger, _ = made(at, tmp_path)
    witness = str(tmp_path / "witness")
    broken = {6: dict.fromkeys(NEXT[6], (*ADDED, "ALTER TABLE run BAD"))}
    with pytest.raises(Exception, match=r"(?i)syntax"):
        upgrade(at, saved=None, witness=witness, version=6, migrations=broken)
    granted(ledger, "0.1")
    assert verify(ledger).bad == []
    with ledger.database.transaction() as transaction:
        transaction.begin(lock=False)
        transaction.send_text("UPDATE account SET version = version + 1", {})
    with pytest.raises(LedgerCorrupt, match="Nothing was changed"):
        upgrade(at, saved=None, witness=witness, version=6, migrations=NEXT)


def test_a_saved_file_is_never_replaced(tmp_path: Path) -> None:
    """Something is at its place: nothing is changed."""
    at = url(tmp_path / "ledger.db")
    ledger, _ = made(at, tmp_path)
    (tmp_path / "saved.db").write_text("x")
    saved = tmp_path / "saved.db"
    with pytest.raises(ConfigurationError, match="never replaces"):
        upgrade(at, saved=saved, witness="none", version=6, migrations=NEXT)
    granted(ledger, "0.1")


def test_it_waits_for_steps_and_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that holds the tables for too long stops the upgrade, and no step."""
    at = server().new_database()
    ledger, _ = made(at, tmp_path)
    monkeypatch.setattr(upgrades, "_SECONDS", 0.0)
    with psycopg.connect(at) as session:
        session.execute("SELECT * FROM dpflow.dataset")
        with pytest.raises(LedgerUnavailable, match="another process"):
            upgrade(at, saved=None, witness="none", version=6, migrations=NEXT)
    granted(ledger, "0.1")
    server().drop(at)
