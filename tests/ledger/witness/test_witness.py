"""The witness notices what the ledger forgot, and two copies that are used."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from dpflow import PureDP
from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.errors import is_postgres
from dpflow.ledger.tables.rows import Account, name_columns, read_row
from dpflow.ledger.witness.comparison import state_of_ledger
from dpflow.ledger.witness.file import FileWitness
from dpflow.ledger.witness.lines import Line, Witnessed
from dpflow.ledger.witness.postgres import PostgresWitness
from tests.ledger.support import BASIC, charged, granted, make
from tests.postgres import server


def test_an_edited_account_is_noticed(tmp_path, place):
    """A row with its mark computed anew differs from what was witnessed."""
    ledger = make(tmp_path / "ledger.db", place)
    granted(ledger)
    with ledger.database.transaction() as transaction:
        transaction.begin(["a"], lock=True)
        ((*columns,),) = transaction.ask("read_accounts", ids=["a#1"])
        account = read_row(Account, columns)
        none = account._replace(held=(0, 0))
        transaction.send([("put_account", name_columns(none))])
    with pytest.raises(LedgerCorrupt, match="not what its witness"):
        granted(ledger)


def uses(ledger: Ledger) -> dict[str, tuple[int, ...]]:
    """Return what is settled and held on each account."""
    return {
        name: use.used for name, use in state_of_ledger(ledger.database).uses.items()
    }


def test_the_witness_is_what_the_ledger_holds(tmp_path, place):
    """Its heads and uses are the ledger's, after each kind, too, and compaction."""
    ledger = make(tmp_path / "ledger.db", place)
    for _ in range(3):
        charged(ledger, "0.01")
    granted(ledger, "0.01")
    ledger.freeze("a", reason="x")
    ledger.charge_prior(BASIC, PureDP(epsilon="0.02"), reason="x")
    witness, now = ledger.watch.witness, state_of_ledger(ledger.database)
    assert witness is not None
    assert summary(witness.read_all()) == summary(now)
    if isinstance(witness, FileWitness):
        witness._rewrite(None)
        assert summary(witness.read_all()) == summary(now)


def summary(state: Witnessed) -> object:
    """Return what has to agree."""
    return state.heads, state.uses, state.people


def test_the_first_lines_of_a_dataset_wait_for_each_other(tmp_path):
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


def test_ends_wait_for_the_next_line_on_a_server(tmp_path, place, monkeypatch):
    """There with the next step, after some others, or last; in a file alone."""
    ledger, waits = make(tmp_path / "ledger.db", place), is_postgres(place)
    charged(ledger, "0.01")
    assert witnessed_number(ledger) == (2 if waits else 3)
    ledger.close()
    assert witnessed_number(ledger) == 3
    granted(ledger, "0.01")
    assert witnessed_number(ledger) == 4
    monkeypatch.setattr(type(ledger.watch.witness), "most_ends", 1)
    charged(ledger, "0.01")
    assert witnessed_number(ledger) == 6


def witnessed_number(ledger: Ledger) -> int:
    """Return the newest number that the witness of a ledger shows."""
    assert ledger.watch.witness is not None
    return ledger.watch.witness.read_all().heads["a"].number
