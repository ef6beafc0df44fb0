"""A charge that is found after a failed COMMIT counts once its log was synced anew."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.storage import sqlite_files
from tests.ledger.faults import FaultySqlite
from tests.ledger.support import granted, ledger_on, make_ledger


def test_a_charge_that_is_found_counts_once_its_log_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is written once more; while it cannot be, the step does not run."""
    path = tmp_path / "ledger.db"
    make_ledger(path).close()
    storage = FaultySqlite(path)
    ledger = ledger_on(storage)
    granted(ledger)
    # As long as another program reads the file, closing it keeps the log.
    reader = sqlite3.connect(path)
    reader.execute("SELECT count(*) FROM ledger").fetchone()
    commits: list[str] = []
    synced: list[str] = []
    sync = sqlite_files.sync_path

    def fail(sql: str) -> None:
        if sql == "COMMIT" and not commits:
            commits.append(sql)
            message = "disk I/O error"
            raise sqlite3.OperationalError(message)

    def noted(place: Path) -> None:
        synced.append(place.name)
        sync(place)

    def failed(place: Path) -> None:
        raise OSError(errno.EIO, "the disk failed", str(place))

    storage.after = fail
    monkeypatch.setattr(sqlite_files, "sync_path", noted)
    granted(ledger)
    assert synced == ["ledger.db-wal"]
    commits.clear()
    monkeypatch.setattr(sqlite_files, "sync_path", failed)
    with pytest.raises(LedgerUnavailable):
        granted(ledger)
    reader.close()
    monkeypatch.setattr(sqlite_files, "sync_path", sync)
    granted(ledger)
    ledger.close()


def test_another_program_may_remove_the_log_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who closes the file last empties the log into it; SQLite then makes a new one."""
    log, look = tmp_path / "ledger.db-wal", Path.stat
    log.write_bytes(b"x")

    def removed(place: Path, **options: bool) -> object:
        found = look(place, **options)
        log.unlink()
        return found

    monkeypatch.setattr(Path, "stat", removed)
    sqlite_files.sync_log(tmp_path / "ledger.db")
    assert not os.path.exists(log)  # noqa: PTH110 (Path.stat is replaced)
