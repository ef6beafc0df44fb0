"""What is remembered to ask and write less: it decides nothing and hides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from dpflow import ApproxDP
from dpflow.exceptions import LedgerCorrupt, PolicyChanged, UnsupportedCost
from dpflow.ledger import Ledger, batch, chain, hints, open_ledger
from dpflow.ledger.account import read_account
from dpflow.ledger.batch import Batch
from dpflow.ledger.memo import by_identity
from dpflow.ledger.part import Part
from dpflow.ledger.postgres_session import PostgresSession
from dpflow.ledger.records import Granted
from tests.ledger.support import (
    BASIC,
    Place,
    audit,
    edit,
    faulty,
    granted,
    kinds,
    ledger_on,
    make_ledger,
    make_policy,
    read,
    request,
    sums,
    url,
)

TENTH = Fraction(1, 10)
EDITED = (
    "DROP TRIGGER entry_no_update",
    "UPDATE entry SET body = '{}' WHERE kind = 'reserve'",
)


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Give a new, open ledger."""
    opened = make_ledger(path)
    yield opened
    opened.close()


def grants(answers: list[Any]) -> int:
    """Count the requests that were granted."""
    return sum(isinstance(answer, Granted) for answer in answers)


# Batches


def moves_of(path: Place, count: int) -> int:
    """Reserve so many charges in one transaction; count the writes of the row."""
    make_ledger(path).close()
    database = faulty(path)
    ledger, written = ledger_on(database), []
    granted(ledger, "0.01")
    database.before = lambda sql: written.append(sql.startswith("UPDATE account"))
    asked = [request(ledger, "0.01") for _ in range(count)]
    assert grants(ledger.reserve_many(asked)) == count
    database.before = lambda _: None
    ledger.close()
    return sum(written)


def test_a_batch_journals_every_charge_and_writes_the_row_once(path: Place) -> None:
    """The row repeats the newest entry; the entries between are all there."""
    assert moves_of(path, 8) == 1
    assert kinds(path) == ["open", *["reserve"] * 9]
    audit(path)


def test_a_row_that_is_held_back_is_written_before_it_is_read(ledger: Ledger) -> None:
    """Whoever reads it within the batch sees what was decided before."""
    granted(ledger)
    with ledger.database.write() as session:
        session.lock(["a"])
        assert seen_in_a_batch(Batch(session)) == 3


def test_the_test_of_held_back_rows_finds_a_stale_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a batch that forgets to write first."""
    granted(ledger)
    lax = frozenset({*vars(batch)["_ASIDE"], "read_account"})
    monkeypatch.setattr(batch, "_ASIDE", lax)
    with ledger.database.write() as session:
        session.lock(["a"])
        assert seen_in_a_batch(Batch(session)) == 2


def seen_in_a_batch(session: Batch) -> int:
    """Move an account in a batch, and return the number that its row then has."""
    account = read_account(session, "a#1")
    assert account is not None
    session.post(
        "move_account",
        id=account.id,
        settled=account.settled.to_text(),
        held=account.held.to_text(),
        seq=account.seq + 1,
        before=account.seq,
        head=account.head,
        state=account.state,
    )
    seen = session.rows("read_account", id=account.id)[0]["seq"]
    # The test's own entry is missing: back to where the journal is.
    session.change(
        "move_account",
        id=account.id,
        settled=account.settled.to_text(),
        held=account.held.to_text(),
        seq=account.seq,
        before=seen,
        head=account.head,
        state=account.state,
    )
    session.flush()
    return int(seen)


def test_a_failing_request_takes_nothing_of_its_batch_along(
    ledger: Ledger, path: Place
) -> None:
    """It opens a term and an account, cannot be priced, and leaves no trace."""
    wrong = make_policy("b", filter="concentrated", budget="{epsilon: 1, delta: 1e-6}")
    approximate = ApproxDP(epsilon="0.1", delta="1e-9")
    asked = [
        request(ledger, "0.1"),
        request(ledger, approximate, policies=[wrong]),
        request(ledger, "0.1"),
    ]
    answers = ledger.reserve_many(asked)
    assert isinstance(answers[1], UnsupportedCost)
    assert grants(answers) == 2
    assert sums(path)[1] == 2 * TENTH
    assert read(path, "SELECT dataset FROM term") == [("a",)]
    audit(path)


def test_a_part_that_wrote_without_a_savepoint_cannot_be_undone(
    ledger: Ledger,
) -> None:
    """Then the whole transaction has to go, and it is said so."""
    granted(ledger)
    with ledger.database.write() as session:
        session.lock(["a"])
        untouched, opening, late = Part(session), Part(session), Part(session)
        assert untouched.undo()
        late.change("drop_claim", release_key="0" * 64, reservation="x")
        assert not late.undo()
        opening.post(
            "open_term",
            dataset="z",
            number=1,
            pinned="{}",
            declared="{}",
            policy_hash="0" * 64,
            at="",
            writer="",
            because="",
        )
        assert session.rows("newest_term", dataset="z")
        assert opening.undo()
        assert not session.rows("newest_term", dataset="z")


# What is remembered


def test_an_entry_that_was_edited_is_seen_by_who_wrote_it(
    ledger: Ledger, path: Place
) -> None:
    """Its hash is remembered for what was written, not for where it stands."""
    mine = granted(ledger)
    edit(path, *EDITED)
    with pytest.raises(LedgerCorrupt, match="does not agree"):
        granted(ledger)
    with pytest.raises(LedgerCorrupt):
        ledger.settle(mine)


def test_the_test_of_edits_finds_a_hash_kept_by_its_place(
    ledger: Ledger, path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a memory that looks only at which entry it is."""
    known: dict[tuple[Any, ...], str] = {}
    real = vars(chain)["_hash"]

    def by_place(previous: str, *columns: Any) -> str:
        place = (columns[0], columns[8])
        return known.setdefault(place, real(previous, *columns))

    monkeypatch.setattr(chain, "_hash", by_place)
    granted(ledger)
    edit(path, *EDITED)
    granted(ledger)


