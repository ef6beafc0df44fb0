"""What the terms of a dataset add up to, and the lifetime that caps them.

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
    """Return what the charged ones of some terms add up to."""
    return _sum(view.opened for view in terms if view.charged)


def _remaining(budget: Mapping[str, str], whole: Mapping[str, str]) -> list[Fraction]:
    """Return epsilon and delta of a whole less those of a budget."""
    return [number_from_text(whole[n]) - number_from_text(budget[n]) for n in _NAMES]


def is_within(budget: Mapping[str, str], lifetime: Mapping[str, str]) -> bool:
    """Say whether a budget is at most a lifetime."""
    return min(_remaining(budget, lifetime)) >= 0


def check_lifetime(
    policy: Policy, terms: Sequence[TermView], *, opens: bool, raises: bool = False
) -> None:
    """Refuse what would bring all charged terms above the policy's lifetime.

    Args:
        policy: The file.
        terms: The terms so far.
        opens: Whether the file opens a further term.
        raises: Whether the lifetime may be raised, or dropped by an overdrawn term.

    Raises:
        PolicyNotApplied: If the lifetime is exceeded or raised, if a further term has
            no lifetime, or if a term was overdrawn.
    """
    budgets = [view.opened for view in terms if view.charged]
    if not budgets or (policy.lifetime is None and not opens):
        return
    if opens:
        budgets.append(declared_budget(policy.promised))
    dataset, total = policy.dataset, _sum(budgets)
    lifetime = None if policy.lifetime is None else declared_budget(policy.lifetime)
    if lifetime is not None and is_within(total, lifetime):
        if opens and not raises:
            _check_promise(dataset, terms, lifetime)
        return
    if not opens:
        advice = f"Keep the lifetime at {budget_text(total)} or more."
    elif policy.partition is not None and policy.partition.by_time:
        # A person may be in every part, so a term counts with the lifetime itself.
        advice = (
            "The parts of a dataset that is divided by time may use up its lifetime "
            "together, so that no further term fits. Undo the edit, or change only "
            "what is tighter."
        )
    elif lifetime is None:
        whole = f"epsilon: {total['epsilon']}, delta: {total['delta']}"
        advice = f"Write `lifetime: {{{whole}}}` or more into its policy."
    else:
        epsilon, delta = _remaining(total_of(terms), lifetime)
        advice = (
            "The terms so far use it up, so no budget is low enough: undo the edit."
        )
        if epsilon > 0 and delta >= 0:
            rest = {"epsilon": number_text(epsilon), "delta": number_text(delta)}
            advice = f"Lower the budget to at most {budget_text(rest)}."
    limit = "and no lifetime caps them"
    if lifetime is not None:
        limit = f"above its lifetime {budget_text(lifetime)}"
    msg = (
        f"the terms of dataset {dataset!r} would add up to "
        f"{' + '.join(map(budget_text, budgets))} = {budget_text(total)}, {limit}. A "
        f"term counts with the budget that it was opened with. {advice}"
    )
    raise PolicyNotApplied(msg, dataset=dataset, total=total, lifetime=lifetime)


def _check_promise(
    dataset: str, terms: Sequence[TermView], lifetime: Mapping[str, str]
) -> None:
    """Refuse to break what was promised of all terms together."""
    over = [str(view.number) for view in terms if view.overdrawn]
    before = terms[-1].lifetime
    if over:
        broken = (
            f"more was charged in term {' and '.join(over)} of dataset {dataset!r} "
            "than its budget, so that no sum of budgets bounds what all terms lose."
        )
    elif before is not None and not is_within(lifetime, before):
        broken = (
            f"the lifetime of dataset {dataset!r} was {budget_text(before)}, and the "
            f"file raises it to {budget_text(lifetime)}. That breaks what was promised "
            "of all terms together."
        )
    else:
        return
    msg = f"{broken} To open a further term nevertheless, add --raise-lifetime."
    raise PolicyNotApplied(msg, dataset=dataset)
