"""Backups are whole, and putting one back forgets nothing that anyone knows."""

from __future__ import annotations

import shutil
import stat
from fractions import Fraction
from pathlib import Path

import pytest
from dpflow.ledger.audit.backup import backup, restore

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger import create_ledger, open_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.witness.comparison import witness_at
from dpflow.ledger.witness.file import FileWitness
from dpflow.rounding import UNITS
from tests.ledger.audit.books import POLICIES
from tests.ledger.processes import Child, die, holding
from tests.ledger.support import edit, granted, read, sums, url
from tests.ledger.witness.accidents import Host

WHY = "the disk died"


def used(host: Host) -> Fraction:
    """Return what dataset a has used."""
    return sum(sums(host.path))


def crashed(host: Host) -> None:
    """Let another process charge something and die, so that its log stays."""

    def crash(say) -> None:
        host.work(host.open())
        die()

    Child(crash).end()


def back_up(host: Host, name: str = "kept.db") -> Path:
    """Back the ledger up."""
    ledger = host.open()
    backup(ledger, host.folder / name)
    ledger.close()
    return host.folder / name


def put_back(host: Host, copy: Path, **options):
    """Restore a backup."""
    ids = "SELECT ledger_id FROM ledger"
    given = {
        "ledger_id": options.pop("ledger_id", None) or read(copy, ids)[0][0],
        "witness": witness_at(host.witness, url(host.path)),
        "policies": POLICIES,
        "reason": WHY,
    }
    return restore(copy, host.path, **given, **options)


def test_a_backup_is_one_whole_file_for_its_owner(host: Host) -> None:
    """Also what is still in the log of a process that has died."""
    crashed(host)
    assert Path(f"{host.path}-wal").stat().st_size > 0
    before = set(host.folder.iterdir())
    copy = back_up(host)
    assert set(host.folder.iterdir()) - before == {copy}
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    for table in ("entry", "account", "charge"):
        every = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert read(copy, every) == read(host.path, every)


def test_a_backup_that_cannot_be_right_is_not_made(host: Host) -> None:
    """It never overwrites, says where it cannot write, and verifies what it copied."""
    copy = back_up(host)
    content = copy.read_bytes()
    with pytest.raises(ConfigurationError, match="never overwrites"):
        backup(host.open(), copy)
    with pytest.raises(LedgerUnavailable, match="nowhere"):
        backup(host.open(), host.folder / "nowhere" / "kept.db")
    edit(host.path, "UPDATE entry SET at = 'x'")
    with pytest.raises(LedgerCorrupt, match="does not verify"):
        backup(host.open(), host.folder / "kept-2.db")
    assert [p for p in host.folder.iterdir() if "kept" in p.name] == [copy]
    assert content == copy.read_bytes()


def test_a_ledger_of_an_environment_has_backups(tmp_path: Path) -> None:
    """A copy that is verified or charged serves no step, and so no environment."""
    path, copy = tmp_path / "ledger.db", tmp_path / "kept.db"
    made = create_ledger(url(path), environment="production", witness="none")
    granted(made)
    backup(made, copy)
    made.close()
    plan = {"ledger_id": made.id, "witness": None, "policies": {}, "reason": WHY}
    assert restore(copy, path, **plan).charged_again.agrees


def test_a_backup_is_made_while_others_charge(host: Host) -> None:
    """Their transactions are in it whole, or not at all."""

    def charge(say) -> None:
        ledger = host.open()
        say("begun")
        for _ in range(60):
            host.work(ledger)

    child = Child(charge)
    assert child.line() == "begun"
    for number in range(3):
        copy = back_up(host, f"kept-{number}.db")
        assert verify(open_ledger(url(copy), witness="none")).bad == []
    child.end()


def test_a_restore_leaves_no_old_log(host: Host) -> None:
    """SQLite would play it into the backup."""
    copy = back_up(host)
    crashed(host)
    host.path.unlink()
    assert Path(f"{host.path}-wal").exists()
    (file,) = Path(host.witness).iterdir()
    lines = FileWitness(file, file.stem).all_lines()
    amounts = [line.used["a#1"] for line in lines if "a#1" in line.used]
    most = Fraction(amounts[-1][0], UNITS)
    put_back(host, copy)
    assert read(host.path, "PRAGMA integrity_check") == [("ok",)]
    assert used(host) >= most
    host.work()


@pytest.mark.parametrize("kind", ["foreign", "garbage", "edited", "missing"])
def test_what_is_no_backup_of_this_ledger_is_refused(host: Host, kind: str) -> None:
    """And the ledger stays as it is."""
    copy = back_up(host)
    ledger_id = read(copy, "SELECT ledger_id FROM ledger")[0][0]
    if kind == "foreign":
        copy.unlink()
        create_ledger(url(copy), witness="none").close()
    elif kind == "garbage":
        copy.write_bytes(b"no database at all" * 1000)
    elif kind == "edited":
        edit(copy, "UPDATE entry SET at = ''")
    else:
        copy.unlink()
    before = read(host.path, "SELECT * FROM entry")
    named = str(copy) if kind in ("garbage", "missing") else None
    with pytest.raises((LedgerCorrupt, ConfigurationError), match=named):
        put_back(host, copy, ledger_id=ledger_id)
    assert before == read(host.path, "SELECT * FROM entry")
    assert [p for p in host.path.parent.glob(f"{host.path.name}-*") if p.is_dir()] == []


def test_a_restore_that_nothing_can_check_is_refused(host: Host) -> None:
    """Unless it is said that the loss is accepted."""
    copy = back_up(host)
    host.witness = "none"
    host.work()
    host.path.unlink()
    with pytest.raises(LedgerUnwitnessed, match="--accept-loss"):
        put_back(host, copy)
    assert not host.path.exists()
    assert put_back(host, copy, accept_loss=True).charged_again.agrees
    host.work()


def test_a_restore_without_lock_or_witness_changes_nothing(host, monkeypatch):
    """A restore takes the lock and reads the witness before it replaces the file."""
    copy, every = back_up(host), "SELECT * FROM entry"
    before = read(host.path, every)
    monkeypatch.setattr("dpflow.ledger.audit.backup._LOCK_SECONDS", 0.1)
    with holding(host.path), pytest.raises(LedgerUnavailable, match="holds the lock"):
        put_back(host, copy)
    shutil.rmtree(host.witness)
    with pytest.raises(LedgerUnwitnessed):
        put_back(host, copy)
    assert before == read(host.path, every)
    assert [p.name for p in host.folder.iterdir() if "before" in p.name] == []
