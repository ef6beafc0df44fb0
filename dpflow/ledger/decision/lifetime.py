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
#: A person may be in every part, so a term counts with the lifetime itself.
_NO_TERM = (
    "The parts of a dataset that is divided by time may use up its lifetime together, "
    "so that no further term fits beside one that was charged, whatever its budget or "
    "lifetime. Undo the edit, or change only what is tighter."
)


def added_budgets(budgets: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the sum of budgets as exact text."""
    sums = dict.fromkeys(_NAMES, Fraction(0))
    for budget in budgets:
        for name in _NAMES:
            sums[name] += number_from_text(budget[name])
    return {name: number_text(value) for name, value in sums.items()}


def total_of(terms: Iterable[TermView]) -> dict[str, str]:
    """Return what the charged ones of some terms add up to."""
    return added_budgets(view.opened for view in terms if view.charged)


def is_within(budget: Mapping[str, str], lifetime: Mapping[str, str]) -> bool:
    """Say whether a budget is at most a lifetime."""
    pairs = [
        (number_from_text(budget[n]), number_from_text(lifetime[n])) for n in _NAMES
    ]
    return all(value <= limit for value, limit in pairs)


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
    dataset, total = policy.dataset, added_budgets(budgets)
    sums = f"{' + '.join(map(budget_text, budgets))} = {budget_text(total)}"
    by_time = policy.partition is not None and policy.partition.by_time
    if policy.lifetime is None:
        epsilon, delta = total["epsilon"], total["delta"]
        msg = (
            f"dataset {dataset!r} cannot have a further term without a cap on all of "
            f"them: {sums}. "
        )
        msg += (
            _NO_TERM
            if by_time
            else f"Write `lifetime: {{epsilon: {epsilon}, delta: {delta}}}` or more "
            "into its policy."
        )
        raise PolicyNotApplied(msg, dataset=dataset, total=total)
    lifetime = declared_budget(policy.lifetime)
    if not is_within(total, lifetime):
        if not opens:
            advice = f"Keep the lifetime at {budget_text(total)} or more."
        elif by_time:
            advice = _NO_TERM
        else:
            advice = _remaining(total_of(terms), lifetime)
        msg = (
            f"the terms of dataset {dataset!r} would add up to {sums}, above its "
            f"lifetime {budget_text(lifetime)}. A term counts with the budget that it "
            f"was opened with. {advice}"
        )
        raise PolicyNotApplied(msg, dataset=dataset, total=total, lifetime=lifetime)
    if opens and not raises:
        _check_promise(dataset, terms, lifetime)


def _remaining(used: Mapping[str, str], lifetime: Mapping[str, str]) -> str:
    """Say what budget a further term may have within a lifetime."""
    rest = {
        n: number_from_text(lifetime[n]) - number_from_text(used[n]) for n in _NAMES
    }
    if rest["epsilon"] <= 0 or rest["delta"] < 0:
        return (
            "The terms so far use it up, so no budget is low enough: undo the edit, or "
            "raise the lifetime, which breaks what it promised."
        )
    text = budget_text({name: number_text(value) for name, value in rest.items()})
    return f"Lower the budget to at most {text}, or keep the terms that there are."


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
