"""Random histories: each answer and sum is foretold, whatever is lost or restarted."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import pytest

from dpflow.exceptions import BudgetRefused, DpflowError, LedgerError
from dpflow.ledger.decisions import reserve, settlement
from dpflow.ledger.decisions.charges_by_hand import Posted
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.requests import Busy, Granted, Replayed
from dpflow.ledger.tables.transaction import Transaction
from tests.ledger.histories import (
    LENGTH,
    People,
    Play,
    Workers,
    in_memory,
    in_postgres,
    in_sqlite,
)
from tests.ledger.history_model import LIMITS, Model
from tests.ledger.support import UNIT
from tests.sizes import scaled

HISTORIES = scaled(12, push=6)
CLOCKS = ("1970-01-01T00:00:00", "2026-11-21T12:00:00", "2999-12-31T23:59:59")


def simplified(answer: Any) -> Any:
    """Return what the model foretells of an answer."""
    if isinstance(answer, Granted):
        return "Granted"
    if isinstance(answer, BudgetRefused):
        return "BudgetRefused"
    if isinstance(answer, Replayed):
        return "Replayed", answer.reservation, answer.value
    if isinstance(answer, Busy):
        return "Busy", answer.reservation
    if isinstance(answer, DpflowError):
        return type(answer).__name__
    if isinstance(answer, tuple) and isinstance(answer[0], Posted):
        return "raised", max(Fraction(p.amount["epsilon"]) for p in answer)
    return answer


def foretold(seed: int) -> Play:
    """Play a history on the model and on a ledger, and compare after each command."""
    owners, clock = People(), Random(seed)
    model, workers = Model(owners), Workers(owners, in_memory(), lossy=True)
    author = workers.ledgers[0].author
    for ledger in workers.ledgers:
        # Times come in any order.
        ledger.author = lambda: author()._replace(at=clock.choice(CLOCKS))  # type: ignore[method-assign]
    ledgers = [workers, model]
    history = Play(seed, owners, ledgers, simple=True, describe=simplified)
    for _ in range(2 * LENGTH):
        history.step()
        for command, (real, right) in history.answers[-1:]:
            assert real == right, command
        sums = workers.sums()
        for name, right in model.sums().items():
            settled, held, *_ = sums.get(name, ((0,), (0,)))
            real = Fraction(settled[0], UNIT), Fraction(held[0], UNIT)
            assert real == right, (name, history.answers[-1])
    assert {name for name in sums if "/flow/g" not in name} <= {*LIMITS}
    assert workers.lost
    return history


#: A history in memory, played once for all tests that break nothing.
play_once = cache(foretold)


@pytest.mark.promise("lost-answer", "retries", "clock")
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_every_history_keeps_the_promises(seed):
    """Lost answers, two processes, deaths and clocks that jump change nothing."""
    play_once(seed)


CASES = [(in_memory, seed) for seed in range(scaled(12, push=4))]
for database in (in_sqlite, in_postgres):
    CASES += [(database, 1000 + seed) for seed in range(scaled(2, push=1))]


@pytest.mark.parametrize(("database", "seed"), CASES)
def test_lost_commits_and_two_processes_change_nothing(database, seed):
    """With all kinds of policies, a file and a server answer like a ledger in memory.

    A lost commit is found by the next sending.
    """
    owners = People()
    ledgers = [Workers(owners, in_memory()), Workers(owners, database(), lossy=True)]
    history = Play(seed, owners, ledgers)
    for _ in range(LENGTH):
        history.step()
        for command, (one, other) in history.answers[-1:]:
            assert one == other, command
    first, second = (ledger.sums() for ledger in ledgers)
    assert first == second
    assert ledgers[1].lost


#: Answers that the histories have to meet.
EVENTS = {"Granted", "Replayed", "Busy", "BudgetRefused", "ReservationConflict"}
EVENTS |= {"raised", "True", "False", "None", "PolicyNotApplied"}


def test_histories_meet_each_event():
    """The comparisons above assert nothing about answers that they do not meet."""
    events = Counter[str]()
    for seed in range(6):
        for _, (_, right) in play_once(seed).answers:
            events[str(right[0] if isinstance(right, tuple) else right)] += 1
    assert EVENTS - {*events} == set()


# Controls: the same histories find each of these.


def one_too_many(patch: pytest.MonkeyPatch) -> None:
    """Admit everything."""
    patch.setattr(Gate, "admits", lambda *_: True)


def other_requests(patch: pytest.MonkeyPatch) -> None:
    """Replay nothing."""
    patch.setattr(reserve, "find_release", lambda *_: None)


def cheap_outcomes(patch: pytest.MonkeyPatch) -> None:
    """Give everything back at the end of a charge that reports its outcome."""
    patch.setattr(
        settlement, "price_outcome", lambda gate, *_: gate.rule.zero().amounts
    )


def lost_commits(patch: pytest.MonkeyPatch) -> None:
    """Write no end of a charge."""
    write = Transaction.write

    def forgetful(transaction: Transaction, decision: Any) -> None:
        if not any(entry.kind == "settle" for entry, *_ in decision.entries):
            write(transaction, decision)

    patch.setattr(Transaction, "write", forgetful)


@pytest.mark.parametrize(
    "broken", [one_too_many, other_requests, cheap_outcomes, lost_commits]
)
def test_a_broken_promise_is_found(broken, monkeypatch):
    """A gate that is open, a release that is forgotten, a price that is too low."""
    broken(monkeypatch)
    with pytest.raises((AssertionError, LedgerError)):
        [foretold(seed) for seed in range(6)]
