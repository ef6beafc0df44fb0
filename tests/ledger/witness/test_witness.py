"""The witness notices what the ledger forgot, and two copies that are used."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import (
    LedgerCorrupt,
    LedgerError,
    LedgerRolledBack,
    LedgerUnwitnessed,
)
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.rows import Account, name_columns
from dpflow.ledger.witness.comparison import state_of_ledger
from dpflow.ledger.witness.file import FileWitness
from dpflow.ledger.witness.lines import Line, Witnessed
from dpflow.ledger.witness.postgres import PostgresWitness
from tests.ledger.copies import charged, copied, make, reopen
from tests.ledger.support import granted
from tests.postgres import server


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give a place for a witness."""
    if request.param == "file":
        yield str(tmp_path / "witness")
    else:
        url = server().new_database()
        yield url
        server().drop(url)


def test_a_restored_copy_is_refused(tmp_path: Path, place: str) -> None:
    """A copy of before a charge decides nothing, and says why."""
    path = tmp_path / "ledger.db"
    ledger = make(path, place)
    charged(ledger)
    ledger.close()
    older = copied(path, tmp_path / "older.db")
    again = reopen(path, place)
    charged(again)
    again.close()
    shutil.copy(older, path)
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
    restored = reopen(path, place)
    with pytest.raises(LedgerRolledBack, match="A backup was restored"):
        granted(restored)
    assert "lacks entry" in str(restored.watch.problem())


@pytest.mark.parametrize("goes_on", ["first", "second"])
def test_two_copies_are_marked(tmp_path: Path, place: str, goes_on: str) -> None:
    """After each of two copies wrote, every step of both is refused."""
    path = tmp_path / "ledger.db"
    ledger = make(path, place)
    charged(ledger)
    ledger.close()
    twin_path = copied(path, tmp_path / "twin.db")
    one, other = reopen(path, place), reopen(twin_path, place)
    # Both compare before either writes its line, as in two turns at the same time.
    read = other.watch.witness.read  # type: ignore[union-attr]
    witnessed = read(["a"], list)
    charged(one)
    other.watch.witness.read = lambda *_: witnessed  # type: ignore[union-attr, method-assign]
    with pytest.raises(LedgerError):
        granted(other)
    other.watch.witness.read = read  # type: ignore[union-attr, method-assign]
    again = one if goes_on == "first" else other
    with pytest.raises(LedgerRolledBack):
        granted(again)


def test_an_open_process_notices_an_older_copy(tmp_path: Path) -> None:
    """The newest entry that a process saw has to be there, also without a witness."""
    path = tmp_path / "ledger.db"
    ledger = make(path)
    charged(ledger)
    with ledger.database.transaction() as transaction:
        transaction.begin(["a"], lock=True)
        connection = transaction.connection  # type: ignore[attr-defined]
        connection.execute("DROP TRIGGER journal_is_kept")
        connection.execute("DELETE FROM journal WHERE number > 1")
        row = transaction.datasets["a"]
        (digest,) = connection.execute("SELECT hash FROM journal").fetchone()
        older = row._replace(number=1, hash=digest)
        transaction.send([("update_dataset", name_columns(older))])
    with pytest.raises(LedgerRolledBack, match="which this process saw"):
        granted(ledger)


def test_an_edited_account_is_noticed(tmp_path: Path, place: str) -> None:
    """A row with its mark computed anew differs from what was witnessed."""
    ledger = make(tmp_path / "ledger.db", place)
    granted(ledger)
    with ledger.database.transaction() as transaction:
        transaction.begin(["a"], lock=True)
        ((*columns,),) = transaction.ask("read_accounts", ids=["a#1"])
        account = Account.from_columns(tuple(columns))
        none = account._replace(held=(0, 0))
        transaction.send([("put_account", name_columns(none))])
    with pytest.raises(LedgerCorrupt, match="not what its witness"):
        granted(ledger)


def test_a_lost_witness_stops_steps(tmp_path: Path) -> None:
    """Nothing is charged without the witness; freezing still works."""
    folder = tmp_path / "witness"
    ledger = make(tmp_path / "ledger.db", str(folder))
    charged(ledger)
    shutil.rmtree(folder)
    with pytest.raises(LedgerUnwitnessed):
        granted(ledger)
    assert ledger.freeze("a", reason="x")


def test_a_grant_that_cannot_be_witnessed_is_voided(tmp_path: Path) -> None:
    """No body runs, and the budget returns."""
    folder = tmp_path / "witness"
    ledger = make(tmp_path / "ledger.db", str(folder))
    charged(ledger)
    before = uses(ledger)
    record: Callable[..., None] = ledger.watch.witness.record  # type: ignore[union-attr]

    def fail(*_: object, synced: bool) -> None:
        if synced:
            message = "lost"
            raise LedgerUnwitnessed(message, witness="w")

    ledger.watch.witness.record = fail  # type: ignore[union-attr, method-assign]
    with pytest.raises(LedgerUnwitnessed):
        granted(ledger)
    ledger.watch.witness.record = record  # type: ignore[union-attr, method-assign]
    assert uses(ledger) == before


def uses(ledger: Ledger) -> dict[str, tuple[int, ...]]:
    """Return what is settled and held on each account."""
    return {
        name: use.used for name, use in state_of_ledger(ledger.database).uses.items()
    }


def test_the_witness_is_what_the_ledger_holds(tmp_path: Path, place: str) -> None:
    """Its heads and uses are the ledger's, after ends, too, and after compaction."""
    ledger = make(tmp_path / "ledger.db", place)
    for _ in range(3):
        charged(ledger, "0.01")
    granted(ledger, "0.01")
    ledger.freeze("a", reason="x")
    witness, now = ledger.watch.witness, state_of_ledger(ledger.database)
    assert witness is not None
    assert summary(witness.read_all()) == summary(now)
    if isinstance(witness, FileWitness):
        witness._rewrite(None)
        assert summary(witness.read_all()) == summary(now)


def summary(state: Witnessed) -> object:
    """Return what has to agree."""
    return state.heads, state.uses, state.people


def test_the_first_lines_of_a_dataset_wait_for_each_other(tmp_path: Path) -> None:
    """Two processes write them at the same time: the newest number stays."""
    place = server().new_database()
    ledger = make(tmp_path / "ledger.db", place)
    one, other = (PostgresWitness(place, None, ledger.id) for _ in range(2))
    first, second = Line("a", 0, 2, "h2", "reserve"), Line("a", 0, 3, "h3", "reserve")
    proofs = {("a", 2): "h2", ("a", 3): "h3"}
    load = one._read_rows
    threads: list[threading.Thread] = []

    def load_and_wait(*values: Any) -> Witnessed:
        state = load(*values)
        write = partial(other.record, [second], lambda _: proofs, synced=True)
        threads.append(threading.Thread(target=write))
        threads[0].start()
        # Without a lock the other has written now.
        threads[0].join(0.3)
        return state

    one._read_rows = load_and_wait  # type: ignore[method-assign, assignment]
    one.record([first], lambda _: proofs, synced=True)
    threads[0].join(10)
    assert one.read_all().heads["a"].number == 3
    server().drop(place)
