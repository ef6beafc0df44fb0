"""What returns to an account where a price is right only beside what was left.

There the outputs of a later step must not decide whether an earlier hold returns
(docs/derivations/residue.md#refunds): what something was reserved after is posted, and
only the ledger knows of what that is so.
"""

from __future__ import annotations

import json
import uuid
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import PureDP, Repeated
from dpflow.accounting import make_filter
from dpflow.accounting.rules.residue import ResidueFilter
from dpflow.accounting.rules.rule import Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import GaussianDP
from dpflow.exceptions import BudgetRefused
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from dpflow.ledger.storage.memory import forget_memory
from dpflow.rounding import UNITS
from tests.adversaries.test_residue import divergence, mean_after_gaussian, response
from tests.ledger.decision.returns.steps import (
    AUTO,
    KEY,
    LOOP,
    RESIDUE,
    RULE,
    STEP,
    held,
    in_turn,
    mu_of,
    sums,
)
from tests.ledger.run_reservations import RUN, drawn, held_run
from tests.ledger.support import audit, granted, make_policy, read, state_of
from tests.sizes import scaled


def late_returns(place: str) -> list[str]:
    """Return the charges of which something returned after another reservation.

    From the journal alone: no entry may post to the account in between.
    """
    made: dict[str, tuple[int, list[int]]] = {}
    newest, found = 0, []
    sql = "SELECT number, kind, charge, rows FROM entry ORDER BY number"
    for number, kind, charge, text in read(place, sql):
        posting = json.loads(text).get("account/a#1")
        if posting is None:
            continue
        if kind == "reserve":
            made[charge] = number, posting[0]
        elif kind in ("settle", "void"):
            since, amount = made[charge]
            posted = [0] * len(amount) if kind == "void" else posting[0]
            if posted != amount and newest != since:
                found.append(charge)
        newest = number
    return found


# A step that ends last


def test_a_loop_that_is_alone_costs_what_ran(place: str, ledger: Ledger) -> None:
    """Its sub-steps ran first to last, at the rest that each found."""
    ledger.settle(held(ledger, LOOP), reported=2)
    assert sums(place) == (in_turn(Repeated(LOOP.step, 2)), RULE.zero())
    ledger.settle(held(ledger, LOOP), reported=2)
    assert sums(place)[0] == in_turn(Repeated(LOOP.step, 4))


def test_a_step_that_never_began_returns_while_it_is_the_last(
    place: str, ledger: Ledger
) -> None:
    """Then it is as if it had never asked, whatever an older one draws meanwhile."""
    older = held(ledger)
    before = sums(place)
    newer = held(ledger)
    ledger.void(newer, reason="not started")
    assert (sums(place), state_of(place, newer)) == (before, "void")
    ledger.settle(older)
    assert sums(place) == (in_turn(STEP), RULE.zero())


# A step after which something was reserved


def test_what_something_came_after_is_settled_in_full(
    place: str, ledger: Ledger
) -> None:
    """How far it goes, or whether it begins, may depend on what the other one drew."""
    loop, first = held(ledger, LOOP), held(ledger, release_key=KEY)
    ledger.settle(held(ledger))
    ledger.settle(loop, reported=2)
    ledger.void(first, reason="not started")
    assert sums(place) == (in_turn(LOOP, STEP, STEP), RULE.zero())
    assert state_of(place, first) == "settled"
    held(ledger, release_key=KEY)


