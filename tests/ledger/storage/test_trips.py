"""What a charge costs a server, and what several charges have in common."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest

from dpflow import ApproxDP
from dpflow.exceptions import LedgerCorrupt, PolicyChanged, UnsupportedCost
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.pure_cache import by_identity, by_parts
from dpflow.ledger.records import Granted, Replayed
from tests.ledger.support import (
    BASIC,
    Place,
    audit,
    edit,
    granted,
    kinds,
    make_ledger,
    make_policy,
    read,
    request,
    sums,
    url,
)
from tests.postgres import server
from tests.proxy import Proxy

TENTH = Fraction(1, 10)
THREE_GATES = make_policy(
    "a", flows="{f: {epsilon: 0.6}}", odometer="{theorem: basic, delta: 0}"
)


def grants(answers: list[Any]) -> int:
    """Count the requests that were granted."""
    return sum(isinstance(answer, Granted) for answer in answers)


# Trips to a server


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Give a proxy that counts trips."""
    opened = Proxy(server().folder)
    yield opened
    opened.close()


def test_a_charge_is_two_trips_to_reserve_and_two_to_settle(
    postgres_url: str, proxy: Proxy
) -> None:
    """All that is read in one, all that is written in another, with the commit.

    Also where it is of several books, and where it is replayed. Only a process's first
    decision about a book looks at what was there before, too.
    """
    make_ledger(postgres_url).close()
    ledger = open_ledger(f"{postgres_url.partition('?')[0]}?host={proxy.folder}")
    flow = {"flow": "f", "flow_run": "r", "enclosing_runs": ("r",)}
    two = [make_policy("b"), make_policy("c")]
    for policies, fields in [([THREE_GATES], flow), (two, {})]:
        granted(ledger, "0.01", policies=policies, key=uuid.uuid4().hex, **fields)
        made = request(
            ledger, "0.01", policies=policies, key=uuid.uuid4().hex, **fields
        )
        assert isinstance(counted(proxy, ledger.reserve, made), Granted)
        counted(proxy, ledger.settle, made.reservation, value="1")
        again = request(ledger, "0.01", policies=policies, key=made.key_text, **fields)
        assert isinstance(counted(proxy, ledger.reserve, again), Replayed)
    ledger.close()
    audit(postgres_url)


def counted(
    proxy: Proxy, call: Callable[..., Any], *arguments: object, **named: object
) -> Any:
    """Call something that is two trips to the server."""
    before = proxy.trips
    answer = call(*arguments, **named)
    assert proxy.trips - before == 2
    return answer


def test_a_batch_is_two_trips(postgres_url: str, proxy: Proxy) -> None:
    """However many charges are decided in it."""
    make_ledger(postgres_url).close()
    ledger = open_ledger(f"{postgres_url.partition('?')[0]}?host={proxy.folder}")
    made = [request(ledger, "0.01") for _ in range(20)]
    ledger.reserve(request(ledger, "0.01"))
    before = proxy.trips
    assert grants(ledger.reserve_many(made)) == 20
    assert proxy.trips - before == 2
    ledger.close()
    audit(postgres_url)


def test_a_book_that_was_removed_is_not_begun_again(postgres_url: str) -> None:
    """Its journal is still there, and says that a book is missing."""
    ledger = make_ledger(postgres_url)
    granted(ledger, "0.1")
    edit(postgres_url, "DELETE FROM book")
    with pytest.raises(LedgerCorrupt):
        granted(ledger, "0.1")
    assert sums(postgres_url) == (0, TENTH)
    ledger.close()


# Batches


def test_a_batch_journals_every_charge_and_writes_the_row_once(
    path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row repeats the newest entry; the entries between are all there."""
    ledger, stored = make_ledger(path), list[tuple[int, int]]()
    granted(ledger, "0.01")
    write = ledger.storage.write

    @contextmanager
    def noting() -> Iterator[Any]:
        with write() as transaction:
            store = transaction.store

            def noted(changes: Any, entries: Any, values: Any) -> None:
                moved = [key for key in changes if key[0] == "account"]
                stored.append((len(entries), len(moved)))
                store(changes, entries, values)

            monkeypatch.setattr(transaction, "store", noted, raising=False)
            yield transaction

    monkeypatch.setattr(ledger.storage, "write", noting)
    asked = [request(ledger, "0.01") for _ in range(8)]
    assert grants(ledger.reserve_many(asked)) == 8
    assert stored == [(8, 1)]
    ledger.close()
    assert kinds(path) == ["open", *["reserve"] * 9]
    audit(path)


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
    assert read(path, "SELECT book FROM term") == [("a",)]
    audit(path)


# What is remembered


def test_an_entry_that_was_edited_is_seen_by_who_wrote_it(
    ledger: Ledger, path: Place
) -> None:
    """Nothing of it is remembered that could hide the edit."""
    mine = granted(ledger)
    edit(path, "UPDATE entry SET body = '{}' WHERE kind = 'reserve'")
    with pytest.raises(LedgerCorrupt, match="not what was hashed"):
        granted(ledger)
    with pytest.raises(LedgerCorrupt):
        ledger.settle(mine)


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


def test_texts_and_tuples_are_what_they_hold_and_all_else_is_itself() -> None:
    """An answer about a part is never given for another part that is like it."""
    asked: list[object] = []

    @by_parts
    def count(things: tuple[object, ...], size: int | None) -> int:
        asked.append((things, size))
        return len(asked)

    facts: dict[str, str] = {}
    text = str(b"ab", "ascii")
    assert count(("ab", facts), 1) == count((text, facts), 1) == 1
    assert count(("ab", {}), 1) == 2
    assert count(("ab", facts), None) == 3
    assert count((("ab",), facts), 1) == 4
    assert count((("ab", facts),), 1) == 5
    assert [count((dict.fromkeys(str(n)),), 1) for n in range(3000)] == [
        *range(6, 3006)
    ]


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
