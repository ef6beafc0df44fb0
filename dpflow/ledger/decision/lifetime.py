"""What the terms of a dataset add up to, and the lifetime that caps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpflow.exceptions import PolicyNotApplied
from dpflow.ledger.records import TermView
from dpflow.policy import Policy
from dpflow.policy.fields import Budget
from dpflow.policy.pinned import budget_text, declared_budget
from dpflow.rounding import number_from_text, number_text

_NAMES = ("epsilon", "delta")
#: A person may be in every part, so a term counts with the lifetime itself.
_NO_TERM = (
    "The parts of a dataset that is divided by time may use up its lifetime together, "
    "so that no further term fits beside one that was charged, whatever its budget or "
    "lifetime. Undo the edit, or change only what is tighter."
)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets of terms, which add up by basic composition.

    Each counts as it was opened. A tightening frees nothing: who decided it may have
    seen outputs, and then only the budget that was fixed in advance bounds the term.
    """

    parts: tuple[Mapping[str, str], ...]

    @classmethod
    def of(cls, terms: Sequence[TermView], further: Budget | None = None) -> Budgets:
        """Take the charged terms, and perhaps one that is to be opened."""
        parts = [view.opened for view in terms if view.charged]
        return cls((*parts, *([declared_budget(further)] if further else ())))

    def total(self) -> dict[str, str]:
        """Return the sum as exact text."""
        sums = {
            name: sum((number_from_text(p[name]) for p in self.parts), Fraction(0))
            for name in _NAMES
        }
        return {name: number_text(value) for name, value in sums.items()}

    def fit(self, lifetime: Mapping[str, str]) -> bool:
        """Say whether the sum is within a lifetime; equality fits."""
        total = self.total()
        return all(
            number_from_text(total[name]) <= number_from_text(lifetime[name])
            for name in _NAMES
        )


def check_lifetime(policy: Policy, budgets: Budgets, *, opens: bool) -> None:
    """Refuse terms that add up to more than the policy's lifetime.

    Args:
        policy: The file.
        budgets: Of the terms.
        opens: Whether the last of them is to be opened.

    Raises:
        PolicyNotApplied: If they do, or if there are several and there is no lifetime.
    """
    total = budgets.total()
    parts = " + ".join(budget_text(part) for part in budgets.parts)
    if policy.lifetime is None:
        epsilon, delta = total["epsilon"], total["delta"]
        msg = (
            f"dataset {policy.dataset!r} cannot have a further term without a cap on "
            f"all of them: {parts} adds up to {budget_text(total)}. "
        )
        msg += (
            _NO_TERM
            if _divided_by_time(policy)
            else f"Write `lifetime: {{epsilon: {epsilon}, delta: {delta}}}` or more "
            "into its policy."
        )
        raise PolicyNotApplied(msg, dataset=policy.dataset, total=total)
    lifetime = declared_budget(policy.lifetime)
    if not budgets.fit(lifetime):
        msg = (
            f"the terms of dataset {policy.dataset!r} would add up to {parts} = "
            f"{budget_text(total)}, above its lifetime {budget_text(lifetime)}. A term "
            "counts with the budget that it was opened with. "
            f"{_advice(policy, budgets, lifetime, opens=opens)}"
        )
        raise PolicyNotApplied(
            msg, dataset=policy.dataset, total=total, lifetime=lifetime
        )


def _advice(
    policy: Policy, budgets: Budgets, lifetime: Mapping[str, str], *, opens: bool
) -> str:
    """Say what would fit within a lifetime that the terms exceed."""
    if not opens:
        return f"Keep the lifetime at {budget_text(budgets.total())} or more."
    if _divided_by_time(policy):
        return _NO_TERM
    before = Budgets(budgets.parts[:-1]).total()
    rest = {
        n: number_from_text(lifetime[n]) - number_from_text(before[n]) for n in _NAMES
    }
    if rest["epsilon"] <= 0 or rest["delta"] < 0:
        return (
            "The terms so far use it up, so no budget is low enough: undo the edit, or "
            "raise the lifetime, which breaks what it promised."
        )
    text = budget_text({name: number_text(value) for name, value in rest.items()})
    return f"Lower the budget to at most {text}, or keep the terms that there are."


def _divided_by_time(policy: Policy) -> bool:
    return policy.partition is not None and policy.partition.by_time


def check_raise(policy: Policy, terms: Sequence[TermView], *, allowed: bool) -> None:
    """Refuse to break a lifetime that was promised before, unless that is meant.

    Raises:
        PolicyNotApplied: If it is raised, or a term was overdrawn, and nobody said so.
    """
    over = [str(view.number) for view in terms if view.overdrawn]
    if over and not allowed:
        msg = (
            f"more was charged in term {' and '.join(over)} of dataset "
            f"{policy.dataset!r} than its budget, so that no sum of budgets bounds "
            "what all terms lose. If a further term is meant nevertheless, add "
            "--raise-lifetime."
        )
        raise PolicyNotApplied(msg, dataset=policy.dataset)
    before = terms[-1].lifetime
    if before is None or policy.lifetime is None or allowed:
        return
    after = declared_budget(policy.lifetime)
    if any(number_from_text(after[n]) > number_from_text(before[n]) for n in _NAMES):
        msg = (
            f"the lifetime of dataset {policy.dataset!r} was {budget_text(before)}, "
            f"and the file raises it to {budget_text(after)}. That breaks what was "
            "promised of all terms together; if it is meant, add --raise-lifetime."
        )
        raise PolicyNotApplied(
            msg, dataset=policy.dataset, total=after, lifetime=before
        )