def test_a_policy_that_changed_is_another_object(ledger: Ledger) -> None:
    """What a policy declares is remembered for this very one."""
    granted(ledger)
    for _ in range(2):
        with pytest.raises(PolicyChanged):
            granted(ledger, policies=[make_policy("a", budget="{epsilon: 7}")])
        looser = BASIC.model_copy(update={"unit": "household"})
        with pytest.raises(PolicyChanged):
            granted(ledger, policies=[looser])
        granted(ledger, "0.01")


def test_equal_things_are_asked_about_again_and_kept_alive() -> None:
    """So that no other object, at the same place in memory, gets the answer."""
    asked: list[int] = []

    @by_identity
    def length(items: tuple[object, ...]) -> int:
        asked.append(len(items))
        return len(items)

    for size in range(3000):
        assert length(tuple(range(size % 7))) == size % 7
        assert length((size,) * (size % 5)) == size % 5
    one = (1, 2, 3)
    asked.clear()
    assert (length(one), length(one), asked) == (3, 3, [3])


# Trips to a server


@pytest.mark.parametrize("wrong", [("b#1",), ("a#1/flow/other", "nowhere#7"), ()])
def test_a_wrong_hint_decides_nothing(
    ledger: Ledger, path: Place, monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, ...]
) -> None:
    """It says what to ask first; the charges are the same without it."""
    two = (BASIC, make_policy("b"))
    first = granted(ledger, "0.1", policies=two)
    kept = vars(hints.Hints)["note"]

    def misled(self: Any, requests: Any, answers: Any) -> None:
        kept(self, requests, answers)
        for known in (self._accounts, self._granted):
            for key in known:
                known[key] = wrong if known is self._accounts else (("b",), wrong)

    monkeypatch.setattr(hints.Hints, "note", misled)
    second = granted(ledger, "0.1", policies=two)
    third = granted(ledger, "0.1")
    for mine in (first, second, third):
        ledger.settle(mine)
    ledger.void(granted(ledger, "0.2", policies=two), reason="test")
    audit(path)
    assert sums(path)[0] == 3 * TENTH
    assert sums(path, "b#1")[0] == 2 * TENTH


def test_a_charge_is_two_trips_to_reserve_and_two_to_settle(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is read in one, all that is written in another."""
    trips: list[str] = []
    wait = vars(PostgresSession)["_wait"]

    def counted(self: Any, result: Any) -> None:
        if result.pgresult is None:
            trips.append("")
        wait(self, result)

    ledger = make_ledger(postgres_url)
    ledger.settle(granted(ledger, "0.01"))
    monkeypatch.setattr(PostgresSession, "_wait", counted)
    mine = granted(ledger, "0.01")
    assert len(trips) == 2
    ledger.settle(mine)
    assert len(trips) == 4
    ledger.close()


def test_a_lock_that_was_removed_is_made_again(
    postgres_url: str,
) -> None:
    """A connection remembers which rows there are to lock, until one is not there."""
    ledger = make_ledger(postgres_url)
    granted(ledger, "0.1")
    edit(postgres_url, "DELETE FROM lockable")
    granted(ledger, "0.1")
    assert read(postgres_url, "SELECT name FROM lockable") == [("a",)]
    audit(postgres_url)
    ledger.close()


def test_another_process_s_charges_are_seen_at_once(
    ledger: Ledger, path: Place
) -> None:
    """Nothing of an account is remembered from one transaction to the next."""
    other = open_ledger(url(path))
    for _ in range(3):
        granted(ledger, "0.1")
        granted(other, "0.1")
    other.close()
    assert sums(path)[1] == 6 * TENTH
    audit(path)
