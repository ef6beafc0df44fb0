"""Releases: one per key, claimed by the living, replayed at no cost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from typing import Any

import pytest

from dpflow.exceptions import BudgetExhausted, ReservationConflict
from dpflow.ledger import open_ledger
from dpflow.ledger.requests import Busy, Replayed
from dpflow.ledger.views import history
from tests.ledger.processes import Child, Gate, await_death
from tests.ledger.support import (
    audit,
    granted,
    new_ledger,
    read,
    request,
    state_of,
    sums,
    url,
)

pytestmark = pytest.mark.storages("sqlite", "postgres")

VALUE = '"forty-two"'
TENTH, DEAD = Fraction(1, 10), "0" * 32
SQL = "SELECT state, charge, digest, value FROM release"


def test_a_settled_release_is_replayed_at_no_cost(ledger, path):
    """Word for word, in each process, after a restart, and with no budget left."""
    reservation = granted(ledger, "1", key="week/1")
    ledger.settle(reservation, value=VALUE)
    replay = Replayed(
        reservation=reservation,
        value=VALUE,
        digest=ledger.digests.of_value(reservation, VALUE),
    )
    with pytest.raises(BudgetExhausted):
        granted(ledger, "1")
    assert replay == ledger.reserve(request(ledger, "1", key="week/1"))
    ledger.settle(reservation, value=VALUE)
    for other in ({"value": '"other"'}, {"outcome": "failed"}):
        with pytest.raises(ReservationConflict, match="settled already"):
            ledger.settle(reservation, **other)
    ledger.close()
    with closing(open_ledger(url(path))) as again:
        assert replay == again.reserve(request(again, "1", key="week/1", step="other"))
        assert sums(path) == (1, 0)


def test_keys_show_nothing_without_the_ledger(ledger, tmp_path):
    """They are keyed by the ledger's own secret, and by all parts."""
    (tmp_path / "other").mkdir()
    with closing(new_ledger(tmp_path / "other")) as other:
        keys = {
            ledger.digests.of("a", "b"),
            ledger.digests.of("ab"),
            ledger.digests.of("b", "a"),
            ledger.digests.of(["a", "b"]),
            other.digests.of("a", "b"),
        }
        assert len(keys) == 5
        assert ledger.digests.of("a", "b") in keys


def test_another_processs_claim_is_waited_for_while_it_lives(ledger, path):
    """Then it is killed: the key is free, and its charge stays held."""
    gate = Gate()

    def work(say: Callable[[str], None]) -> None:
        say(granted(open_ledger(url(path)), key="week/1"))
        gate.wait()

    child = Child(work)
    first = child.line()
    answer = ledger.reserve(request(ledger, key="week/1"))
    assert isinstance(answer, Busy)
    assert first == answer.reservation
    child.kill()
    await_death(ledger, first)
    second = granted(ledger, key="week/1")
    assert sums(path) == (0, 2 * TENTH)
    ledger.settle(second, value=VALUE)
    assert sums(path) == (TENTH, TENTH)
    assert [("settled", second)] == [row[:2] for row in read(path, SQL)]
    assert state_of(path, first) == "open"
    gate.open()
    audit(path)


def test_a_dead_claims_cost_is_not_the_next_ones(ledger, path):
    """The release says what it was made at, and so does its replay at another cost."""
    granted(ledger, "0.1", key="week/1", owner=DEAD)
    second = granted(ledger, "0.2", key="week/1", step="again")
    assert isinstance(ledger.reserve(request(ledger, "0.2", key="week/1")), Busy)
    ledger.settle(second, value=VALUE)
    answer = ledger.reserve(request(ledger, "0.2", key="week/1"))
    assert isinstance(answer, Replayed)
    assert second == answer.reservation
    answer = ledger.reserve(request(ledger, "0.1", key="week/1"))
    assert isinstance(answer, Replayed)
    assert answer.made_at == "PureDP(epsilon=0.2)"
    assert sums(path) == (2 * TENTH, TENTH)


def test_another_question_under_the_same_key_is_an_error(ledger, path):
    """It says what differs, changes nothing and charges nothing."""
    fields: dict[str, Any] = {"arguments": {"day": "1", "top": "1"}, "key": "week/1"}
    ledger.settle(granted(ledger, "0.1", **fields), value=VALUE)
    alike = {"arguments": {"day": "1", "top": None}, "key": "week/1"}
    assert isinstance(ledger.reserve(request(ledger, "0.1", **alike)), Replayed)
    others: list[tuple[dict[str, Any], str]] = [
        ({"cost": "0.3", "on_change": "refuse"}, r"'week/1'.*0\.1.*0\.3"),
        ({"arguments": {"day": "2", "top": "1"}}, r"value of day\. "),
        ({"arguments": {"top": "1"}}, r"value of day\. "),
        ({"arguments": {"day": "1", "top": "2", "new": "1"}}, r"value of new, top\. "),
        ({"arguments": None}, r"value of day, top\. "),
    ]
    for other, why in others:
        with pytest.raises(ReservationConflict, match=why) as caught:
            ledger.reserve(request(ledger, **{**fields, **other}))
        assert caught.value.release_key == "week/1"
    assert sums(path) == (TENTH, 0)
    assert [(row[0], row[3]) for row in read(path, SQL)] == [("settled", VALUE)]


def test_what_cannot_be_replayed_is_charged_each_time(ledger, path):
    """A value that could not be stored; under a key that a step names it is refused."""
    for _ in range(3):
        ledger.settle(granted(ledger, key="week/1"), value=None)
    assert sums(path) == (3 * TENTH, 0)
    with pytest.raises(ReservationConflict, match="was not kept"):
        ledger.reserve(request(ledger, key="week/1", arguments={}))
    assert sums(path) == (3 * TENTH, 0)
    assert [(row[0], row[3]) for row in read(path, SQL)] == [("settled", None)]


def test_the_journal_keeps_a_keyed_digest_of_a_release(ledger):
    """Without the secret a reader learns no value, nor that two are equal."""
    digests = [
        ledger.settle(granted(ledger, key=key), value=VALUE).digest
        for key in ("a", "b")
    ]
    ended = [entry.body for entry in history(ledger) if entry.kind == "settle"]
    assert {body["digest"] for body in ended} == {*digests}
    plain = hashlib.sha256(VALUE.encode()).hexdigest()
    assert len({*digests, plain}) == 3
