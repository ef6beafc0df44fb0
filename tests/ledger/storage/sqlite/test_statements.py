"""What a charge asks of its database: few statements, few rows, whatever was before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow.exceptions import BudgetRefused, LedgerUnavailable
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.office import freeze
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.records import Granted
from dpflow.ledger.witness.places import witness_at
from tests.ledger.faults import FaultySqlite, faulty
from tests.ledger.support import (
    audit,
    granted,
    kinds,
    make_ledger,
    make_policy,
    owners_of,
    request,
    url,
)

#: Of a pair of reserve and settle, BEGIN and COMMIT counted.
MOST_STATEMENTS, MOST_ROWS = 18, 14
POLICY = make_policy(
    budget="{epsilon: 9, delta: 1e-6}",
    odometer="{theorem: renyi, delta: 1e-6, order: 8}",
    flows="{weekly: {epsilon: 8}}",
)


class Counted:
    """A ledger in a file, with the statements that it runs and the rows it writes."""

    def __init__(self, path: Path, folder: Path) -> None:
        make_ledger(path).close()
        storage = faulty(path)
        assert isinstance(storage, FaultySqlite)
        self.storage, self.log = storage, list[str]()
        storage.after = self.log.append
        witness = witness_at(str(folder), url(path))
        self.ledger = Ledger(storage, owners_of(path), witness)
        assert self.ledger.watch.witness is not None
        self.ledger.watch.witness.enrol(0, [])

    def pair(self, number: int) -> tuple[int, int]:
        """Reserve and settle under three gates, and count."""
        fields = {"flow": "weekly", "flow_run": "run", "key": f"key/{number}"}
        asked = request(self.ledger, "0.01", policies=[POLICY], **fields)
        self.log.clear()
        before = self._rows()
        answer = self.ledger.reserve(asked)
        assert isinstance(answer, Granted)
        assert len(answer.accounts) == 3
        self.ledger.settle(asked.reservation, value='"output"')
        return len(self.log), self._rows() - before

    def _rows(self) -> int:
        connection = self.storage._connection
        return 0 if connection is None else connection.total_changes


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    """Give a new ledger whose witness is beside it."""
    found = Counted(tmp_path / "ledger.db", tmp_path / "witness")
    yield found
    found.ledger.close()


def test_a_charge_asks_little(counted: Counted) -> None:
    """Under a dataset, a flow's share and an odometer, with a key and a witness."""
    counted.pair(0)
    statements, rows = counted.pair(1)
    print(f"\na pair: {statements} statements, {rows} rows")
    assert (statements, rows) <= (MOST_STATEMENTS, MOST_ROWS)
    assert rows <= MOST_ROWS


def test_it_asks_the_same_after_many(counted: Counted) -> None:
    """Nothing that it reads or writes grows with what was before."""
    counted.pair(0)
    early = counted.pair(1)
    for number in range(2, 60):
        counted.pair(number)
    assert counted.pair(60) == early


def test_a_lost_answer_is_asked_for_again(counted: Counted) -> None:
    """The transaction went through, its answer did not come: the id is found.

    The witness is told of the charge all the same, before the step may start.
    """
    ledger, lost = counted.ledger, list[str]()

    def fail(sql: str) -> None:
        if sql == "COMMIT" and not lost:
            lost.append(sql)
            msg = "test"
            raise LedgerUnavailable(msg)

    counted.storage.after = fail
    asked = request(ledger)
    assert isinstance(ledger.reserve(asked), Granted)
    assert lost == ["COMMIT"]
    path = counted.storage.path
    assert kinds(path) == ["open", "reserve"]
    assert ledger.watch.witness is not None
    (told,) = ledger.watch.witness.all_lines()
    assert told.charge == asked.reservation
    ledger.settle(asked.reservation)
    audit(path)


def test_what_others_commit_is_seen_at_once(tmp_path: Path) -> None:
    """Nothing that was read before it stands."""
    path = tmp_path / "ledger.db"
    one, two = make_ledger(path), open_ledger(url(path))
    for _ in range(5):
        one.settle(granted(one))
        two.void(granted(two), reason="test")
        granted(two)
    for ledger in (one, two):
        with pytest.raises(BudgetRefused):
            granted(ledger, "0.01")
    freeze(one, "a", who="ann", reason="test")
    with pytest.raises(BudgetRefused, match="frozen"):
        granted(two)
    audit(path)
