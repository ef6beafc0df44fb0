"""Each answer is of one moment: commands that only look read one snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from dpflow.interrupts import contextmanager
from dpflow.ledger.tables import sqlite
from dpflow.ledger.views import Reading
from tests.cli.support import Shop, run, run_fine

pytestmark = pytest.mark.quick

#: Commands, and how many snapshots they read: a page compares the witness before.
COMMANDS = {
    "status": 1,
    "status cdnow --details": 1,
    "history": 1,
    "why cdnow": 1,
    "report --out page.html": 2,
}


@pytest.mark.parametrize("words", COMMANDS)
def test_an_answer_is_of_one_moment(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Whatever is charged meanwhile; and `status` asks 30 questions at most."""
    for week in range(7):
        shop.charge(key=f"revenue/1997-W{week + 10}")
    begun, asked = list[str](), list[str]()
    snapshot, run = sqlite.SqliteDatabase.snapshot, sqlite.SqliteTransaction.run

    @contextmanager
    def noted(database: Any) -> Iterator[Any]:
        begun.append("snapshot")
        with snapshot(database) as transaction:
            yield transaction

    def counted(transaction: Any, questions: Any) -> Any:
        asked.extend(name for name, _ in questions)
        return run(transaction, questions)

    monkeypatch.setattr(sqlite.SqliteDatabase, "snapshot", noted)
    monkeypatch.setattr(sqlite.SqliteTransaction, "run", counted)
    run_fine(*words.split())
    # The ledger's identity is read before.
    assert len(begun) - 1 == COMMANDS[words], begun
    assert not words.startswith("status") or len(asked) <= 30, asked


@pytest.mark.parametrize("words", [*COMMANDS, "status --format prometheus"])
def test_what_is_charged_meanwhile_is_no_loss(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A witness that is ahead of the snapshot says nothing against the ledger."""
    shop.charge()
    begin, late = Reading.__init__, [shop.charge]

    def begun(reading: Reading, *values: Any) -> None:
        begin(reading, *values)
        while late:
            late.pop()()

    monkeypatch.setattr(Reading, "__init__", begun)
    result = run(*words.split())
    assert (result.exit_code, result.stderr) == (0, "")
    assert late == []
    assert not re.search(r"(?m)^dpflow_witness_problem\S* 1", result.stdout)
