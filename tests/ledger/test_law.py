"""The law: after every command, the newest value of each key is that of the fold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from dpflow.ledger.entry import JournalError
from dpflow.ledger.storage.tables import Transaction

from dpflow.ledger import journal
from dpflow.ledger.canonical import canonical, digest
from dpflow.ledger.tables.transaction import VERSION
from tests.ledger.laws import (
    InMemory,
    InPostgres,
    InSqlite,
    folded,
    lawful,
    played,
    stored,
)
from tests.sizes import scaled

pytestmark = pytest.mark.quick

HISTORIES = scaled(6)

once = cache(played)


#: On a server each history takes some seconds.
STORED = [(seed, InSqlite) for seed in range(HISTORIES)]
STORED += [(seed, InPostgres) for seed in range(2)]
PLAYED = [*((seed, InMemory) for seed in range(HISTORIES)), *STORED]


@pytest.mark.parametrize(("seed", "store"), PLAYED)
def test_newest_values_are_the_fold_of_the_journal(seed: int, store: type[Any]) -> None:
    """After every command of random histories."""
    play = once(seed, store)
    assert lawful(play.storage)


def test_histories_have_answers_of_each_kind() -> None:
    """In six of them: the histories above assert nothing that they may not meet."""
    answers = {name for seed in range(6) for name, _ in once(seed, InMemory).answers}
    assert answers >= {"Granted", "Busy", "BudgetRefused", "bool"}


@pytest.mark.parametrize(("seed", "store"), STORED)
def test_every_storage_answers_alike(seed: int, store: type[Any]) -> None:
    """The same history has the same answers and comes to the same values."""
    play, twin = once(seed, store), once(seed, InMemory)
    assert play.answers == twin.answers
    with play.storage.read() as one, twin.storage.read() as other:
        assert canonical(stored(one).rows) == canonical(stored(other).rows)


class Forgetful(InMemory):
    """A storage whose `append` leaves out the tags of releases."""

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Run a block."""
        with super().write() as within:
            yield within
            within.connection.execute("DROP TRIGGER IF EXISTS tag_is_kept")
            within.connection.execute("DELETE FROM tag WHERE key LIKE 'release/%'")


def test_a_store_that_leaves_a_tag_out_breaks_the_law() -> None:
    """The control: a release that no tag names is noticed."""
    assert not all(lawful(once(seed, Forgetful).storage) for seed in range(3))


def test_another_after_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: entries that another `after` wrote do not follow."""
    kinds = dict(journal.KINDS)
    storage = once(1, InMemory).storage
    assert lawful(storage)
    kinds["settle"] = kinds["settle"]._replace(settles=False)
    monkeypatch.setattr(journal, "KINDS", kinds)
    with pytest.raises(JournalError, match="the entries"), storage.read() as reading:
        folded(reading.after())


#: By version of the ledger, the digest of its kinds.
LAWS = {4: "81c6388b69c80b2007b371b65ade200df28c85117ec8d23ec2abaacb7f0f9f59"}


def law(kinds: Any) -> str:
    """Return a digest of what the kinds of entries do and which facts they read."""
    facts = {
        name: [sorted(kind.facts), getattr(kind.also, "__name__", None), *kind[2:]]
        for name, kind in kinds.items()
    }
    return digest(canonical(facts))


def test_another_law_has_another_version() -> None:
    """A ledger of older kinds or facts is refused by its version, not as damaged."""
    assert law(journal.KINDS) == LAWS[VERSION], "raise VERSION and note the new law"
    other = journal.KINDS["settle"]._replace(facts=frozenset({"new"}))
    assert law({**journal.KINDS, "settle": other}) != LAWS[VERSION]
