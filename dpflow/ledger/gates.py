"""Which accounts a request is charged to: the gates that must all admit it.

A dataset that is divided has an account for each partition, with the whole budget; a
step is charged to each partition that it touches. Its population, and the cap of all
partitions by time, see a person in each of them: the step costs them as a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs import Cost
from dpflow.accounting.groups import group_cost
from dpflow.accounting.tally import Tally
from dpflow.exceptions import ConfigurationError, UnsupportedCost
from dpflow.ledger.account import Account, announce_account
from dpflow.ledger.database import Session
from dpflow.ledger.records import Request
from dpflow.ledger.sources import check_alone
from dpflow.ledger.terms import (
    OF_FLOW,
    Term,
    gate_of,
    gate_place,
    governing_term,
    open_gate,
)
from dpflow.policy import Policy


@dataclass(frozen=True, slots=True)
class Gate:
    """An account that must admit a step.

    Attributes:
        size: How many privacy units of one person the step can touch here; 0 for an
            account that only says whether the dataset is open.
    """

    account: Account
    size: int = 1

    def price(self, cost: Cost) -> Tally:
        """Return what a step asks of the account.

        Raises:
            UnsupportedCost: If the gate would have to guess.
        """
        if self.size == 0:
            return self.account.rule.zero()
        return self.account.price(group_cost(cost, self.size))


def terms_of(
    session: Session, request: Request, *, applies: bool, facts: Mapping[str, Any]
) -> list[Term]:
    """Return the term of each dataset that a request reads, and of its populations.

    Raises:
        ConfigurationError: If populations are left out, or another dataset of this
            ledger has the source of one that has no term yet.
        PolicyChanged: If a policy differs from the copy that governs.
        PolicyNotApplied: If a person has to apply it first.
    """
    _check_populations(request)
    for policy in request.policies:
        if policy.source is not None:
            check_alone(session, policy)
    return [
        governing_term(session, policy, applies=applies, facts=facts)
        for policy in (*request.policies, *request.populations)
    ]


def gates_of(
    session: Session, request: Request, terms: Sequence[Term], facts: Mapping[str, Any]
) -> list[Gate]:
    """Return every gate that must admit the request, opening new accounts.

    Raises:
        ConfigurationError: If the request names no partition of a divided dataset, or
            one that cannot be, or some where no dataset is divided; or if its datasets
            are divided by different things.
    """
    divided = [policy for policy in request.policies if policy.partition is not None]
    if request.partitions and not divided:
        msg = (
            f"step {request.step!r} names partitions, but no dataset that it reads is "
            f"divided: {', '.join(request.datasets)}. The step did not run."
        )
        raise ConfigurationError(msg)
    _check_alike(request.step, divided)
    wanted: list[_Wanted] = []
    everything = (*request.policies, *request.populations)
    for term, policy in zip(terms, everything, strict=True):
        if policy in request.populations:
            size = sum(_units(each, request) for each in _members(policy, request))
            wanted.append(_Wanted(term, "population", size=size))
        elif policy.partition is None:
            wanted += [_Wanted(term, "dataset"), *_of_flow(request, term)]
        else:
            wanted += _of_partitions(request, term, policy)
    for each in wanted:
        announce_account(session, each.place)
        session.soon("read_granted", account=each.place, step=request.step)
    found = [each.opened(session, facts) for each in wanted]
    return [gate for gate in found if gate is not None]


def _check_alike(step: str, divided: Sequence[Policy]) -> None:
    """Refuse names that would mean a week of one dataset and a region of another."""
    parts = [(p.dataset, p.partition.by) for p in divided if p.partition is not None]
    if len({by for _, by in parts}) > 1:
        told = ", ".join(f"{dataset!r} by {by}" for dataset, by in parts)
        msg = (
            f"step {step!r} reads datasets that are divided by different things "
            f"({told}), so that no name of a part fits them all. Read them in steps of "
            "their own, or divide them alike. The step did not run."
        )
        raise ConfigurationError(msg)


def charges_of(asked: Iterable[tuple[Gate, Cost]]) -> list[tuple[Account, Tally]]:
    """Return what is asked of each account, summed up.

    Raises:
        UnsupportedCost: If a gate would have to guess.
    """
    found: dict[str, tuple[Account, Tally]] = {}
    for gate, cost in asked:
        account, before = found.get(gate.account.id, (gate.account, None))
        amount = gate.price(cost)
        found[account.id] = (account, amount if before is None else before + amount)
    return list(found.values())


def fitting_factor(asked: Sequence[tuple[Gate, Cost]]) -> Fraction | None:
    """Return by how much the noise must grow for every gate to admit what is asked.

    Args:
        asked: The gates, each with a cost as it was asked for; those of one account
            add up.

    Returns:
        A factor within about 1 % of the smallest, or None if none up to 1e6 fits.
    """

    def fits(factor: Fraction) -> bool:
        try:
            smaller = [(gate, cost.noisier(factor)) for gate, cost in asked]
            return all(a.admits(amount) for a, amount in charges_of(smaller))
        except (ValueError, UnsupportedCost):
            return False

    low, high = Fraction(1), Fraction(2)
    while not fits(high):
        low, high = high, high * 4
        if high > 10**6:
            return None
    while high / low > Fraction(101, 100):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    # Three digits, upwards, unless a cost may not say so much: what is shown must fit.
    step = Fraction(10) ** (len(str(int(high))) - 3)
    rounded = -(-high // step) * step
    return rounded if fits(rounded) else high


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A gate that a step asks, if its term has one."""

    term: Term
    kind: str
    name: str = ""
    partition: str = ""
    size: int = 1

    @property
    def place(self) -> str:
        return gate_place(self.term, self.kind, self.name, self.partition)

    def opened(self, session: Session, facts: Mapping[str, Any]) -> Gate | None:
        told = {**facts, "policy": self.term.policy_hash}
        account = open_gate(
            session, self.term, self.kind, self.name, told, partition=self.partition
        )
        return None if account is None else Gate(account, self.size)


