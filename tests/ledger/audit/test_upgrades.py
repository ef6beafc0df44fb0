"""An upgrade changes the tables in one transaction; ledgers of each version go on."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerRolledBack,
    LedgerUnavailable,
)
from dpflow.ledger.audit import upgrades
from dpflow.ledger.audit.copies import backup, read_rows
from dpflow.ledger.audit.reconcile import trust
from dpflow.ledger.audit.restores import restore
from dpflow.ledger.audit.upgrades import upgrade
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Replayed
from dpflow.ledger.tables.columns import tables
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.rows import Charge, name_columns
from dpflow.ledger.tables.sqlite import SqliteDatabase
from dpflow.ledger.tables.transaction import VERSION
from dpflow.ledger.witness.comparison import state_of_ledger
from tests.ledger.audit.test_version_4 import FILE as VERSION_4
from tests.ledger.audit.test_version_4 import copy_to_server
from tests.ledger.audit.versions import check_ledger
from tests.ledger.support import Place, charged, entries, granted, request, url
from tests.ledgers.make import main
from tests.projects import ROOT

ADDED = ["ALTER TABLE run ADD COLUMN note TEXT"]
NEXT = {6: {"sqlite": ADDED, "postgres": ADDED}}


pytestmark = pytest.mark.storages("sqlite", "postgres")


class Begun:
    """A ledger with a release and an open charge, which is to be upgraded."""

    def __init__(self, at: str, folder: Path) -> None:
        self.at, self.witness = at, str(folder / "witness")
        self.is_file, self.saved = at.startswith("sqlite"), folder / "saved.db"
        self.ledger = create_ledger(at, witness=self.witness)
        self.ledger.settle(granted(self.ledger, "0.1", key="k"), value="1")
        self.charge = granted(self.ledger, "0.1")

    def upgrade(self, **how: Any) -> int:
        """Upgrade it, by default to the next version; return the version of before."""
        usual = {"saved": self.saved, "witness": "none"}
        return upgrade(self.at, **usual | {"version": 6, "migrations": NEXT} | how)

    def change(self, *statements: str, **values: int) -> None:
        """Change tables by hand."""
        with self.ledger.database.transaction() as transaction:
            transaction.begin(lock=False)
            transaction.send([(sql, values) for sql in statements])


@pytest.fixture
def begun(path: Place, tmp_path: Path) -> Begun:
    """Give a ledger that is to be upgraded."""
    return Begun(url(path), tmp_path)


#: An edit that `verify` finds.
DAMAGE = "UPDATE account SET version = version + 1"


def test_an_upgraded_ledger_goes_on(begun, monkeypatch):
    """Replayed from, settled and charged; an older process says its version."""
    ledger, witness = begun.ledger, begun.witness
    assert [begun.upgrade(witness=witness) for _ in range(2)] == [5, 6]
    for call in (lambda: granted(ledger), lambda: ledger.settle(begun.charge)):
        with pytest.raises(LedgerUnavailable, match=r"version 6.*newer dpflow"):
            call()
    monkeypatch.setattr(Database, "version", 6)
    upgraded = open_ledger(begun.at, witness=witness)
    upgraded.owners = ledger.owners
    upgraded.settle(begun.charge, outcome="failed")
    answer = upgraded.reserve(request(upgraded, "0.1", key="k"))
    assert isinstance(answer, Replayed)
    charged(upgraded, "0.1")
    assert verify(upgraded).bad == []
    assert [e.kind for e in entries(upgraded)].count("upgrade") == 1
    monkeypatch.setattr(Database, "version", 5)
    # The witness has the entry of the upgrade: no older copy decides again.
    with pytest.raises(Exception, match="lacks entry"):
        granted(open_ledger(url(begun.saved), witness=witness))
    assert verify(open_ledger(url(begun.saved), witness="none")).bad == []


@pytest.mark.parametrize(
    ("version", "migrations", "match"),
    [(4, {}, "newer dpflow"), (6, {}, "dpflow that made it"), (7, NEXT, "made it")],
)
def test_other_versions_are_refused(begun, version, migrations, match):
    """In words that say the version; nothing is changed."""
    with pytest.raises(LedgerUnavailable, match=f"version 5.*{match}"):
        begun.upgrade(version=version, migrations=migrations)
    assert not begun.saved.exists()
    granted(begun.ledger, "0.1")


def test_a_failed_migration_changes_nothing(begun, tmp_path):
    """Neither tables, nor version, nor journals; a damaged ledger is not begun."""
    broken = {6: dict.fromkeys(NEXT[6], (*ADDED, "ALTER TABLE run BAD"))}
    with pytest.raises(Exception, match=r"(?i)syntax"):
        begun.upgrade(witness=begun.witness, migrations=broken)
    granted(begun.ledger, "0.1")
    assert verify(begun.ledger).bad == []
    begun.change(DAMAGE)
    with pytest.raises(LedgerCorrupt, match="No backup was made"):
        begun.upgrade(witness=begun.witness, saved=tmp_path / "2.db")


def test_a_saved_file_is_never_replaced(begun):
    """Something is at its place: nothing is changed."""
    begun.saved.write_text("x")
    with pytest.raises(ConfigurationError, match="never replaces"):
        begun.upgrade()
    granted(begun.ledger, "0.1")


def test_it_waits_for_steps_and_gives_up(postgres_url, tmp_path, monkeypatch):
    """A session that holds the tables for too long stops the upgrade, and no step."""
    begun = Begun(postgres_url, tmp_path)
    monkeypatch.setattr(upgrades, "_SECONDS", 0.0)
    with psycopg.connect(begun.at) as session:
        session.execute("SELECT * FROM dpflow.dataset")
        with pytest.raises(LedgerUnavailable, match="another process"):
            begun.upgrade()
    granted(begun.ledger, "0.1")


def test_a_backup_of_an_older_version_is_of_that_version(begun):
    """It has the tables and columns of the ledger, and no newer ones."""
    dropped = ["evidence"] if begun.is_file else []
    statements = [f"DROP TABLE {name}" for name in dropped]
    begun.change("ALTER TABLE run DROP COLUMN completed", *statements)
    begun.change("set_version", version=3)
    begun.ledger.database.version = 3
    backup(begun.ledger, begun.saved)
    database = SqliteDatabase(begun.saved)
    database.version = 3
    with database.snapshot() as copy:
        copy.begin(lock=False)
        columns = {tuple(row) for row in copy.ask("read_columns")}
    assert ("run", "completed") not in columns
    assert {name for name, _ in columns} == {*tables()} - {*dropped}


def test_a_backup_that_does_not_fit_is_not_begun(begun, monkeypatch):
    """The space for the backup, and of a file for the ledger, is looked at first."""
    with begun.ledger.reading() as transaction:
        transaction.begin(lock=False)
        ((size,),) = transaction.ask("read_size")
    assert size > 50_000
    needed = size * (1 + begun.is_file)
    usage = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(upgrades, "shutil", SimpleNamespace(disk_usage=lambda _: usage))
    with pytest.raises(LedgerUnavailable, match=f"{needed:,} bytes"):
        begun.upgrade()
    assert not begun.saved.exists()
    usage.free += 1
    assert begun.upgrade() == 5


def test_an_upgrade_without_its_witness_line_writes_it_again(begun, monkeypatch):
    """It died after COMMIT: the same command again witnesses the entries."""
    with monkeypatch.context() as patch:
        patch.setattr(upgrades, "witness_heads", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            begun.upgrade(witness=begun.witness)
    granted_by = open_ledger(url(begun.saved), witness=begun.witness)
    assert granted_by.watch.problem() is None
    assert begun.upgrade(witness=begun.witness) == 6
    with pytest.raises(LedgerRolledBack, match="lacks entry"):
        granted(granted_by)


def test_an_older_copy_that_is_upgraded_marks_no_fork(tmp_path):
    """Its entries are not witnessed: the newer ledger goes on."""
    begun = Begun(url(tmp_path / "ledger.db"), tmp_path)
    older = tmp_path / "older.db"
    backup(begun.ledger, older)
    granted(begun.ledger, "0.01")
    assert upgrade(url(older), saved=begun.saved, witness=begun.witness) == 5
    assert granted(begun.ledger, "0.01")


def test_rewritten_requests_are_verified(begun, monkeypatch):
    """By the digest in the entry of the upgrade; an edit of one is found."""
    rewrites = {5: lambda _: {}, 6: lambda request: {**request, "note": 1}}
    begun.upgrade(rewrites=rewrites)
    monkeypatch.setattr(Database, "version", 6)
    upgraded = open_ledger(begun.at, witness="none")
    charge = granted(upgraded, "0.1")
    assert verify(upgraded).bad == []
    with upgraded.database.transaction() as transaction:
        transaction.begin(lock=False)
        rows = read_rows(transaction, tables()["charge"])
        edited = next(row for row in rows if row["id"] != charge)
        row = Charge.from_columns(tuple(edited.values()))
        assert row.request["note"] == 1
        assert row.request["datasets"] == ["a"]
        row = row._replace(request={**row.request, "note": 2})
        transaction.send([("rewrite_request", name_columns(row))])
    assert "requests of before" in str(verify(upgraded).bad)


def test_a_damaged_ledger_is_found_under_the_lock(begun, monkeypatch):
    """What is written after the backup was made is verified, too."""
    monkeypatch.setattr(upgrades, "backup", lambda *_: begun.change(DAMAGE))
    with pytest.raises(LedgerCorrupt, match="Nothing was changed"):
        begun.upgrade()
    assert upgrades.read_version(begun.ledger.database) == 5


def test_a_ledger_of_version_4_is_named(path, tmp_path):
    """Each way to open it names the tool that reads it."""
    old = tmp_path / "old.db"
    shutil.copy(VERSION_4, old)
    at = url(old) if isinstance(path, Path) else copy_to_server(old)
    for attempt in (
        lambda: open_ledger(at, witness=str(tmp_path / "witness")),
        lambda: open_ledger(at, witness="none", read_only=True),
        lambda: upgrade(at, saved=tmp_path / "saved.db", witness="none"),
        lambda: restore(old, url(tmp_path / "n.db"), reason="x", witness="none"),
    ):
        with pytest.raises(LedgerUnavailable, match=r"tools\.read_version_4 OLD NEW"):
            attempt()


def test_the_default_backup_lies_next_to_the_file(begun, tmp_path):
    """A server has no such place, so that one must be named."""
    if begun.is_file:
        assert begun.upgrade(saved=None) == 5
        saved = tmp_path / "ledger.db.version-5"
        assert verify(open_ledger(url(saved), witness="none")).bad == []
    else:
        with pytest.raises(ConfigurationError, match="--backup"):
            begun.upgrade(saved=None)


FOLDER = ROOT / "tests" / "ledgers"
VERSIONS = range(5, VERSION + 1)


def test_every_version_has_a_file():
    """A new version brings one."""
    found = {file.stem for file in FOLDER.glob("version_*.db")}
    assert found == {f"version_{number}" for number in (4, *VERSIONS)}
    assert all(file.stat().st_size < 200_000 for file in FOLDER.glob("*.db"))


@pytest.mark.parametrize("version", [*VERSIONS, "made now"])
def test_it_goes_on(tmp_path, version):
    """A file of each version is upgraded, verified, settled, replayed from and charged.

    So is one that is made now; what was refused is refused.
    """
    path = tmp_path / "ledger.db"
    if version == "made now":
        main(path)
    else:
        for end in (".db", ".json"):
            shutil.copy(FOLDER / f"version_{version}{end}", path.with_suffix(end))
        saved = tmp_path / "saved.db"
        assert upgrade(url(path), saved=saved, witness="none") == version
    facts = json.loads(path.with_suffix(".json").read_text("utf-8"))
    with closing(open_ledger(url(path), witness=str(tmp_path / "witness"))) as ledger:
        assert ledger.id == facts["id"]
        uses = state_of_ledger(ledger.database).uses
        assert {name: [*use.used] for name, use in uses.items()} == facts["used"]
        trust(ledger, reason="it was opened")
        assert verify(ledger).bad == []
        ledger.settle(facts["open"], value="8")
        facts["releases"]["claimed"] = {"datasets": ["visits"], "value": "8"}
        check_ledger(ledger, facts, {facts["evidence"]: ("visits", "g")})
