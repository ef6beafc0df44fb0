"""What returns to an account whose prices depend on the remaining budget.

There the outputs of a later step must not decide whether an earlier hold returns
(docs/derivations/residue.md#refunds): what something was reserved after is posted, and
only the ledger knows of what that is so.
"""

from __future__ import annotations

import json
import math
import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import EarlyStopping, Laplace, PureDP, Repeated
from dpflow.accounting import make_filter
from dpflow.accounting.rules.residue import ResidueFilter
from dpflow.accounting.rules.rule import Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import GaussianDP
from dpflow.exceptions import BudgetRefused, DpflowError
from dpflow.ledger.audit.reconcile import reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.tables.sqlite import forget_memory
from dpflow.rounding import UNITS
from tests.adversaries.test_residue import divergence, mean_after_gaussian, response
from tests.ledger.support import (
    Place,
    audit,
    entries,
    granted,
    make_ledger,
    make_policy,
    read,
    state_of,
    url,
)
from tests.ledger.witness.accidents import copy_database
from tests.sizes import scaled

BUDGET = "{epsilon: 1, delta: 1e-3}"
RESIDUE = make_policy(budget=BUDGET, filter="residue")
RULE = make_filter("residue", epsilon=1, delta="1e-3")
AUTO = make_policy(budget=BUDGET, filter="auto")
STEP, KEY = PureDP(epsilon="0.1"), "0" * 64
LOOP = EarlyStopping(Laplace(sensitivity=1, epsilon="0.05"), stops=(2, 5))


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Give a new, open ledger, and audit it at the end."""
    with closing(make_ledger(path)) as result:
        yield result
        audit(result)


def held(ledger: Ledger, cost: Any = STEP, **fields: Any) -> str:
    """Reserve a step on the account under residue."""
    return granted(ledger, cost, **{"policies": (RESIDUE,), **fields})


def sums(of: Any, account: str = "a#1") -> tuple[Tally, Tally]:
    """Return what is settled and held."""
    sql = "SELECT settled, held FROM account WHERE id = ?"
    ((settled, holding),) = read(of, sql, account)
    return Tally(tuple(json.loads(settled))), Tally(tuple(json.loads(holding)))


def in_turn(*costs: Any, rule: Any = RULE) -> Tally:
    """Return what steps cost one after another."""
    total = rule.zero()
    for cost in costs:
        total = total + rule.price(cost, total)
    return total


def mu_of(amount: Any) -> str:
    """Return a mu whose square is a little below an amount."""
    return f"{math.sqrt(float(amount) / UNITS) * (1 - 1e-9):.12f}"


def late_returns(place: str) -> list[str]:
    """Return the charges of which something returned after another reservation.

    From the journal alone: no entry may post to the account in between.
    """
    made: dict[str, tuple[int, list[int]]] = {}
    newest, results = 0, []
    for entry in entries(place):
        if "a#1" not in entry.postings or entry.charge is None:
            continue
        posted, holding = entry.postings["a#1"]
        if entry.kind == "reserve":
            made[entry.charge] = entry.number, holding
        elif entry.kind in ("settle", "void"):
            since, amount = made[entry.charge]
            if posted != amount and newest != since:
                results.append(entry.charge)
        newest = entry.number
    return results


# A step that ends last


def test_a_loop_that_is_alone_costs_what_ran(ledger):
    """Its sub-steps ran first to last, at the rest that each found."""
    ledger.settle(held(ledger, LOOP), reported=2)
    assert sums(ledger) == (in_turn(Repeated(LOOP.step, 2)), RULE.zero())
    ledger.settle(held(ledger, LOOP), reported=2)
    assert sums(ledger)[0] == in_turn(Repeated(LOOP.step, 4))


def test_a_step_that_never_began_returns_while_it_is_the_last(ledger):
    """Then the step leaves no trace, whatever an older one draws meanwhile."""
    older = held(ledger)
    before = sums(ledger)
    newer = held(ledger)
    ledger.void(newer, reason="not started")
    assert (sums(ledger), state_of(ledger, newer)) == (before, "void")
    ledger.settle(older)
    assert sums(ledger) == (in_turn(STEP), RULE.zero())


# A step after which something was reserved


def test_what_something_came_after_is_settled_in_full(ledger):
    """How far it goes, or whether it begins, may depend on what the other one drew."""
    loop, first = held(ledger, LOOP), held(ledger, release_key=KEY)
    ledger.settle(held(ledger))
    ledger.settle(loop, reported=2)
    ledger.void(first, reason="not started")
    assert sums(ledger) == (in_turn(LOOP, STEP, STEP), RULE.zero())
    assert state_of(ledger, first) == "void"
    held(ledger, release_key=KEY)


def test_theorems_with_prices_of_single_steps_return_them(ledger):
    """Each account by its own rule, also where one charge is on both."""
    both = {"policies": (RESIDUE, make_policy("b"))}
    first = granted(ledger, "0.1", **both)
    ledger.settle(granted(ledger, "0.1", **both))
    ledger.void(first, reason="not started")
    assert sums(ledger)[0] == in_turn(STEP, STEP)
    assert sums(ledger, "b#1") == (Tally((UNITS // 10, 0)), Tally((0, 0)))


def test_the_members_of_auto_return_what_each_may(ledger):
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
    assert sums(ledger) == (Tally(tuple(posted)), rule.zero())


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


@settings(max_examples=scaled(25, push=10), deadline=None)
@given(MOVES)
def test_nothing_returns_late_in_any_history(moves):
    """And an account is never below what its steps cost in turn."""
    url = f"memory://{uuid.uuid4().hex}"
    with closing(create_ledger(url)) as ledger:
        granted(ledger, STEP, policies=(RESIDUE,))
        play(ledger, moves, RESIDUE)
        assert late_returns(url) == []
    audit(url)
    forget_memory(url)


LATE = [(1, 0), (1, 0), (2, 0)]


def test_the_check_sees_a_late_return(ledger, path, monkeypatch):
    """Negative control: a ledger that returns everything is caught."""
    play(ledger, LATE, RESIDUE)
    assert (late_returns(path), verify(ledger).bad) == ([], [])
    with monkeypatch.context() as patch:
        patch.setattr(ResidueFilter, "settle_late", Rule.settle_late)
        play(ledger, LATE, RESIDUE)
    assert len(late_returns(path)) == 1


# What it is for


#: A budget of mu squared in full, and its delta at epsilon 0.001.
WHOLE = Fraction(1, 4)
DELTA = divergence(float(WHOLE), 1e-3) * (1 + 1e-12)
SOLD_OUT = make_policy(
    budget=f"{{epsilon: 0.001, delta: {DELTA:.16f}}}", filter="residue"
)


def by_choice(charge: Fraction) -> float:
    """Return the delta of who takes the better of two steps after a Gaussian."""

    def either(x: float) -> float:
        return max(response(0.3, x), divergence(float(charge), x))

    return mean_after_gaussian(either, float(WHOLE - charge), 1e-3)


def strategy(ledger: Ledger, policy: Any) -> tuple[bool, Fraction]:
    """Hold a response, draw a Gaussian of the rest, and take the response back.

    Returns:
        Whether what the response held is to be had a second time, and how much.
    """
    here, first = {"policies": (policy,)}, PureDP(epsilon="0.3")
    charge = make_filter(**policy.to_pinned()["filter"]).price(first).amounts[0]
    rest, spare = (mu_of(n) for n in (WHOLE * UNITS - charge, charge))
    kept = granted(ledger, first, **here)
    ledger.settle(granted(ledger, GaussianDP(mu=rest), **here))
    ledger.void(kept, reason="not started")
    try:
        granted(ledger, GaussianDP(mu=spare), **here)
    except BudgetRefused:
        return False, Fraction(charge, UNITS)
    return True, Fraction(charge, UNITS)


def test_a_choice_after_a_draw_would_pass_the_budget(ledger, monkeypatch):
    """Who sees the Gaussian and then chooses has more than delta, if he may choose.

    Negative control: with returns the ledger lets him, and his delta is above.
    """
    chooses, charge = strategy(ledger, SOLD_OUT)
    assert not chooses

    def fixed(x: float) -> float:
        return response(0.3, x)

    assert mean_after_gaussian(fixed, float(WHOLE - charge), 1e-3) < DELTA + 1e-4
    assert by_choice(charge) > DELTA + 1e-3
    monkeypatch.setattr(ResidueFilter, "settle_late", Rule.settle_late)
    again = create_ledger(f"memory://{uuid.uuid4().hex}")
    assert strategy(again, SOLD_OUT)[0]


# Charges after the fact


def amended(ledger: Ledger, charge: str, epsilon: str) -> None:
    """Amend a step to a pure one."""
    ledger.amend(charge, PureDP(epsilon=epsilon), reason="found out")


def test_a_step_that_nothing_followed_is_amended_at_its_own_price(ledger):
    """While it runs, and when it has ended."""
    before = PureDP(epsilon="0.05")
    ledger.settle(held(ledger, before))
    last = held(ledger)
    amended(ledger, last, "0.2")
    assert sums(ledger)[0] + sums(ledger)[1] == in_turn(before, PureDP(epsilon="0.2"))
    ledger.settle(last)
    ended = held(ledger, PureDP(epsilon="0.02"))
    ledger.settle(ended)
    amended(ledger, ended, "0.03")
    steps = (before, PureDP(epsilon="0.2"), PureDP(epsilon="0.03"))
    assert sums(ledger)[0] == in_turn(*steps)


@pytest.mark.parametrize("ends", [0, 1])
def test_a_step_that_another_followed_is_amended_late(ledger, ends):
    """Whichever ends first; the same cost is no more, and each time counts."""
    both = [held(ledger, PureDP(epsilon="0.05")) for _ in range(2)]
    ledger.settle(both[ends])
    ledger.settle(both[1 - ends])
    words = r"reserved at PureDP\(epsilon=0\.05\): .* no more than was charged"
    with pytest.raises(DpflowError, match=words):
        amended(ledger, both[0], "0.05")
    for epsilon in ("0.06", "0.07"):
        before = sums(ledger)[0].amounts[0]
        amended(ledger, both[0], epsilon)
        assert sums(ledger)[0].amounts[0] > 3 * before


def test_what_was_spent_before_is_late_where_something_is_charged(ledger):
    """The first one is not; a second one may have come before it."""
    ledger.charge_prior(RESIDUE, STEP, reason="before", evidence="1" * 64)
    first = sums(ledger)[0]
    assert first == in_turn(STEP)
    ledger.charge_prior(RESIDUE, STEP, reason="before", evidence="2" * 64)
    assert sums(ledger)[0].amounts[0] >= 6 * first.amounts[0]


@pytest.mark.parametrize("went_on", [False, True])
def test_what_a_ledger_forgot_is_late_where_it_went_on(tmp_path, went_on):
    """Steps that a copy granted without its witness were priced without the lost."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    with closing(create_ledger(url(path), witness=witness)) as here:
        here.settle(held(here))
    shutil.copyfile(path, tmp_path / "copy")
    with closing(open_ledger(url(path), witness=witness)) as here:
        here.settle(held(here))
    copy_database(tmp_path / "copy", path)
    if went_on:
        with closing(open_ledger(url(path), witness="none")) as elsewhere:
            elsewhere.settle(held(elsewhere))
    with closing(open_ledger(url(path), witness=witness)) as here:
        reconcile(here, reason="restored")
    amount = sums(path)[0].amounts[0]
    first = RULE.price(STEP)
    # Each was priced beside the first alone: the lost one, and what came instead.
    second = RULE.price(STEP, first).amounts[0]
    first_and_lost = first.amounts[0] + second
    assert amount == (3 * (first_and_lost + second) if went_on else first_and_lost)
