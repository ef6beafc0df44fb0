"""The lock of a ledger file: one writer, waited for not long, and no fork keeps it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.storage import sqlite
from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.ledger.processes import holding
from tests.ledger.support import (
    granted,
    impatient,
    kinds,
    new_ledger,
    request,
)

SHORT = 0.4


# The lock


def test_another_process_that_holds_the_lock_is_waited_for_not_long(
    path: Path,
) -> None:
    """The deadline is one deadline: nothing was sent, so nothing is sent again."""
    ledger = impatient(path)
    asked = request(ledger)
    with (
        holding(path),
        pytest.raises(LedgerUnavailable, match="another process") as caught,
    ):
        ledger.reserve(asked)
    assert caught.value.waited == SHORT
    ledger.reserve(asked)
    assert kinds(path) == ["open", "reserve"]
    ledger.close()


def test_closing_waits_for_the_lock(path: Path) -> None:
    """For the same reason; but not for ever."""
    ledger, other = impatient(path), SqliteStorage(path)
    granted(ledger)
    with other.write():
        since = time.monotonic()
        ledger.storage.close()
        assert time.monotonic() - since >= SHORT
    granted(ledger)
    ledger.close()
    other.close()


def test_a_link_to_the_ledger_shares_its_lock(path: Path, tmp_path: Path) -> None:
    """SQLite follows links, so whoever comes by one must wait as well."""
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with (
        holding(path),
        pytest.raises(LedgerUnavailable, match="another process"),
    ):
        impatient(link)


def test_a_removed_lock_file_excludes_nobody(path: Path) -> None:
    """Who deletes a stale lock file splits it: the old handle is not trusted."""
    ledger = impatient(path)
    granted(ledger)
    (path.parent / "ledger.db.lock").unlink()
    with holding(path), pytest.raises(LedgerUnavailable, match="another process"):
        ledger.reserve(request(ledger))
    granted(ledger)
    ledger.close()


def test_a_kept_error_keeps_no_transaction(tmp_path: Path) -> None:
    """Its traceback may refer to a cursor, and closing then rolls nothing back."""
    new_ledger(tmp_path).close()
    first = SqliteStorage(tmp_path / "ledger.db")
    kept: list[BaseException] = []
    try:
        with first.write() as session:
            reading = session.connection.execute("VALUES (1), (2), (3)")
            reading.fetchone()
            raise RuntimeError
    except RuntimeError as error:
        kept.append(error)
    with SqliteStorage(tmp_path / "ledger.db").write() as session:
        assert session.books() == []
    assert kept
    assert reading is not None


# Reading


def test_a_reader_holds_up_no_writer(path: Path) -> None:
    """It sees the state that it began with; another writer is waited for (control)."""
    ledger, reader = impatient(path), SqliteStorage(path)
    granted(ledger)
    with reader.read() as reading:
        before = reading.head()
        granted(ledger)
        assert reading.page(before[0]) == []
    with reader.read() as reading:
        assert reading.head()[0] == before[0] + 1
    with reader.write(), pytest.raises(LedgerUnavailable) as caught:
        granted(ledger)
    assert caught.value.waited == SHORT
    ledger.close()
    reader.close()


def test_a_long_log_is_begun_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a reader is in the way; then it may double before the next try."""
    ledger, reader = impatient(path), SqliteStorage(path)
    log = path.with_name("ledger.db-wal")
    granted(ledger)
    assert log.stat().st_size > 0
    storage: Any = ledger.storage
    monkeypatch.setattr(sqlite, "LOG_BYTES", 1)
    storage._log_limit = 1
    with reader.read() as reading:
        reading.head()
        granted(ledger)
        assert storage._log_limit == 2 * log.stat().st_size > 2
    storage._log_limit = 1
    granted(ledger)
    assert log.stat().st_size == 0
    assert storage._log_limit == 1
    granted(ledger)
    ledger.close()
    reader.close()
