"""What is charged after the fact beside what a ledger went on with."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpflow import PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.rules.residue import ResidueFilter
from dpflow.accounting.rules.rule import Rule
from dpflow.costs import GaussianDP
from dpflow.exceptions import DpflowError
from dpflow.ledger.audit.reconcile import reconcile
from dpflow.ledger.decision.office import Amend, Prior
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.storage.memory import forget_memory
from dpflow.rounding import UNITS
from tests.adversaries.test_residue import divergence, mean_after_gaussian, response
from tests.ledger.decision.returns.steps import (
    AUTO,
    RESIDUE,
    RULE,
    STEP,
    held,
    in_turn,
    mu_of,
    sums,
)
from tests.ledger.support import audit, granted, make_policy, url
from tests.ledger.witness.accidents import copy_database

# Charges after the fact


def declared_late(policy: Any, budget: Fraction) -> tuple[bool, bool, Fraction]:
    """Draw a Gaussian that is declared too small, look, and take one of two steps.

    Returns:
        Whether each choice fits when the Gaussian is amended to what it was, and what
        the response was charged.
    """
    first, here = PureDP(epsilon="0.3"), {"policies": (policy,)}
    charge = make_filter(**policy.pinned()["filter"]).price(first).amounts[0]
    rest, spare = (mu_of(n) for n in (budget * UNITS - charge, charge))
    fits = []
    for choice in (first, GaussianDP(mu=spare)):
        place = f"memory://{uuid.uuid4().hex}"
        opened = create_ledger(place)
        small = granted(opened, GaussianDP(mu="1e-9"), **here)
        opened.settle(small)
        opened.settle(granted(opened, choice, **here))
        (told,) = opened.ask(
            Amend(charge=small, cost=GaussianDP(mu=rest), reason="as drawn")
        )
        fits.append(not told.overdrawn)
        opened.close()
        audit(place)
        forget_memory(place)
    return fits[0], fits[1], Fraction(charge, UNITS)


def test_prices_that_did_not_know_an_earlier_step_pass_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who amends late has chosen by what the Gaussian showed: more than delta.

    Negative control: charged at its own price, the sum of prices stays in the budget.
    """
    epsilon, budget = 1e-3, Fraction(1, 4)
    delta = divergence(float(budget), epsilon) * (1 + 1e-12)
    policy = make_policy(
        budget=f"{{epsilon: 0.001, delta: {delta:.16f}}}", filter="residue"
    )
    *fits, charge = declared_late(policy, budget)
    c = float(charge)

    def either(x: float) -> float:
        return max(response(0.3, x), divergence(c, x))

    assert mean_after_gaussian(either, float(budget) - c, epsilon) > delta + 1e-3
    assert fits == [False, False]
    monkeypatch.setattr(ResidueFilter, "charged_late", Rule.charged_late)
    assert declared_late(policy, budget)[:2] == (True, True)


def amended(ledger: Ledger, charge: str, epsilon: str) -> None:
    """Amend a step to a pure one."""
    ledger.ask(Amend(charge=charge, cost=PureDP(epsilon=epsilon), reason="found out"))


def test_a_step_that_nothing_followed_is_amended_at_its_own_price(
    place: str, ledger: Ledger
) -> None:
    """While it runs, and when it has ended."""
    before = PureDP(epsilon="0.05")
    ledger.settle(held(ledger, before))
    last = held(ledger)
    amended(ledger, last, "0.2")
    assert sums(place)[0] + sums(place)[1] == in_turn(before, PureDP(epsilon="0.2"))
    ledger.settle(last)
    ended = held(ledger, PureDP(epsilon="0.02"))
    ledger.settle(ended)
    amended(ledger, ended, "0.03")
    steps = (before, PureDP(epsilon="0.2"), PureDP(epsilon="0.03"))
    assert sums(place)[0] == in_turn(*steps)


@pytest.mark.parametrize("ends", [0, 1])
def test_a_step_that_another_followed_is_amended_late(
    place: str, ledger: Ledger, ends: int
) -> None:
    """Whichever ends first; the same cost is no more, and each time counts."""
    both = [held(ledger, PureDP(epsilon="0.05")) for _ in range(2)]
    ledger.settle(both[ends])
    ledger.settle(both[1 - ends])
    words = r"reserved at PureDP\(epsilon=0\.05\): .* no more than was charged"
    with pytest.raises(DpflowError, match=words):
        amended(ledger, both[0], "0.05")
    for epsilon in ("0.06", "0.07"):
        before = sums(place)[0].amounts[0]
        amended(ledger, both[0], epsilon)
        assert sums(place)[0].amounts[0] > 3 * before


def test_members_of_auto_are_charged_late_by_their_own_rules(
    place: str, ledger: Ledger
) -> None:
    """What orders do not matter to goes on."""
    here = {"policies": (AUTO,)}
    first = granted(ledger, STEP, **here)
    ledger.settle(granted(ledger, STEP, **here))
    amended(ledger, first, "0.11")
    ledger.settle(first)
    rule = AUTO.dataset_filter()
    alone = rule.price(STEP) + rule.price(PureDP(epsilon="0.11"))
    found = sums(place)[0].amounts
    assert found[0] > 3 * alone.amounts[0] > 0
    assert found[-3] == alone.amounts[-3] > 0


def test_what_was_spent_before_is_late_where_something_is_charged(
    place: str, ledger: Ledger
) -> None:
    """The first one is not; a second one may have come before it."""
    spent = Prior(policy=RESIDUE, cost=STEP, reason="before", evidence="1" * 64)
    ledger.ask(spent)
    first = sums(place)[0]
    assert first == in_turn(STEP)
    ledger.ask(replace(spent, evidence="2" * 64))
    assert sums(place)[0].amounts[0] >= 6 * first.amounts[0]


@pytest.mark.parametrize("went_on", [False, True])
def test_what_a_ledger_forgot_is_late_where_it_went_on(
    tmp_path: Path, went_on: bool
) -> None:
    """Steps that a copy granted without its witness were priced without the lost."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    here = create_ledger(url(path), witness=witness)
    here.settle(held(here))
    here.close()
    shutil.copyfile(path, tmp_path / "copy")
    here = open_ledger(url(path), witness=witness)
    here.settle(held(here))
    here.close()
    copy_database(tmp_path / "copy", path)
    if went_on:
        elsewhere = open_ledger(url(path), witness="none")
        elsewhere.settle(held(elsewhere))
        elsewhere.close()
    here = open_ledger(url(path), witness=witness)
    reconcile(here, {"a": RESIDUE}, reason="restored")
    here.close()
    found = sums(path)[0].amounts[0]
    first = RULE.price(STEP)
    # Each was priced beside the first alone: the lost one, and what came instead.
    second = RULE.price(STEP, first).amounts[0]
    first_and_lost = first.amounts[0] + second
    assert found == (3 * (first_and_lost + second) if went_on else first_and_lost)
