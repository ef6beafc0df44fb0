"""What a connection remembers: never anything that is no longer so.

`conftest.py` compares, in every test of this folder, each remembered answer and account
with the file. Here is what must be forgotten, and that a memory that does not forget
it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpflow.exceptions import (
    BudgetRefused,
    LedgerCorrupt,
    LedgerUnavailable,
    PolicyChanged,
    ReservationConflict,
)
from dpflow.ledger import Ledger, open_ledger, recall
from dpflow.ledger.apply import Wish, apply_policy
from dpflow.ledger.approval import Approval
from dpflow.ledger.freeze import freeze, thaw
from dpflow.ledger.recall import Recall
from dpflow.ledger.seals import seal
from tests.ledger.preflights import RUN, drawn, held_run
from tests.ledger.support import (
    audit,
    edit,
    faulty,
    granted,
    kinds,
    ledger_on,
    make_policy,
    new_ledger,
    request,
    url,
)
from tests.ledger.test_kernel import HALTING, STEP


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give the place of the ledger's file."""
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Give a ledger in a file."""
    found = new_ledger(tmp_path)
    yield found
    found.close()


def applies_a_policy(ledger: Ledger) -> None:
    """A new term governs the next step."""
    lifetime = "{epsilon: 3}"
    granted(ledger, "0.9", policies=(make_policy(lifetime=lifetime),))
    looser = make_policy(budget="{epsilon: 2}", lifetime=lifetime)
    wish = Wish(because="more data", new_term=True)
    apply_policy(ledger, looser, wish, Approval(principal="ada"))
    granted(ledger, "1.5", policies=(looser,))


def grants_more(ledger: Ledger) -> None:
    """The most that a step was granted tells exhausted from refused."""
    granted(ledger, "0.1")
    granted(ledger, "0.2")
    granted(ledger, "0.1")


def halts_a_run(ledger: Ledger) -> None:
    """After an odometer's refusal nothing more of the run is let through."""
    fields = {"policies": [HALTING], "flow": "weekly", "flow_run": "run 1"}
    for _ in range(6):
        granted(ledger, STEP, **fields)
    for _ in range(2):
        with pytest.raises(BudgetRefused):
            granted(ledger, STEP, **fields)


def ends_a_charge(ledger: Ledger) -> None:
    """What has ended does not end again."""
    mine = granted(ledger)
    ledger.void(mine, reason="test")
    with pytest.raises(ReservationConflict, match="void already"):
        ledger.settle(mine)


def holds_a_run(ledger: Ledger) -> None:
    """A run's step draws from what was held after an earlier step."""
    drawn(ledger)
    held = held_run(ledger, ["0.1", "0.1"])
    ledger.settle(drawn(ledger).reservation)
    with pytest.raises(ReservationConflict, match="preflight"):
        ledger.settle(held)
    seal(ledger, RUN, outcome="completed")


