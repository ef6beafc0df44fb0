"""Several statements as one: the same answers, and nothing is written by halves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import Ledger, postgres_session, postgres_together
from dpflow.ledger.encoder import encoded
from tests.ledger.support import audit, granted, kinds, make_ledger, read

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


# Questions


@pytest.mark.parametrize("count", [1, 4, 5, 40])
def test_questions_asked_together_are_answered_as_alone(
    postgres_url: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are sent one by one, more as arrays; some have no row, and newest first."""
    ledger = make_ledger(postgres_url)
    names = [granted(ledger, "0.01") for _ in range(count)] + ["none"]
    found = answers(ledger, names)
    monkeypatch.setattr(postgres_session, "TOGETHER", frozenset())
    assert found == answers(ledger, names)
    assert [len(rows) for rows in found] == [1] * count + [0, 1] * count + [0, 0, 2]
    ledger.close()


def answers(ledger: Ledger, names: list[str]) -> list[Any]:
    """Ask about charges; each question once, all announced before the first."""
    asked: list[tuple[str, dict[str, str]]]
    asked = [("read_reservation", {"id": name}) for name in names[:-1]]
    for name in names[:-1]:
        asked.append(("read_release", {"release_key": name}))
        asked.append(
            ("reserved_amount", {"account": "a#1", "reservation": name}),
        )
    asked.append(("read_reservation", {"id": names[-1]}))
    asked.append(("read_account", {"id": "b#1"}))
    asked.append(("newest_entries", {"account": "a#1"}))
    with ledger.database.write() as session:
        session.lock(["a"])
        for statement, values in asked:
            session.soon(statement, **values)
        return [list(session.rows(name, **values)) for name, values in asked]


# Changes


def half_a_change(ledger: Ledger, reservation: str) -> None:
    """Close a charge, and move an account that is elsewhere by now."""
    with ledger.database.write() as session:
        session.lock(["a"])
        row = dict(session.rows("read_account", id="a#1")[0])
        names = ("id", "settled", "held", "head", "state")
        moved = {name: row[name] for name in names}
        session.post("close_reservation", id=reservation, state="settled")
        session.post("move_account", **moved, seq=9, before=row["seq"] + 5)


def test_a_change_that_finds_no_row_commits_nothing(postgres_url: str) -> None:
    """Nor does what was sent with it."""
    ledger = make_ledger(postgres_url)
    name = granted(ledger, "0.1")
    with pytest.raises(LedgerCorrupt, match="move_account changed 0 rows"):
        half_a_change(ledger, name)
    assert read(postgres_url, "SELECT state FROM reservation") == [("open",)]
    ledger.settle(name)
    audit(postgres_url)
    ledger.close()


def test_the_test_of_half_a_change_finds_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: changes that do not check what they found."""
    real = vars(postgres_together)["_writing"]
    monkeypatch.setattr(
        postgres_together,
        "_writing",
        lambda shape: real(shape).rpartition(b"\nSELECT")[0] + b"\nSELECT 1",
    )
    ledger = make_ledger(postgres_url)
    name = granted(ledger, "0.1")
    half_a_change(ledger, name)
    assert read(postgres_url, "SELECT state FROM reservation") == [("settled",)]
    ledger.close()


def test_changes_of_one_kind_keep_their_order(postgres_url: str) -> None:
    """A second of a kind is another statement, sent behind the first."""
    ledger = make_ledger(postgres_url)
    asked = [granted(ledger, "0.01") for _ in range(3)]
    for name in reversed(asked):
        ledger.settle(name)
    assert kinds(postgres_url) == ["open", *["reserve"] * 3, *["settle"] * 3]
    audit(postgres_url)
    ledger.close()


# The canonical form


@given(JSON)
def test_the_canonical_form_is_the_standard_library_s(data: Any) -> None:
    """Byte for byte, errors included; journals of other versions are read by it."""
    told = []
    for write in (encoded, _plain):
        try:
            told.append(write(data))
        except ValueError as error:
            told.append(str(error))
    assert told[0] == told[1]


def _plain(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def test_what_holds_itself_is_refused() -> None:
    """Also what goes too deep."""
    inner: list[Any] = []
    inner.append(inner)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (inner, deep):
        with pytest.raises(ValueError, match="holds itself, or goes too deep"):
            encoded(bad)
