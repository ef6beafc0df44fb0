"""The lock of a ledger file: one writer, waited for not long, and no fork keeps it."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger import Ledger, open_ledger
from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.ledger.processes import Child, die, holding
from tests.ledger.support import (
    audit,
    granted,
    impatient,
    kinds,
    new_ledger,
    refusal,
    request,
    sums,
    url,
)

SHORT = 0.4
TENTH = Fraction(1, 10)


# The lock


def test_another_process_that_holds_the_lock_is_waited_for_not_long(
    path: Path,
) -> None:
    """The deadline is one deadline: nothing was sent, so nothing is sent again."""
    ledger = impatient(path)
    asked = request(ledger)
    with holding(path):
        since = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="another process") as caught:
            ledger.reserve(asked)
        waited = time.monotonic() - since
    assert caught.value.waited == SHORT
    assert SHORT <= waited < 2 * SHORT
    ledger.reserve(asked)
    assert kinds(path) == ["open", "reserve"]
    ledger.close()


def test_another_thread_that_holds_the_lock_is_waited_for_not_long(
    path: Path,
) -> None:
    """Threads of one process queue with the same deadline, not one after another."""
    ledger = impatient(path)
    asked = [request(ledger) for _ in range(3)]
    found: list[tuple[str, float]] = []

    def ask(index: int) -> None:
        since = time.monotonic()
        name = refusal(lambda: ledger.reserve(asked[index]))
        found.append((name, time.monotonic() - since))

    with ledger.storage.write():
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [name for name, _ in found] == ["LedgerUnavailable"] * 3
    assert max(seconds for _, seconds in found) < 2 * SHORT
    granted(ledger)
    ledger.close()


def test_threads_share_one_ledger(ledger: Ledger, path: Path) -> None:
    """Eight threads on one object: every charge is there, once."""

    def work() -> None:
        for _ in range(5):
            ledger.settle(granted(ledger, "0.01"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums(path) == (Fraction(40, 100), 0)
    audit(path)


def test_a_waiter_keeps_its_connection(path: Path) -> None:
    """Closing may checkpoint, and a checkpoint outside the lock can lose commits."""
    ledger, other = impatient(path), SqliteStorage(path)
    granted(ledger)
    assert isinstance(ledger.storage, SqliteStorage)
    before = ledger.storage._connection
    with other.write():
        assert refusal(lambda: granted(ledger)) == "LedgerUnavailable"
        assert before is not None
        assert before is ledger.storage._connection
    ledger.close()
    other.close()


def test_closing_waits_for_the_lock(path: Path) -> None:
    """For the same reason; but not for ever."""
    ledger, other = impatient(path), SqliteStorage(path)
    granted(ledger)
    with other.write():
        since = time.monotonic()
        ledger.storage.close()
        assert SHORT <= time.monotonic() - since < 2 * SHORT
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


def test_a_killed_holder_frees_the_lock(path: Path) -> None:
    """The kernel of the operating system does; no lease, no clock."""

    def hold(say: Callable[[str], None]) -> None:
        with open_ledger(url(path)).storage.write():
            say("held")
            die()

    child = Child(hold)
    assert child.line() == "held"
    assert child.end()[0] == -9
    ledger = impatient(path)
    granted(ledger)
    ledger.close()


def test_the_lock_file_is_a_plain_flock(ledger: Ledger, path: Path) -> None:
    """Other programs may take part: a backup holds it while it copies."""
    granted(ledger)
    with (path.parent / "ledger.db.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LedgerUnavailable, match="another process"):
            impatient(path)


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


def test_a_writer_without_the_ledgers_lock_is_kept_out_from_the_beginning(
    ledger: Ledger, path: Path
) -> None:
    """What a connection remembers is not read again, so that no snapshot is old."""
    granted(ledger, "0.1")
    stranger = sqlite3.connect(path, timeout=0, isolation_level=None)
    edit_it = "UPDATE row SET value = value"
    with (
        ledger.storage.write(),
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        stranger.execute(edit_it)
    stranger.execute(edit_it)
    stranger.close()
