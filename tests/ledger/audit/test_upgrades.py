"""An upgrade changes the tables in one transaction; ledgers of each version go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from dpflow import PureDP
from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    LedgerCorrupt,
    LedgerRolledBack,
    LedgerUnavailable,
    ReservationConflict,
)
from dpflow.ledger.audit import upgrades
from dpflow.ledger.audit.copies import backup, read_rows
from dpflow.ledger.audit.reconcile import trust
from dpflow.ledger.audit.restores import restore
from dpflow.ledger.audit.upgrades import upgrade
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Granted, Replayed, Request
from dpflow.ledger.tables.columns import tables
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.rows import Charge, name_columns
from dpflow.ledger.tables.sqlite import SqliteDatabase
from dpflow.ledger.tables.transaction import VERSION
from dpflow.ledger.witness.comparison import state_of_ledger
from tests.ledger.audit.test_version_4 import FILE as VERSION_4
from tests.ledger.audit.test_version_4 import copy_to_server
from tests.ledger.support import Place, charged, granted, request, url
from tests.ledgers.make import main, make_policies, make_population
from tests.postgres import server
from tests.projects import ROOT

ADDED = ["ALTER TABLE run ADD COLUMN note TEXT"]
NEXT = {6: {"sqlite": ADDED, "postgres": ADDED}}


def to_next(migrations: upgrades.Migrations = NEXT) -> dict[str, Any]:
    """Return the arguments of an upgrade to the next version."""
    return {"version": 6, "migrations": migrations}


pytestmark = pytest.mark.storages("sqlite", "postgres")


@pytest.fixture
def at(path: Place) -> str:
    """Give a place for a ledger."""
    return url(path)


def made(at: str, tmp_path: Path) -> tuple[Ledger, str]:
    """Make a ledger with a release and an open charge, which is returned."""
    ledger = create_ledger(at, witness=str(tmp_path / "witness"))
    released = request(ledger, "0.1", key="k")
    ledger.reserve(released)
    ledger.settle(released.reservation, value="1")
    return ledger, granted(ledger, "0.1")


def test_an_upgraded_ledger_goes_on(at, tmp_path, monkeypatch):
    """Replayed from, settled and charged; an older process says its version."""
    ledger, charge = made(at, tmp_path)
    witness, saved = str(tmp_path / "witness"), tmp_path / "saved.db"
    how = {"saved": saved, "witness": witness, "version": 6, "migrations": NEXT}
    assert upgrade(at, **how) == 5  # type: ignore[arg-type]
    assert upgrade(at, **how) == 6  # type: ignore[arg-type]
    with pytest.raises(LedgerUnavailable, match=r"version 6.*newer dpflow"):
        granted(ledger)
    with pytest.raises(LedgerUnavailable, match=r"version 6.*newer dpflow"):
        ledger.settle(charge)
    owners = ledger.owners
    monkeypatch.setattr(Database, "version", 6)
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
    monkeypatch.setattr(Database, "version", 5)
    # The witness has the entry of the upgrade: no older copy decides again.
    with pytest.raises(Exception, match="lacks entry"):
        granted(open_ledger(url(saved), witness=witness))
    assert verify(open_ledger(url(saved), witness="none")).bad == []


@pytest.mark.parametrize(
    ("version", "migrations", "match"),
    [(4, {}, "newer dpflow"), (6, {}, "dpflow that made it"), (7, NEXT, "made it")],
)
def test_other_versions_are_refused(at, tmp_path, version, migrations, match):
    """In words that say the version; nothing is changed."""
    ledger, _ = made(at, tmp_path)
    with pytest.raises(LedgerUnavailable, match=f"version 5.*{match}"):
        upgrade(
            at,
            saved=tmp_path / "saved.db",
            witness="none",
            version=version,
            migrations=migrations,
        )
    assert not (tmp_path / "saved.db").exists()
    granted(ledger, "0.1")


def test_a_failed_migration_changes_nothing(at, tmp_path):
    """Neither tables, nor version, nor journals; a damaged ledger is not begun."""
    ledger, _ = made(at, tmp_path)
    witness = str(tmp_path / "witness")
    broken = {6: dict.fromkeys(NEXT[6], (*ADDED, "ALTER TABLE run BAD"))}
    with pytest.raises(Exception, match=r"(?i)syntax"):
        upgrade(at, saved=tmp_path / "1.db", witness=witness, **to_next(broken))
    granted(ledger, "0.1")
    assert verify(ledger).bad == []
    with ledger.database.transaction() as transaction:
        transaction.begin(lock=False)
        transaction.send([("UPDATE account SET version = version + 1", {})])
    with pytest.raises(LedgerCorrupt, match="No backup was made"):
        upgrade(at, saved=tmp_path / "2.db", witness=witness, **to_next())


def test_a_saved_file_is_never_replaced(tmp_path):
    """Something is at its place: nothing is changed."""
    at = url(tmp_path / "ledger.db")
    ledger, _ = made(at, tmp_path)
    (tmp_path / "saved.db").write_text("x")
    saved = tmp_path / "saved.db"
    with pytest.raises(ConfigurationError, match="never replaces"):
        upgrade(at, saved=saved, witness="none", **to_next())
    granted(ledger, "0.1")


def test_it_waits_for_steps_and_gives_up(tmp_path, monkeypatch):
    """A session that holds the tables for too long stops the upgrade, and no step."""
    at = server().new_database()
    ledger, _ = made(at, tmp_path)
    monkeypatch.setattr(upgrades, "_SECONDS", 0.0)
    with psycopg.connect(at) as session:
        session.execute("SELECT * FROM dpflow.dataset")
        with pytest.raises(LedgerUnavailable, match="another process"):
            upgrade(at, saved=tmp_path / "s.db", witness="none", **to_next())
    granted(ledger, "0.1")
    server().drop(at)


def test_a_backup_of_an_older_version_is_of_that_version(at, tmp_path):
    """It has the tables and columns of the ledger, and no newer ones."""
    ledger, _ = made(at, tmp_path)
    with ledger.database.transaction() as transaction:
        transaction.begin(lock=False)
        transaction.send([("ALTER TABLE run DROP COLUMN completed", {})])
        if at.startswith("sqlite"):
            transaction.send([("DROP TABLE evidence", {})])
        transaction.send([("set_version", {"version": 3})])
        ((size,),) = transaction.ask("read_size")
        assert size > 50_000
    ledger.database.version = 3
    saved = tmp_path / "older.db"
    backup(ledger, saved)
    database = SqliteDatabase(saved)
    database.version = 3
    with database.snapshot() as copy:
        copy.begin(lock=False)
        columns = {tuple(row) for row in copy.ask("read_columns")}
    assert ("run", "completed") not in columns
    dropped = {"evidence"} if at.startswith("sqlite") else set()
    assert {name for name, _ in columns} == {*tables()} - dropped


def test_a_backup_that_does_not_fit_is_not_begun(at, tmp_path, monkeypatch):
    """The space for the backup, and of a file for the ledger, is looked at first."""
    ledger, _ = made(at, tmp_path)
    with ledger.reading() as transaction:
        transaction.begin(lock=False)
        ((size,),) = transaction.ask("read_size")
    needed = size * (2 if at.startswith("sqlite") else 1)
    saved = tmp_path / "saved.db"
    for free in (needed - 1, needed):
        usage = SimpleNamespace(free=free)
        disks = SimpleNamespace(disk_usage=lambda _, usage=usage: usage)
        monkeypatch.setattr(upgrades, "shutil", disks)
        if free < needed:
            with pytest.raises(LedgerUnavailable, match=f"{needed:,} bytes"):
                upgrade(at, saved=saved, witness="none", **to_next())
            assert not saved.exists()
    assert upgrade(at, saved=saved, witness="none", **to_next()) == 5


def test_an_upgrade_without_its_witness_line_writes_it_again(at, tmp_path, monkeypatch):
    """It died after COMMIT: the same command again witnesses the entries."""
    made(at, tmp_path)
    witness, saved = str(tmp_path / "witness"), tmp_path / "saved.db"
    with monkeypatch.context() as patch:
        patch.setattr(upgrades, "witness_heads", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            upgrade(at, saved=saved, witness=witness, **to_next())
    granted_by = open_ledger(url(saved), witness=witness)
    assert granted_by.watch.problem() is None
    assert upgrade(at, saved=saved, witness=witness, **to_next()) == 6
    with pytest.raises(LedgerRolledBack, match="lacks entry"):
        granted(granted_by)


def raise_interrupt(_: object) -> None:
    """Die."""
    raise KeyboardInterrupt


def test_an_older_copy_that_is_upgraded_marks_no_fork(tmp_path):
    """Its entries are not witnessed: the newer ledger goes on."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    ledger, _ = made(url(path), tmp_path)
    older = tmp_path / "older.db"
    backup(ledger, older)
    granted(ledger, "0.01")
    assert upgrade(url(older), saved=tmp_path / "s.db", witness=witness) == 5
    assert granted(ledger, "0.01")


