"""Runs that are killed, cut off, taken over or forged: the rest stays held."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from typing import Any

import pytest

from dpflow import Gaussian, PureDP
from dpflow.accounting import make_filter
from dpflow.exceptions import (
    BudgetRefused,
    LedgerCorrupt,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.decision.gates import charges_of
from dpflow.ledger.decision.office import Repair
from dpflow.ledger.decision.settlement import Cover, End
from dpflow.ledger.entry import JournalError
from dpflow.ledger.model import Decision, newest_terms
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.records import Granted
from dpflow.ledger.state import charge_keys
from dpflow.ledger.views import accounts, open_reservations
from tests.ledger.processes import Child, await_death, die
from tests.ledger.support import (
    RUN,
    Place,
    drawn,
    granted,
    held_run,
    kinds,
    make_ledger,
    make_policy,
    request,
    reserve_all,
    state_of,
    sums,
    url,
    whole,
)

pytestmark = pytest.mark.storages("sqlite", "postgres")

TENTH = Fraction(1, 10)


def killed_run(path: Place) -> str:
    """Kill a process that holds four tenths and has drawn one; return its id."""

    def work(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        say(held_run(ledger, ["0.1"] * 4))
        ledger.settle(drawn(ledger).reservation)
        die()

    code, lines = Child(work).end()
    assert code == -9
    with closing(open_ledger(url(path))) as ledger:
        await_death(ledger, lines[0])
    return lines[0]


def test_a_crash_before_the_seal_leaves_the_rest_held(ledger: Any, path: Place) -> None:
    """It is shown as the rest of a flow run, and counts as forfeited."""
    name = killed_run(path)
    assert sums(ledger) == (TENTH, 3 * TENTH)
    (shown,) = open_reservations(ledger)
    assert (shown.reservation, shown.body["covers"]) == (name, RUN)
    assert not shown.alive
    assert shown.undrawn == {"a#1": {"epsilon": "0.3", "delta": "0"}}
    (view,) = accounts(ledger)
    shares = (view.spent, view.reserved, view.forfeited)
    assert [share["epsilon"] for share in shares] == ["0.1", "0", "0.3"]
    with pytest.raises(ReservationConflict, match="another process"):
        ledger.seal(RUN, outcome="failed")


def test_an_operator_closes_it_in_full(ledger: Any, path: Place) -> None:
    """The rest is posted, never returned; a late step is refused."""
    name = killed_run(path)
    ledger.forfeit(name, reason="given up")
    assert sums(ledger) == (4 * TENTH, 0)
    assert state_of(ledger, name) == "forfeited"
    with pytest.raises(BudgetRefused, match="sealed"):
        drawn(ledger)
    assert not ledger.seal(RUN, outcome="completed")


def test_who_runs_a_killed_run_again_holds_it_anew(ledger: Any, path: Place) -> None:
    """What the dead process did not draw returns; what it drew stays charged."""
    name = killed_run(path)
    assert held_run(ledger, ["0.1"] * 4) != name
    assert state_of(ledger, name) == "sealed"
    assert sums(ledger) == (TENTH, 4 * TENTH)
    assert not drawn(ledger).beyond
    assert ledger.seal(RUN, outcome="completed")
    assert sums(ledger) == (TENTH, TENTH)


def test_a_dead_run_is_sealed_by_a_good_declaration_only(ledger: Any) -> None:
    """One that fails leaves what a dead process holds as it was."""
    name = held_run(ledger, ["0.1"] * 4, owner="0" * 32)
    bad = whole(ledger, [Gaussian(sensitivity=1, sigma=20)])
    answers = reserve_all(ledger, [bad, request(ledger, "0.1")])
    assert [type(each) for each in answers] == [UnsupportedCost, Granted]
    assert state_of(ledger, name) == "open"
    held_run(ledger, ["0.1"] * 4)
    assert state_of(ledger, name) == "sealed"
    assert ledger.seal(RUN, outcome="completed")


def test_a_living_run_is_sealed_by_its_own_process_only(
    ledger: Any, path: Place
) -> None:
    """A second execution of the same run draws from it, and cannot end it."""
    name = held_run(ledger, ["0.1"] * 2)

    def work(say: Callable[[str], None]) -> None:
        other = open_ledger(url(path))
        say(held_run(other, ["0.1"] * 2))
        other.settle(drawn(other).reservation)
        for call in (
            lambda: other.seal(RUN, outcome="completed"),
            lambda: held_run(other, ["0.2"] * 2),
            lambda: held_run(other, ["0.1"], policies=[make_policy("b")]),
        ):
            with pytest.raises(ReservationConflict, match="another process"):
                call()

    assert Child(work).end() == (0, [name])
    assert sums(ledger) == (TENTH, TENTH)


def test_a_repaired_ledger_returns_nothing_of_an_old_run(ledger: Any) -> None:
    """It may have lost draws: the rest stays held, and the run is held anew."""
    first = held_run(ledger, ["0.1"] * 3)
    words = {"repairs": 1, "head": len(kinds(ledger))}
    ledger.ask(Repair(amounts={}, reason="restored", **words))
    with pytest.raises(BudgetRefused, match="sealed"):
        drawn(ledger)
    with pytest.raises(ReservationConflict, match="older than a repair"):
        ledger.seal(RUN, outcome="completed")
    assert sums(ledger) == (0, 3 * TENTH)
    assert held_run(ledger, ["0.1"] * 3) != first
    assert not drawn(ledger).beyond
    assert ledger.seal(RUN, outcome="completed")
    assert sums(ledger) == (0, 4 * TENTH)


# What must be caught


@pytest.fixture
def broken(path: Place) -> Any:
    """Give a ledger that a test breaks, and so is not audited."""
    result = make_ledger(path)
    yield result
    result.close()


def forged(ledger: Any, kind: str, amount: str, charge: str) -> None:
    """Write an entry that no decision makes, by a pen that does not look."""
    with ledger.storage.write() as transaction:
        state = transaction.load(
            lambda s: (
                *("repairs", "account/a#1"),
                *charge_keys(s, charge),
                *newest_terms(s, "a"),
            )
        )
        login = ledger.storage.writer or "x"
        pen = Decision(state, End(kind="seal", run=RUN, writer=login))
        amounts = {"a#1": PRICE(PureDP(epsilon=amount)).amounts}
        pen.write(kind, amounts, {"outcome": "x"}, charge=charge)
        transaction.append(pen.entries, pen.kept)


PRICE = make_filter("basic", epsilon=1).price


def test_a_seal_that_returns_more_than_undrawn_is_caught(broken: Any) -> None:
    """The control: the journal's reader refuses the entry of any writer."""
    name = held_run(broken, ["0.1"] * 4)
    broken.settle(drawn(broken).reservation)
    granted(broken, "0.2", preflights=())
    with pytest.raises(JournalError, match="ends a charge that holds"):
        forged(broken, "seal", "0.4", charge=name)
    forged(broken, "seal", "0.3", charge=name)


def draw_anything(monkeypatch: pytest.MonkeyPatch, preflight: str) -> None:
    """Let steps draw from a run reservation whatever its state is."""

    def always(_: Any, __: Any, requests: Any) -> Cover:
        return Cover(preflight, ended=False, drawn=charges_of(requests))

    monkeypatch.setattr("dpflow.ledger.decision.admit.cover_of", always)


def test_a_draw_after_the_seal_is_caught(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a ledger whose steps do not ask whether the run has ended."""
    name = held_run(broken, ["0.1"] * 4)
    granted(broken, "0.3", preflights=())
    broken.seal(RUN, outcome="completed")
    draw_anything(monkeypatch, name)
    with pytest.raises((JournalError, LedgerCorrupt), match="no open run reservation"):
        drawn(broken)


def test_a_draw_of_more_than_is_left_is_caught(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a ledger whose steps do not ask what the run has left."""
    name = held_run(broken, ["0.1"] * 2)
    draw_anything(monkeypatch, name)
    drawn(broken, "0.2")
    with pytest.raises((JournalError, LedgerCorrupt), match="it draws"):
        drawn(broken, "0.1")