CHANGES: dict[str, Callable[[Ledger], None]] = {
    "open_term": applies_a_policy,
    "note_granted": grants_more,
    "note_refused": halts_a_run,
    "close_reservation": ends_a_charge,
    "open_preflight": holds_a_run,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_connection_changes_it_forgets(
    ledger: Ledger, place: Path, change: str
) -> None:
    """The next question is answered as the file says."""
    CHANGES[change](ledger)
    audit(place)


@pytest.mark.parametrize("change", CHANGES)
def test_a_memory_that_keeps_it_is_found(
    ledger: Ledger, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one rule of what to forget is left out."""
    spoils = {name: them for name, them in recall._SPOILS.items() if name != change}
    monkeypatch.setattr(recall, "_SPOILS", spoils)
    with pytest.raises((AssertionError, LedgerCorrupt)):
        CHANGES[change](ledger)


def test_every_rule_has_its_control() -> None:
    """But the one that only saves space."""
    assert recall._SPOILS.keys() - CHANGES.keys() == {"append_entry"}


def two_connections(ledger: Ledger, place: Path) -> None:
    """Two connections reserve, settle, freeze and apply, each in turn."""
    other = open_ledger(url(place))
    try:
        mine = granted(ledger)
        theirs = granted(other)
        ledger.settle(mine)
        other.void(theirs, reason="test")
        granted(other, "0.2")
        granted(ledger, "0.2")
        freeze(other, "a", who="ada", because="test")
        with pytest.raises(BudgetRefused, match="frozen"):
            granted(ledger)
        thaw(other, "a", who="ada", because="test")
        granted(ledger)
        applies_a_policy_to_what_is_left(other)
        with pytest.raises(PolicyChanged):
            granted(ledger)
    finally:
        other.close()


def applies_a_policy_to_what_is_left(ledger: Ledger) -> None:
    """A tighter policy than the one that others have read."""
    tighter = make_policy(budget="{epsilon: 0.9}")
    apply_policy(ledger, tighter, Wish(), Approval(principal="ada"))


def test_what_others_commit_is_seen_at_once(ledger: Ledger, place: Path) -> None:
    """Nothing that was read before it stands."""
    two_connections(ledger, place)
    audit(place)


def test_a_memory_that_does_not_hear_of_others_is_found(
    ledger: Ledger, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: it takes every transaction for its own."""
    monkeypatch.setattr(Recall, "begin", lambda *_: None)
    with pytest.raises((AssertionError, LedgerCorrupt)):
        two_connections(ledger, place)


def write_and_fail(ledger: Ledger) -> None:
    """Change what a later decision asks, in a transaction that does not commit."""
    with ledger.writing(["a"]) as session:
        session.post("note_granted", account="a#1", step="other", amount="[1]")
        raise RuntimeError


def test_a_failed_transaction_leaves_no_memory(ledger: Ledger, place: Path) -> None:
    """What it wrote was not committed, and so is not so."""
    granted(ledger, "0.5")
    before = kinds(place)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            write_and_fail(ledger)
    assert kinds(place) == before
    granted(ledger, "0.5", step="other")
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.5")
    audit(place)


def test_an_edit_by_hand_is_noticed_at_the_next_step(
    ledger: Ledger, place: Path
) -> None:
    """A remembered account is not believed once someone else has written."""
    granted(ledger)
    granted(ledger)
    edit(place, "UPDATE account SET held = '[0]'")
    with pytest.raises(LedgerCorrupt, match="newest journal entry"):
        granted(ledger)


def test_a_charge_asks_little(ledger: Ledger, place: Path) -> None:
    """A connection that works alone asks neither about its account nor its term."""
    database, log = faulty(place), list[str]()
    database.after = log.append
    counting = ledger_on(database)
    for _ in range(2):
        counting.settle(granted(counting))
    log.clear()
    mine = granted(counting)
    reserved = len(log)
    counting.settle(mine)
    assert (reserved, len(log) - reserved) == (7, 6)
    counting.close()


def test_memory_has_an_end(
    ledger: Ledger, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond so many answers it begins anew."""
    monkeypatch.setattr(recall, "_MOST", 20)
    for _ in range(30):
        granted(ledger, "0.01")
        database = ledger.database
        known = database._recall  # type: ignore[attr-defined]
        size = sum(map(len, (known.accounts, *known._answers.values())))
        assert size <= 20 + 10
    audit(place)


def test_a_lost_answer_is_asked_for_again(ledger: Ledger, place: Path) -> None:
    """The transaction went through, its answer did not come: the id is found."""
    database = faulty(place)
    lost = ledger_on(database)
    granted(lost)
    failed: list[str] = []

    def fail(sql: str) -> None:
        if sql == "COMMIT" and not failed:
            failed.append(sql)
            msg = "test"
            raise LedgerUnavailable(msg)

    database.after = fail
    made = request(lost)
    lost.reserve(made)
    assert failed == ["COMMIT"]
    assert kinds(place) == ["open", "reserve", "reserve"]
    lost.settle(made.reservation)
    lost.close()
    audit(place)