def test_rewritten_requests_are_verified(at, tmp_path, monkeypatch):
    """By the digest in the entry of the upgrade; an edit of one is found."""
    made(at, tmp_path)

    def rewrite(request: dict[str, Any]) -> dict[str, Any]:
        return {**request, "note": 1}

    how = {**to_next(), "rewrites": {6: rewrite}, "witness": "none"}
    upgrade(at, saved=tmp_path / "saved.db", **how)
    monkeypatch.setattr(Database, "version", 6)
    upgraded = open_ledger(at, witness="none")
    charge = granted(upgraded, "0.1")
    assert verify(upgraded).bad == []
    with upgraded.database.transaction() as transaction:
        transaction.begin(lock=False)
        rows = [*read_rows(transaction, tables()["charge"])]
        edited = next(row for row in rows if row["id"] != charge)
        row = Charge.from_columns(tuple(edited.values()))
        assert row.request["note"] == 1
        row = row._replace(request={**row.request, "note": 2})
        transaction.send([("rewrite_request", name_columns(row))])
    assert "requests of before" in str(verify(upgraded).bad)


def test_a_damaged_ledger_is_found_under_the_lock(at, tmp_path, monkeypatch):
    """What is written after the backup was made is verified, too."""
    ledger, _ = made(at, tmp_path)

    def edit(*_: object) -> None:
        with ledger.database.transaction() as transaction:
            transaction.begin(lock=False)
            transaction.send([("UPDATE account SET version = version + 1", {})])

    monkeypatch.setattr(upgrades, "backup", edit)
    with pytest.raises(LedgerCorrupt, match="Nothing was changed"):
        upgrade(at, saved=tmp_path / "s.db", witness="none", **to_next())
    assert upgrades.read_version(ledger.database) == 5


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_ledger_of_version_4_is_named(tmp_path, kind):
    """Each way to open it names the tool that reads it."""
    path = tmp_path / "old.db"
    shutil.copy(VERSION_4, path)
    at = url(path) if kind == "sqlite" else copy_to_server(path)
    for attempt in (
        lambda: open_ledger(at, witness=str(tmp_path / "witness")),
        lambda: open_ledger(at, witness="none", read_only=True),
        lambda: upgrade(at, saved=tmp_path / "saved.db", witness="none"),
        lambda: restore(path, url(tmp_path / "n.db"), reason="x", witness="none"),
    ):
        with pytest.raises(LedgerUnavailable, match=r"tools\.read_version_4 OLD NEW"):
            attempt()