def test_theorems_that_price_a_step_by_itself_return_it(
    place: str, ledger: Ledger
) -> None:
    """Each account by its own rule, also where one charge is on both."""
    both = {"policies": (RESIDUE, make_policy("b"))}
    first = granted(ledger, "0.1", **both)
    ledger.settle(granted(ledger, "0.1", **both))
    ledger.void(first, reason="not started")
    assert sums(place)[0] == in_turn(STEP, STEP)
    assert sums(place, "b#1") == (Tally((UNITS // 10, 0)), Tally((0, 0)))


def test_the_members_of_auto_return_what_each_may(place: str, ledger: Ledger) -> None:
    """The residue of a member stays charged; Renyi divergences return."""
    here = {"policies": (AUTO,)}
    first, loop = granted(ledger, "0.1", **here), granted(ledger, LOOP, **here)
    ledger.settle(granted(ledger, "0.1", **here))
    ledger.settle(loop, reported=2)
    ledger.void(first, reason="not started")
    rule = AUTO.dataset_filter()
    residue, *others = (own for own, _ in rule.covering(rule.zero()))
    posted = [*in_turn(STEP, LOOP, STEP, rule=residue).amounts, 0]
    for member in others:
        posted += [*in_turn(STEP, Repeated(LOOP.step, 2), rule=member).amounts, 0]
    assert residue.theorem == "residue"
    assert sums(place) == (Tally(tuple(posted)), rule.zero())


# Histories


def play(ledger: Ledger, moves: list[tuple[int, int]], policy: Any) -> None:
    """Reserve, settle and void in any order."""
    live: list[str] = []
    for kind, which in moves:
        if kind < 2 or not live:
            cost = LOOP if kind == 0 else STEP
            live.append(granted(ledger, cost, policies=(policy,)))
        else:
            charge = live.pop(which % len(live))
            if kind == 2:
                ledger.void(charge, reason="not started")
            else:
                ledger.settle(charge, reported=2 if kind == 3 else None)


MOVES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=16)


@settings(max_examples=scaled(25), deadline=None)
@given(MOVES)
def test_nothing_returns_late_in_any_history(moves: list[tuple[int, int]]) -> None:
    """And an account is never below what its steps cost in turn."""
    url = f"memory://{uuid.uuid4().hex}"
    ledger = create_ledger(url)
    granted(ledger, STEP, policies=(RESIDUE,))
    play(ledger, moves, RESIDUE)
    assert late_returns(url) == []
    ledger.close()
    audit(url)
    forget_memory(url)


LATE = [(1, 0), (1, 0), (2, 0)]


def test_the_check_sees_a_late_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a ledger that returns everything is caught, by `verify` too."""
    place = f"memory://{uuid.uuid4().hex}"
    ledger = create_ledger(place)
    play(ledger, LATE, RESIDUE)
    assert (late_returns(place), verify(ledger).bad) == ([], [])
    with monkeypatch.context() as patch:
        patch.setattr(ResidueFilter, "settled_late", Rule.settled_late)
        play(ledger, LATE, RESIDUE)
    assert len(late_returns(place)) == 1
    assert "settled for less" in str(verify(ledger).bad[0])


# What it is for


def strategy(ledger: Ledger, budget: Fraction, policy: Any) -> tuple[bool, Fraction]:
    """Hold a response, draw a Gaussian of the rest, and take the response back.

    Returns:
        Whether what the response held is to be had a second time, and how much.
    """
    here, first = {"policies": (policy,)}, PureDP(epsilon="0.3")
    charge = make_filter(**policy.pinned()["filter"]).price(first).amounts[0]
    rest, spare = (mu_of(n) for n in (budget * UNITS - charge, charge))
    kept = granted(ledger, first, **here)
    ledger.settle(granted(ledger, GaussianDP(mu=rest), **here))
    ledger.void(kept, reason="not started")
    try:
        granted(ledger, GaussianDP(mu=spare), **here)
    except BudgetRefused:
        return False, Fraction(charge, UNITS)
    return True, Fraction(charge, UNITS)


def test_a_choice_after_a_draw_would_pass_the_budget(
    place: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sees the Gaussian and then chooses has more than delta, if he may choose.

    Negative control: with returns the ledger lets him, and his delta is above.
    """
    epsilon, budget = 1e-3, Fraction(1, 4)
    delta = divergence(float(budget), epsilon) * (1 + 1e-12)
    fields = f"{{epsilon: 0.001, delta: {delta:.16f}}}"
    policy = make_policy(budget=fields, filter="residue")
    chooses, charge = strategy(ledger, budget, policy)
    assert not chooses
    c = float(charge)

    def either(x: float) -> float:
        return max(response(0.3, x), divergence(c, x))

    def fixed(x: float) -> float:
        return response(0.3, x)

    m = float(budget) - c
    assert mean_after_gaussian(fixed, m, epsilon) < delta + 1e-4
    assert mean_after_gaussian(either, m, epsilon) > delta + 1e-3
    monkeypatch.setattr(ResidueFilter, "settled_late", Rule.settled_late)
    again = create_ledger(f"memory://{uuid.uuid4().hex}")
    assert strategy(again, budget, policy)[0]


# Run reservations


@pytest.mark.parametrize("policy", [RESIDUE, AUTO])
def test_a_run_draws_at_the_prices_at_which_it_was_held(
    place: str, ledger: Ledger, policy: Any
) -> None:
    """No step runs under a reservation: its rest returns, and prices leave it out."""
    here = {"policies": (policy,)}
    rule = policy.dataset_filter()
    held_run(ledger, [STEP, LOOP, STEP, STEP], **here)
    assert sums(place)[1] == in_turn(STEP, LOOP, STEP, STEP, rule=rule)
    first = drawn(ledger, STEP, **here)
    assert not first.beyond
    ledger.settle(first.reservation)
    loop = drawn(ledger, LOOP, **here)
    ledger.settle(loop.reservation, reported=2)
    ran = in_turn(STEP, Repeated(LOOP.step, 2), rule=rule)
    assert (loop.beyond, sums(place)[0]) == (False, ran)
    ledger.settle(drawn(ledger, STEP, **here).reservation)
    ledger.seal(RUN, outcome="completed")
    ran = in_turn(STEP, Repeated(LOOP.step, 2), STEP, rule=rule)
    assert sums(place) == (ran, rule.zero())


def test_a_draw_counts_as_a_reservation(place: str, ledger: Ledger) -> None:
    """It does not change what is held, and its output may decide all the same."""
    here = {"policies": (RESIDUE,)}
    held_run(ledger, [STEP, STEP], **here)
    first = drawn(ledger, STEP, **here)
    ledger.settle(drawn(ledger, STEP, **here).reservation)
    ledger.void(first.reservation, reason="not started")
    assert sums(place) == (in_turn(STEP, STEP), RULE.zero())


def test_a_run_within_a_run_draws_too(place: str, ledger: Ledger) -> None:
    """What both hold is left out of the price."""
    here = {"policies": (RESIDUE,)}
    held_run(ledger, [STEP] * 4, **here)
    held_run(ledger, [STEP] * 2, run="inner", preflights=(RUN,), **here)
    for _ in range(2):
        step = drawn(ledger, STEP, preflights=("inner", RUN), **here)
        assert not step.beyond
        ledger.settle(step.reservation)
    ledger.seal("inner", outcome="completed")
    ledger.seal(RUN, outcome="completed")
    assert sums(place) == (in_turn(STEP, STEP), RULE.zero())
