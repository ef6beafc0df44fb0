"""Terms under one filter: their thresholds add up in its tally.

Terms of one filter with equal constants are one longer adaptive sequence, so the sum of
their thresholds bounds all of them (docs/derivations/ledger.md#terms-under-a-lifetime).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, cast

from dpflow.accounting import make_filter
from dpflow.accounting.curves.conversions import falling_root
from dpflow.accounting.rules.delta_loss import SplitsDelta
from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.tightening import same_prices
from dpflow.accounting.solving import before_solving
from dpflow.exceptions import InvalidCost

#: Relative width of the search for an epsilon, below what people read.
_AGREES = 1e-6


class TermSum(NamedTuple):
    """Sum of the thresholds of terms, in the tally of the first term's filter.

    Source: docs/derivations/ledger.md#terms-under-a-lifetime.

    Assumes: the constants were fixed before the first charge of the first term.

    Rounding: thresholds of a lifetime down, readings up.

    Checked by: tests/accounting/test_terms.py, tests/adversaries/test_lifetimes.py.

    Attributes:
        rule: Filter of the first term.
        total: Sum of the thresholds with which the terms were opened.
    """

    rule: SplitsDelta
    total: Tally

    def limit(self, epsilon: Fraction, delta: Fraction) -> Tally:
        """Return the thresholds of a lifetime, which the sum may not exceed.

        Args:
            epsilon: Of the lifetime, positive.
            delta: Of the lifetime, in (0, 1); the filter's constants split it.
        """
        return _limit(self.rule, epsilon, delta)

    def least_epsilon(self, delta: Fraction, guess: Fraction) -> Fraction:
        """Return the epsilon that all terms lose together, by a relative 1e-6 too high.

        Args:
            delta: At which the epsilon is read, at least the sum of the parts of delta
                that the terms keep for steps.
            guess: Epsilon that is tried first.
        """
        return _least_epsilon(self, delta, guess)

    def room(self, epsilon: Fraction, delta: Fraction, part: Fraction) -> Fraction:
        """Return the epsilon of a further term for which a lifetime has room, nearly.

        Args:
            epsilon: Of the lifetime.
            delta: Of the lifetime.
            part: Delta of the further term.
        """
        left = self.limit(epsilon, delta).amounts[0] - self.total.amounts[0]
        if left <= 0:
            return Fraction(0)
        return self._replace(total=Tally((left,))).least_epsilon(part, epsilon)


@lru_cache(maxsize=64)
def _limit(rule: SplitsDelta, epsilon: Fraction, delta: Fraction) -> Tally:
    before_solving(lambda: _limit(rule, epsilon, delta))
    return rule.with_budget(epsilon, delta).limit


@lru_cache(maxsize=64)
def _least_epsilon(terms: TermSum, delta: Fraction, guess: Fraction) -> Fraction:
    before_solving(lambda: _least_epsilon(terms, delta, guess))
    loss = terms.total.amounts[0]

    def excess(epsilon: float) -> float:
        try:
            limit = terms.rule.with_budget(Fraction(epsilon), delta).limit
        except InvalidCost:  # the order allows nothing
            return 1.0
        # Rounding to a float keeps the sign.
        return float(Fraction(loss - limit.amounts[0], loss))

    return Fraction(falling_root(excess, 0.0, float(guess), _AGREES))


def adds_terms(text: str, declared: Collection[str]) -> bool:
    """Return whether terms add up in a filter's tally, better than their budgets do.

    Args:
        text: Of the filter, as for `add_thresholds`.
        declared: Options of the filter that the policy declares. An order that is
            derived from the budget would differ from term to term.
    """
    options = _read(text)[0].term_options
    return options is not None and options.issubset(declared)


@lru_cache(maxsize=64)
def _read(text: str) -> tuple[Filter, list[int]]:
    before_solving(lambda: _read(text))
    numbers = json.loads(text)
    thresholds = numbers.pop("thresholds", [])
    del numbers["role"]
    return make_filter(**numbers), thresholds


def add_thresholds(texts: Sequence[str | None]) -> TermSum | None:
    """Return the sum of terms; None if one prices steps or splits delta in another way.

    Args:
        texts: JSON of each term's filter with its solved thresholds, as a term pins it;
            None for a term whose budget only adds up.
    """
    terms = [_read(text) for text in texts if text is not None]
    first = terms[0][0] if len(terms) == len(texts) else None
    if not isinstance(first, SplitsDelta):
        return None
    total = first.zero()
    for rule, thresholds in terms:
        # `same_prices` compares the classes as well.
        if not same_prices(first, rule) or first.split != cast("Any", rule).split:
            return None
        total = total + Tally(tuple(thresholds))
    return TermSum(first, total)