def test_the_default_backup_lies_next_to_the_file(at, tmp_path):
    """A server has no such place, so that one must be named."""
    made(at, tmp_path)
    if at.startswith("sqlite"):
        assert upgrade(at, witness="none", **to_next()) == 5
        saved = tmp_path / "ledger.db.version-5"
        assert verify(open_ledger(url(saved), witness="none")).bad == []
    else:
        with pytest.raises(ConfigurationError, match="--backup"):
            upgrade(at, witness="none", **to_next())


FOLDER = ROOT / "tests" / "ledgers"
VERSIONS = range(5, VERSION + 1)


@pytest.fixture(params=[*VERSIONS, "made now"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Ledger, dict[str, Any]]]:
    """Give a copy of the file of a version, upgraded, with its facts."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    if request.param == "made now":
        main(path)
    else:
        for end in ("db", "json"):
            name = f"version_{request.param}.{end}"
            shutil.copy(FOLDER / name, path.with_suffix(f".{end}"))
        saved = tmp_path / "saved.db"
        assert upgrade(url(path), saved=saved, witness="none") == request.param
    ledger = open_ledger(url(path), witness=witness)
    facts = json.loads(path.with_suffix(".json").read_text("utf-8"))
    yield ledger, facts
    ledger.close()


def ask(ledger: Ledger, facts: Any, *names: str, **fields: Any) -> Request:
    """Make a request of datasets of the file."""
    policies = tuple(make_policies(facts["fields"])[name] for name in names)
    is_member = any(policy.population for policy in policies)
    given = {"policies": policies, "epsilon": "0.05", **fields}
    populations = (make_population(),) if is_member else ()
    return request(ledger, given.pop("epsilon"), populations=populations, **given)


def test_every_version_has_a_file():
    """A new version brings one."""
    found = {file.stem for file in FOLDER.glob("version_*.db")}
    assert found == {f"version_{number}" for number in (4, *VERSIONS)}
    assert all(file.stat().st_size < 200_000 for file in FOLDER.glob("*.db"))


def test_it_goes_on(opened):
    """It is verified, settled, replayed from, refused and charged."""
    ledger, facts = opened
    assert ledger.id == facts["id"]
    uses = state_of_ledger(ledger.database).uses
    assert {name: [*use.used] for name, use in uses.items()} == facts["used"]
    trust(ledger, reason="it was opened")
    assert verify(ledger).bad == []
    ledger.settle(facts["open"], value="8")
    releases = {**facts["releases"], "claimed": {"datasets": ["visits"], "value": "8"}}
    for key, release in releases.items():
        fields = {name: release[name] for name in ("flow",) if name in release}
        fields["partitions"] = tuple(release.get("partitions", ()))
        names = release["datasets"]
        step = ask(ledger, facts, *names, key=key, **fields)
        if facts["frozen"] in names:
            with pytest.raises(BudgetRefused, match="frozen"):
                ledger.reserve(step)
            continue
        answer = ledger.reserve(step)
        assert isinstance(answer, Replayed)
        assert answer.value == release["value"]
    halted = ask(ledger, facts, "visits", flow="f", flow_run=facts["halted_run"])
    with pytest.raises(BudgetRefused, match="halt"):
        ledger.reserve(halted)
    with pytest.raises(ConfigurationError, match="this evidence"):
        ledger.charge_prior(
            make_policies(facts["fields"])["visits"],
            PureDP(epsilon="0.01"),
            reason="x",
            evidence=facts["evidence"],
            flow="g",
        )
    ((account, newest),) = facts["people"].items()
    step = ask(ledger, facts, "renewed")
    assert isinstance(ledger.reserve(step), Granted)
    with pytest.raises(ReservationConflict, match="another copy"):
        ledger.pay(account, step.reservation, before=None)
    ledger.pay(account, step.reservation, before=newest)
    ledger.settle(step.reservation)
    assert verify(ledger).bad == []
