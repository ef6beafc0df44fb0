"""Steps whose price is right only beside what was left, and what they cost in turn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dpflow import EarlyStopping, Laplace, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.ledger import Ledger
from dpflow.rounding import UNITS
from tests.ledger.support import granted, make_policy, read

BUDGET = "{epsilon: 1, delta: 1e-3}"
RESIDUE = make_policy(budget=BUDGET, filter="residue")
RULE = make_filter("residue", epsilon=1, delta="1e-3")
AUTO = make_policy(budget=BUDGET, filter="auto")
STEP, KEY = PureDP(epsilon="0.1"), "0" * 64
LOOP = EarlyStopping(Laplace(sensitivity=1, epsilon="0.05"), stops=(2, 5))


def held(ledger: Ledger, cost: Any = STEP, **fields: Any) -> str:
    """Reserve a step on the account under residue."""
    return granted(ledger, cost, **{"policies": (RESIDUE,), **fields})


def sums(place: str | Path, account: str = "a#1") -> tuple[Tally, Tally]:
    """Return what is settled and held."""
    sql = "SELECT settled, held FROM account WHERE id = ?"
    ((settled, holding),) = read(place, sql, account)
    return Tally.from_text(settled), Tally.from_text(holding)


def in_turn(*costs: Any, rule: Any = RULE) -> Tally:
    """Return what steps cost one after another."""
    total = rule.zero()
    for cost in costs:
        total = total + rule.price(cost, total)
    return total


def mu_of(amount: Any) -> str:
    """Return a mu whose square is a little below an amount."""
    return f"{math.sqrt(float(amount) / UNITS) * (1 - 1e-9):.12f}"