def _of_flow(request: Request, term: Term, partition: str = "") -> Iterator[_Wanted]:
    # A flow that the policy does not cover gets no account of its own.
    if request.flow is not None and term.covers_flow(request.flow):
        for kind in OF_FLOW:
            if gate_of(term, kind, request.flow) is not None:
                yield _Wanted(term, kind, request.flow, partition)


def _of_partitions(request: Request, term: Term, policy: Policy) -> Iterator[_Wanted]:
    """Yield the gates of the partitions that a step touches."""
    if policy.partition is None or not request.partitions:
        msg = (
            f"dataset {policy.dataset!r} is divided into partitions, and step "
            f"{request.step!r} does not say which it reads: give it partitions=, such "
            'as partitions="{week}". The step did not run.'
        )
        raise ConfigurationError(msg)
    for name in request.partitions:
        policy.partition.check_name(name, policy.dataset)
    size = len(request.partitions) if "whole" in term.pinned else 0
    yield _Wanted(term, "dataset", size=size)
    for name in request.partitions:
        yield _Wanted(term, "partition", name)
        yield from _of_flow(request, term, name)


def _members(population: Policy, request: Request) -> list[Policy]:
    return [p for p in request.policies if _population_of(p) == population.dataset]


def _population_of(policy: Policy) -> str | None:
    return None if policy.population is None else f"population/{policy.population}"


def _units(policy: Policy, request: Request) -> int:
    """Return how many privacy units one person can be in what a step reads of it."""
    divided = policy.partition is not None and policy.partition.by_time
    return len(request.partitions) if divided else 1


def _check_populations(request: Request) -> None:
    """Refuse a request that would leave a population uncharged."""
    needed = {_population_of(policy) for policy in request.policies} - {None}
    given = {policy.dataset for policy in request.populations}
    if needed != given:
        msg = (
            f"the datasets {', '.join(request.datasets)} belong to the populations "
            f"{sorted(map(str, needed))}, but the request charges {sorted(given)}"
        )
        raise ConfigurationError(msg)
