"""What is weak about a policy, and which theorem would take its workload furthest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpflow.accounting.costs.base import relations_of
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.forecast.counting import Workload, WorkloadStep, loads_of, runs_left
from dpflow.forecast.theorems import Fit, fits
from dpflow.ledger import TermView, view_policy
from dpflow.policy import Budget, Policy
from dpflow.policy.lifetime import (
    UNCHOSEN,
    differing,
    is_late,
    terms_that_fit,
    total_of,
)
from dpflow.policy.pinned import budget_text, readable_text
from dpflow.policy.population import PREFIX
from dpflow.rounding import short_up

#: An epsilon above it promises little.
WEAK_EPSILON = 10
#: A delta above 1 / that is weak for any dataset that says nothing of its people.
_FEW_PEOPLE = 10_000
_LIFETIME = "lifetime"
#: Another theorem is suggested if it admits this many times what the policy's does.
_WORTHWHILE = Fraction(105, 100)


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that is weak about a policy.

    Attributes:
        code: A name for programs.
        text: What is weak.
        hint: What to do.
    """

    code: str
    text: str
    hint: str

    @property
    def line(self) -> str:
        """Both in one line."""
        return f"{self.text} {self.hint}"

    @property
    def is_weak(self) -> bool:
        """False for a lifetime that was named in time: a choice, and a guarantee."""
        return self.code != _LIFETIME


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The theorem that takes a workload furthest.

    Attributes:
        best: What that theorem makes of it.
        own: What the policy's makes of it.
    """

    best: Fit
    own: Fit

    @property
    def text(self) -> str:
        """The suggestion in words."""
        own = _runs(self.own)
        if self.best == self.own:
            text = f"No adaptive filter admits more of this workload: {own}."
        else:
            text = (
                f"`filter: {self.best.filter}` goes furthest with this workload: "
                f"{_runs(self.best)}; {self.own.theorem} admits {own}."
            )
        if self.best.order is not None:
            text += " Fix the order before the first charge."
        return text


def advice(
    policy: Policy,
    *,
    people: int | None = None,
    workload: Workload = (),
    terms: Sequence[TermView] = (),
    strict: bool = False,
) -> list[Advice]:
    """Return what is weak about a policy; it is valid all the same.

    Args:
        policy: The policy.
        people: About how many privacy units there are; default: what the policy says.
        workload: The planned steps, if there are any.
        terms: The dataset's terms so far.
        strict: Whether a missing source is weak.
    """
    return [
        *_large_epsilon(policy),
        *_without_delta(policy),
        *_large_delta(policy, policy.check.people if people is None else people),
        *_renewal(policy, terms),
        *_warn_of_prices(policy, workload),
        *_too_large(policy, workload),
        *(_warn_of_source(policy) if strict else ()),
    ]


def suggestion(policy: Policy, workload: Workload) -> Suggestion | None:
    """Return the theorem that takes a workload furthest; None without a workload."""
    rule = policy.dataset_filter()
    if not workload or rule.lists_steps or rule.per_person:
        return None
    result = fits(
        workload, epsilon=rule.epsilon, delta=rule.delta, own=rule.parameters()
    )
    by_name = {fit.theorem: fit for fit in result if fit.order is None}
    own = by_name[rule.theorem]
    if result[0].problem:
        return None
    return Suggestion(result[0] if _further(result[0], own) else own, own)


def workload_of_sequence(policy: Policy) -> Workload:
    """Return the steps that a policy itself declares: those of its sequence."""
    # The class of a sequence would load numpy for a plain question about the budget.
    entries = getattr(policy.dataset_filter(), "entries", ())
    return tuple(WorkloadStep(entry.cost, entry.times) for entry in entries)


def _further(fit: Fit, other: Fit) -> bool:
    fit_rounds, its = (math.inf if n is None else n for n in (fit.rounds, other.rounds))
    return bool(other.problem) or its < fit_rounds >= _WORTHWHILE * its


def _runs(fit: Fit) -> str:
    if fit.problem:
        return "nothing, for it has no price for it"
    if fit.rounds is None:
        return "no end of runs"
    return f"{fit.rounds} run{'' if fit.rounds == 1 else 's'}"


# What is weak


def _budgets(policy: Policy) -> Iterator[tuple[str, Budget]]:
    yield "budget", policy.budget
    if policy.lifetime is not None and policy.lifetime != policy.budget:
        yield "lifetime", policy.lifetime


def _large_epsilon(policy: Policy) -> Iterator[Advice]:
    for name, budget in _budgets(policy):
        if budget.epsilon > WEAK_EPSILON:
            yield Advice(
                "large-epsilon",
                f"The {name}'s epsilon {readable_text(budget.epsilon)} promises little "
                f"to one {policy.unit}: what is released may be e^"
                f"{readable_text(budget.epsilon)} times likelier with them than "
                "without.",
                f"Aim for 3 or less, {WEAK_EPSILON} at the most.",
            )


def _without_delta(policy: Policy) -> Iterator[Advice]:
    if not policy.budget.delta and policy.dataset_filter().members:
        yield Advice(
            "no-delta",
            "The budget's delta is 0, so that only pure steps fit.",
            "Add delta to the budget, such as 1e-6.",
        )


def _large_delta(policy: Policy, people: int | None) -> Iterator[Advice]:
    most, which, more = Fraction(1, people or _FEW_PEOPLE), "1e-4", ""
    if people is None:
        more = ", and their number as `check: {people: N}`"
    else:
        which = f"1 / people (1 / {people})"
    for name, budget in _budgets(policy):
        if budget.delta > most:
            yield Advice(
                "large-delta",
                f"The {name}'s delta {readable_text(budget.delta)} is above {which}: "
                f"a step that publishes each {policy.unit} in full with that "
                "probability would pass.",
                f"Write at most {short_up(most / 10, 1)}{more}.",
            )


def _renewal(policy: Policy, terms: Sequence[TermView]) -> Iterator[Advice]:
    part = policy.partition
    unlimited = part is not None and part.by_time and policy.lifetime is None
    if part is not None and unlimited and not policy.window:
        person = policy.unit.removesuffix(f"-{part.by}")
        yield Advice(
            "renewal",
            f"Each {part.by} renews the budget for the same {person}s: one who is in "
            f"n {part.by}s loses up to n times as much, without a limit.",
            "Give `lifetime` a budget to cap it.",
        )
    if part is None and policy.lifetime is not None:
        lifetime, term = policy.lifetime.model_dump(), view_policy(policy)
        count = terms_that_fit(term.counted, lifetime)
        if count > 1:
            late = is_late(lifetime, terms[0].promised if terms else lifetime)
            condition = f", {UNCHOSEN}" if late else ""
            promised = budget_text(lifetime)
            yield Advice(
                "renewal" if late else _LIFETIME,
                f"The lifetime lets {count} terms renew the budget on the same rows. "
                f"What one {policy.unit} can rely on is {promised}, not the "
                f"budget{condition}.",
                "Name that when you say what is guaranteed, or lower the lifetime.",
            )
    charged = [view.counted for view in terms if view.charged]
    apart = not (terms and (terms[-1].divided or terms[-1].window))
    if len(charged) > 1 and apart and not differing(charged):
        total = budget_text(total_of(charged, terms[-1].lifetime))
        yield Advice(
            "renewed",
            f"{len(charged)} terms have charged the same rows: together they "
            f"guarantee {total}, {UNCHOSEN}.",
            "Open no further term unless its rows are new.",
        )


def _warn_of_prices(policy: Policy, workload: Workload) -> Iterator[Advice]:
    rule = policy.dataset_filter()
    for cost in dict.fromkeys(step.cost for step in workload):
        if policy.relation not in relations_of(cost):
            holds = " and ".join(relations_of(cost)) or "no relation"
            yield Advice(
                "no-price",
                f"{cost!r} is priced for {holds}, not for {policy.relation}, so such a "
                "step is refused.",
                "Declare a cost that holds for the policy's relation.",
            )
            continue
        try:
            rule.price(cost)
        except (UnsupportedCost, InvalidCost):
            others = fits((WorkloadStep(cost),), epsilon=rule.epsilon, delta=rule.delta)
            names = [fit.filter for fit in others if not fit.problem]
            hint = f"Choose one that does: {', '.join(names)}." if names else ""
            yield Advice(
                "no-price",
                f"The filter {rule.theorem} has no price for {cost!r}, so such a step "
                "is refused.",
                hint or "No filter has one at this budget; declare another cost.",
            )


def _too_large(policy: Policy, workload: Workload) -> Iterator[Advice]:
    """Warn of steps that fit no gate even once, of any flow that is named."""
    if policy.dataset_filter().per_person:
        return
    pinned = policy.to_pinned()
    for cost in dict.fromkeys(step.cost for step in workload):
        for flow in [*pinned["flows"], None]:
            try:
                loads = loads_of(pinned, flow, (WorkloadStep(cost),))
                left, limiting = runs_left(loads)
            except (UnsupportedCost, InvalidCost):
                continue
            if left == 0 and limiting is not None:
                where = "dataset" if flow is None else f"flow {flow}"
                yield Advice(
                    "too-large",
                    f"{cost!r} does not fit the {where} even once: "
                    f"the {limiting.account.rule.theorem} {limiting.account.kind} "
                    "gate refuses it.",
                    "Use more noise, or raise the budget.",
                )
                break


def _warn_of_source(policy: Policy) -> Iterator[Advice]:
    if policy.source is None and not policy.dataset.startswith(PREFIX):
        yield Advice(
            "no-source",
            "It names no `source`: a second dataset of the ledger could promise a "
            "budget of its own for the same data.",
            "Name the data behind it, such as `source: warehouse.sales`: another "
            "dataset that names it is refused.",
        )


def steps_text(workload: Workload) -> str:
    """Say what a workload is, shortly."""
    kinds = len({step.cost for step in workload})
    count = sum(step.times for step in workload)
    if kinds == 1:
        often = "" if count == 1 else f"{count} times "
        return f"{often}{workload[0].cost!r}"
    return f"{count} steps of {kinds} kinds"
