"""The sum of a dataset's terms, and the lifetime that caps it.

Terms add up by basic composition, each with the budget that it was opened with. A
tightening frees nothing: its author may have seen outputs, and then only the budget
that was fixed in advance bounds the term.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from dpflow.exceptions import PolicyNotApplied
from dpflow.ledger.records import TermView
from dpflow.policy import Policy
from dpflow.policy.pinned import budget_text, declared_budget
from dpflow.rounding import number_from_text, number_text

_NAMES = ("epsilon", "delta")


def _sum(budgets: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the sum of budgets as exact text."""
    texts = [*budgets]
    return {
        name: number_text(
            sum((number_from_text(budget[name]) for budget in texts), Fraction(0))
        )
        for name in _NAMES
    }


def total_of(terms: Iterable[TermView]) -> dict[str, str]:
    """Return the sum of the charged terms."""
    return _sum(view.opened for view in terms if view.charged)


def _remaining(budget: Mapping[str, str], whole: Mapping[str, str]) -> list[Fraction]:
    """Return epsilon and delta of a whole less those of a budget."""
    return [number_from_text(whole[n]) - number_from_text(budget[n]) for n in _NAMES]


def is_within(budget: Mapping[str, str], lifetime: Mapping[str, str]) -> bool:
    """Say whether a budget is at most a lifetime."""
    return min(_remaining(budget, lifetime)) >= 0


def lifetime_error(
    policy: Policy, terms: Sequence[TermView], *, opens: bool, raises: bool = False
) -> PolicyNotApplied | None:
    """Return an error for a file that brings all charged terms above its lifetime.

    Args:
        policy: The file.
        terms: The terms so far.
        opens: Whether the file opens a further term.
        raises: Whether the lifetime may be raised, or dropped by an overdrawn term.

    Returns:
        The error if the lifetime is exceeded or raised, if a further term has no
        lifetime, or if a term was overdrawn; else None.
    """
    budgets = [view.opened for view in terms if view.charged]
    if not budgets or (policy.lifetime is None and not opens):
        return None
    budgets += [declared_budget(policy.promised)] if opens else []
    dataset, total, limit = policy.dataset, _sum(budgets), "and no lifetime caps them"
    lifetime = None if policy.lifetime is None else declared_budget(policy.lifetime)
    whole = f"epsilon: {total['epsilon']}, delta: {total['delta']}"
    advice = f"Write `lifetime: {{{whole}}}` or more into its policy."
    if lifetime is not None:
        if is_within(total, lifetime):
            problem = _broken_promise(terms, lifetime) if opens and not raises else ""
            msg = f"In dataset {dataset!r} {problem}. Add --raise-lifetime to open a "
            msg += "further term nevertheless: the promise for all terms ends with it."
            return PolicyNotApplied(msg, dataset=dataset) if problem else None
        limit = f"above its lifetime {budget_text(lifetime)}"
        rest = [max(n, Fraction(0)) for n in _remaining(total_of(terms), lifetime)]
        remaining = dict(zip(_NAMES, map(number_text, rest), strict=True))
        if opens:
            advice = (
                f"{budget_text(remaining)} remains for a further term: lower the "
                "budget, or undo the edit."
            )
    if opens and policy.partition is not None and policy.partition.by_time:
        # A person may be in every part, so a term counts with the lifetime itself.
        advice = (
            "Parts by time may use up the lifetime together, so that no further term "
            "fits. Undo the edit, or change only what is tighter."
        )
    msg = (
        f"the terms of dataset {dataset!r} would add up to "
        f"{' + '.join(map(budget_text, budgets))} = {budget_text(total)}, {limit}. A "
        f"term counts with the budget that it was opened with. {advice}"
    )
    return PolicyNotApplied(msg, dataset=dataset, total=total, lifetime=lifetime)


def _broken_promise(terms: Sequence[TermView], lifetime: Mapping[str, str]) -> str:
    """Say why a further term breaks the promise for all terms, if it does."""
    over = [str(view.number) for view in terms if view.overdrawn]
    before = terms[-1].lifetime
    if over:
        return f"more was charged in term {' and '.join(over)} than its budget"
    if before is not None and not is_within(lifetime, before):
        return f"the file raises the lifetime {budget_text(before)}"
    return ""
