"""Every ledger test compares what a connection remembers with the file itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from dpflow.ledger.account import Account, account_from_row
from dpflow.ledger.database import Row
from dpflow.ledger.recall import Recall
from dpflow.ledger.sqlite_session import SqliteSession

#: Tests that count a driver's statements or break them, so that none may be added.
ALONE = {
    "test_a_batch_is_one_commit",
    "test_a_decision_costs_the_same_after_many_charges",
    "test_a_charge_asks_little",
    "test_another_row_than_was_asked_for_is_damage",
}


@pytest.fixture(autouse=True)
def _remembered_is_true(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Ask again what is remembered, and compare."""
    if request.node.originalname in ALONE or "postgres" in request.node.name:
        yield
        return
    check_recall(monkeypatch)
    yield


def check_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every recalled answer and account be compared with a fresh one."""
    rows, begin = Recall.rows, SqliteSession.__init__

    def asked_too(
        self: Recall,
        statement: str,
        values: Mapping[str, object],
        ask: Callable[[str, Mapping[str, object]], list[Row]],
    ) -> list[Row]:
        found = rows(self, statement, values, ask)
        fresh = ask(statement, values)
        for known, row in zip(found, fresh, strict=True):
            assert {name: known[name] for name in row.keys()} == dict(row), statement  # noqa: SIM118
        return found

    def compared(self: SqliteSession, connection: Any, recall: Any = None) -> None:
        begin(self, connection, recall)
        for name, account in self.kept.items():
            if type(account) is Account:
                (row,) = self._ask("read_account", {"id": name})
                assert account == account_from_row(row), name

    monkeypatch.setattr(Recall, "rows", asked_too)
    monkeypatch.setattr(SqliteSession, "__init__", compared)
