"""Lifetimes: what all charged terms of a dataset may lose together.

The first charged term fixes the method: thresholds add up in the tally of its filter,
or budgets add up by basic composition. Each term counts as it was opened. A tightening
frees nothing: its author may have seen outputs, and then only what was fixed in advance
bounds the term.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from dpflow.accounting import make_filter
from dpflow.accounting.odds import bound_right_guesses
from dpflow.accounting.terms import TermSum, add_thresholds, adds_terms
from dpflow.periods import PERIODS
from dpflow.policy.pinned import budget_text
from dpflow.rounding import number_from_text, number_text, short_down, short_up

Budget = Mapping[str, str]
_NAMES = ("epsilon", "delta")
#: Condition of every sum of terms that no early lifetime bounds.
UNCHOSEN = "if no term was opened because of a release"


class Opened(NamedTuple):
    """What a term counts towards a lifetime.

    Attributes:
        budget: Its budget; for parts by time with a lifetime, all of that.
        tally: Filter with thresholds, as JSON; None if only the budget adds up.
    """

    unit: str
    relation: str
    budget: Budget
    tally: str | None


def promise_of(
    pins: Mapping[str, Any], declared: Mapping[str, Any], gates: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a term fixes about all terms together when it is opened.

    Args:
        pins: What `Policy.to_pinned` returned.
        declared: What `Policy.to_declared` returned.
        gates: Of the term, with solved thresholds.
    """
    text = gates["partition"]["rule"]
    by_time = pins.get("partition", {}).get("by") in PERIODS
    adds = not by_time and adds_terms(text, declared["filter"].keys())
    return {
        "opened": pins["lifetime" if "whole" in pins else "budget"],
        "promised": pins.get("lifetime"),
        "tally": text if adds else None,
    }


def is_within(budget: Budget, lifetime: Budget) -> bool:
    """Return True if a budget is at most a lifetime."""
    return min(_remaining(budget, lifetime)) >= 0


def is_late(lifetime: Budget, promised: Budget | None) -> bool:
    """Return True if a lifetime was named or raised after the first charge."""
    return promised is None or not is_within(lifetime, promised)


def differing(terms: Sequence[Opened]) -> list[int]:
    """Return the places of terms that do not add up in the tally of the first one."""
    if not terms or terms[0].tally is None:
        return []
    first = terms[0]
    return [
        index
        for index, term in enumerate(terms)
        if term[:2] != first[:2] or add_thresholds([first.tally, term.tally]) is None
    ]


def tally_of(terms: Sequence[Opened]) -> TermSum | None:
    """Return the sum of several terms in one tally; None if only budgets add up."""
    several = len(terms) > 1 and not differing(terms)
    return add_thresholds([term.tally for term in terms]) if several else None


def fits(terms: Sequence[Opened], lifetime: Budget) -> bool:
    """Return True if terms are together within a lifetime."""
    tally = tally_of(terms)
    if tally is None:
        return is_within(_sum(terms), lifetime)
    return tally.total.fits_within(tally.limit(*_numbers(lifetime)))


def terms_that_fit(term: Opened, lifetime: Budget) -> int:
    """Return how many such terms fit into a lifetime."""
    sides: Any = _numbers(lifetime), _numbers(term.budget)
    if (tally := add_thresholds([term.tally])) is not None:
        sides = tally.limit(*sides[0]).amounts, tally.total.amounts
    return min(int(limit // part) for limit, part in zip(*sides, strict=True) if part)


def total_of(terms: Sequence[Opened], lifetime: Budget | None = None) -> Budget:
    """Return what terms lose together, rounded up: at the sum of their deltas.

    Args:
        terms: The charged terms of a dataset, oldest first.
        lifetime: If they fit into it otherwise, the epsilon is read at its delta.
    """
    budgets, tally = _sum(terms), tally_of(terms)
    if tally is None:
        return budgets
    guess, _ = _numbers(budgets)

    def at(delta: str) -> Budget:
        epsilon = tally.least_epsilon(number_from_text(delta), guess)
        return {"epsilon": short_up(epsilon), "delta": delta}

    total = at(budgets["delta"])
    if lifetime is None or is_within(total, lifetime) or not fits(terms, lifetime):
        return total
    return at(lifetime["delta"])


def say_total(terms: Sequence[Opened], lifetime: Budget | None = None) -> str:
    """Say what terms lose together, and how it was added up."""
    where = " in the tally of their filter" if tally_of(terms) else ""
    return budget_text(total_of(terms, lifetime)) + where


def odds_of(
    terms: Sequence[Opened], lifetime: Budget | None, fixed: Mapping[str, Any]
) -> Fraction:
    """Return how often of 100 times a guess about one privacy unit is right at most.

    Args:
        terms: The terms that count, oldest first; their sum is a guarantee.
        lifetime: Limit of all terms together, if there is one.
        fixed: Parameters of the filter of `terms`, if there is one term.
    """
    epsilon, delta = numbers = _numbers(lifetime or _sum(terms))
    tally = add_thresholds([term.tally for term in terms])
    if tally is not None:
        limit = tally.limit(epsilon, delta) if lifetime else tally.total
        return bound_right_guesses(epsilon, delta, tally.rule, limit)
    rule = make_filter(**fixed)
    # No further term fits after one with the whole budget.
    is_whole = numbers == [rule.epsilon, rule.delta]
    if is_whole and [_numbers(term.budget) for term in terms] == [numbers]:
        return bound_right_guesses(epsilon, delta, rule, rule.limit)
    return bound_right_guesses(epsilon, delta)


def room(terms: Sequence[Opened], new: Opened, lifetime: Budget) -> Budget:
    """Return what remains of a lifetime for a further term."""
    tally = tally_of([*terms, new]) and add_thresholds([term.tally for term in terms])
    if tally is None:
        remaining = (max(n, Fraction(0)) for n in _remaining(_sum(terms), lifetime))
        return dict(zip(_NAMES, map(number_text, remaining), strict=True))
    limit, delta = _numbers(lifetime)
    epsilon = tally.room(limit, delta, _numbers(new.budget)[1])
    return {"epsilon": short_down(epsilon), "delta": new.budget["delta"]}


def _sum(terms: Sequence[Opened]) -> Budget:
    """Return the sum of budgets as exact text."""
    budgets = [_numbers(term.budget) for term in terms]
    sums = (sum(numbers, Fraction(0)) for numbers in zip(*budgets, strict=True))
    return dict(zip(_NAMES, map(number_text, sums), strict=True))


def _numbers(budget: Budget) -> list[Fraction]:
    return [number_from_text(budget[name]) for name in _NAMES]


def _remaining(budget: Budget, lifetime: Budget) -> list[Fraction]:
    """Return epsilon and delta of a whole less those of a budget."""
    return [a - b for a, b in zip(_numbers(lifetime), _numbers(budget), strict=True)]
