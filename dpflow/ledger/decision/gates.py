"""Which accounts a step is charged to: the gates that must all admit it.

A dataset that is divided has an account for each partition, with the whole budget; a
step is charged to each partition that it touches. Its population, and the cap of all
partitions by time, see a person in each of them: the step costs them as a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from operator import add
from typing import Any, NamedTuple, cast

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.groups import group_cost
from dpflow.accounting.rules.rule import (
    Filter,
    Odometer,
    Rule,
    price_or_error,
    priced,
)
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.searches import least_noise
from dpflow.exceptions import ConfigurationError, UnsupportedCost
from dpflow.ledger.entry import Sums
from dpflow.ledger.model import rule_of
from dpflow.ledger.pure_cache import by_identity
from dpflow.ledger.records import Request
from dpflow.ledger.rows import OF_FLOW, Account, Term, gate_in, split
from dpflow.ledger.state import State
from dpflow.policy import Policy
from dpflow.policy.reserved import charges_others
from dpflow.rounding import float_down, float_up, number_from_text
from dpflow.solving import before_solving

_NOTHING: Sums = {}


class Gate(NamedTuple):
    """An account under its rule, which must admit a step.

    Attributes:
        kind: "dataset", "population", "partition", "flow", "odometer", or "others" for
            all charges that no reserved share pays.
        name: Of the flow or partition.
        partition: The partition that it belongs to; empty if to none.
        halt: For an odometer, the reading above which it refuses.
        used: What is settled and held.
        row: The account; None before its first entry.
        state: "open", "overdrawn" or "frozen".
        size: How many privacy units of one person the step can touch here; 0 for an
            account that only says whether the dataset is open.
        closed: Whether the policy gives the step's flow no access to the dataset.
    """

    id: str
    dataset: str
    kind: str
    name: str
    partition: str
    rule: Rule
    halt: Fraction | None
    used: Tally
    row: Account | None = None
    state: str = "open"
    size: int = 1
    closed: bool = False

    @property
    def settled(self) -> Tally:
        """What is settled."""
        return self.rule.zero() if self.row is None else Tally(self.row.settled)

    @property
    def held(self) -> Tally:
        """What is held."""
        return self.rule.zero() if self.row is None else Tally(self.row.held)

    def price(self, cost: Cost, used: Tally | None = None) -> Tally:
        """Return what a step asks of the account, rounded up.

        Args:
            cost: Of the step.
            used: What is settled and held when it asks. Default: what is now.

        Raises:
            UnsupportedCost: If the gate would have to guess. An odometer that halts
                nothing counts the step as uncovered instead.
        """
        rule = self.rule
        if self.size == 0:
            return rule.zero()
        if rule.steady:
            return _steady_price(rule, self.halt, cost, self.size)
        used = self.used if used is None else used
        return _price(rule, self.halt, group_cost(cost, self.size), used)

    def admits(self, asked: Tally) -> bool:
        """Say whether the gate lets a step run that asks for so much."""
        if self.state != "open":
            return False
        total = self.used + asked
        # By the kind: to ask a rule for its class is slow. One of another class would
        # have no such method.
        if self.kind != "odometer":
            return cast("Filter", self.rule).admits(total)
        if self.halt is None:
            return True
        # An undefined reading is infinite, and above every halt.
        return cast("Odometer", self.rule).read(total) <= float_down(self.halt)

    def uses_at_least(self, used: Tally, share: Fraction) -> bool:
        """Say whether a tally uses a share of what the gate allows, or perhaps so.

        False is certain. Deciding is cheaper than a search for the share, and most
        steps are far below.
        """
        if self.kind == "odometer":
            return self.halt is not None
        above, below = share.numerator, share.denominator
        # The quotient, rounded up, in whole numbers.
        amounts = (-(-amount * below // above) for amount in used.amounts)
        enlarged = Tally(tuple(amount + 1 if amount else 0 for amount in amounts))
        return not cast("Filter", self.rule).admits(enlarged)

    def used_share(self, used: Tally) -> float | None:
        """Return which share of what the gate allows a tally uses, rounded up.

        Of an odometer it is how far the reading has gone from where it idles to where
        it halts. None if the gate refuses nothing.
        """
        if isinstance(self.rule, Filter):
            return self.rule.used_fraction(used)
        if self.halt is None or not isinstance(self.rule, Odometer):
            return None
        reading, idle = self.rule.read(used), _idle_reading(self.rule)
        # An undefined reading is above every halt.
        if reading == float("inf") or Fraction(idle) >= self.halt:
            return float("inf")
        gone = Fraction(reading) - Fraction(idle)
        return float_up(max(gone, Fraction(0)) / (self.halt - Fraction(idle)))

    def left(self) -> Tally | None:
        """Return what remains of the threshold; None if the theorem has no box."""
        if not isinstance(self.rule, Filter) or self.rule.limit is None:
            return None
        return remainder(self.rule.limit, self.used)

    def overdrawn_by(self, amount: Tally) -> bool:
        """Say whether a charge breaks what the account's filter promised.

        Not where a tightened limit is below what was charged before: that was
        admitted, and the account only admits nothing more.
        """
        total, grew = self.used + amount, any(amount.amounts)
        return grew and isinstance(self.rule, Filter) and not self.rule.admits(total)


def remainder(whole: Tally, drawn: Tally) -> Tally:
    """Return what remains of a whole, component by component, at least zero."""
    pairs = zip(whole.amounts, drawn.amounts, strict=True)
    return Tally(tuple(max(a - b, 0) for a, b in pairs))


@by_identity
def _idle_reading(rule: Odometer) -> float:
    """Return what an odometer reads before any charge."""
    return rule.read(rule.zero())


def _price(rule: Rule, halt: Fraction | None, cost: Cost, used: Tally) -> Tally:
    if isinstance(rule, Odometer) and halt is None:
        return rule.charge(cost, used)
    return rule.price(cost, used)


@by_identity
def _steady_price(rule: Rule, halt: Fraction | None, cost: Cost, size: int) -> Tally:
    """Return the price of a rule that does not ask what is used."""
    return priced(_solved_price(rule, halt, cost, size))


@lru_cache(maxsize=1024)
def _solved_price(
    rule: Rule, halt: Fraction | None, cost: Cost, size: int
) -> Tally | UnsupportedCost:
    before_solving(lambda: _solved_price(rule, halt, cost, size))
    return price_or_error(
        lambda: _price(rule, halt, group_cost(cost, size), rule.zero())
    )


# What a term asks for


def gate_rule(term: Term, kind: str, name: str) -> tuple[Rule, Fraction | None] | None:
    """Return the rule and halt of an account; None if its term asks for none."""
    found = gate_in(term.facts["gates"], kind, name)
    if found is None:
        return None
    return rule_of(found["rule"]), _halt(found["halt"])


@lru_cache(maxsize=512)
def _halt(text: str | None) -> Fraction | None:
    return None if text is None else number_from_text(text)


def covers_flow(pinned: Mapping[str, Any], flow: str | None) -> bool:
    """Say whether a flow may use the dataset of a policy at all."""
    return flow in pinned["flows"] or pinned["other_flows"] == "allow"


def gate_at(state: State, account: str, size: int = 1) -> Gate | None:
    """Return the gate of an account; None if its term is gone, or asks for none."""
    book, number, kind, name, partition = split(account)
    term = state.term(book, number)
    found = None if term is None else gate_rule(term, kind, name)
    if found is None:
        return None
    row, told, (rule, halt) = state.account(account), "open", found
    used = rule.zero()
    if row is not None:
        used = Tally((*map(add, row.settled, row.held),))
        told = "overdrawn" if row.overdrawn else told
    if state.book(book).frozen is not None:
        told = "frozen"
    return Gate(account, book, kind, name, partition, rule, halt, used, row, told, size)


# What a step asks


def gates_of(state: State, request: Request, terms: Sequence[Term]) -> list[Gate]:
    """Return every gate that must admit a request.

    Args:
        state: With the accounts of these terms.
        request: The step.
        terms: Of its datasets and populations, in their order.

    Raises:
        ConfigurationError: If the request names no partition of a divided dataset, or
            one that cannot be, or some where no dataset is divided; or if its datasets
            are divided by different things.
    """
    policies = request.policies
    parts = {p.dataset: p.partition.by for p in policies if p.partition is not None}
    if request.partitions and not parts:
        msg = (
            f"step {request.step!r} names partitions, but no dataset that it reads is "
            f"divided: {', '.join(request.datasets)}. The step did not run."
        )
        raise ConfigurationError(msg)
    if len({*parts.values()}) > 1:
        # A name would mean a week of one dataset and a region of another.
        told = ", ".join(f"{dataset!r} by {by}" for dataset, by in parts.items())
        msg = (
            f"step {request.step!r} reads datasets that are divided by different "
            f"things ({told}), so that no name of a part fits them all. Read them in "
            "steps of their own, or divide them alike. The step did not run."
        )
        raise ConfigurationError(msg)
    found: list[Gate | None] = []
    for term, policy in zip(terms, policies, strict=False):
        found += _of_dataset(state, request, term, policy)
    for term in terms[len(policies) :]:
        members = [p for p in policies if population_of(p) == term.book]
        by_time = (p.partition is not None and p.partition.by_time for p in members)
        # A person can be in each part by time.
        size = sum(len(request.partitions) if each else 1 for each in by_time)
        found.append(gate_at(state, f"{term.book}#{term.number}", size))
    return [gate for gate in found if gate is not None]


def _of_dataset(
    state: State, step: Request, term: Term, policy: Policy
) -> Iterator[Gate | None]:
    """Yield the gates of a dataset, and of the partitions that a step touches."""
    base, size, pinned = f"{term.book}#{term.number}", 1, term.facts["pinned"]
    parts = [""]
    if policy.partition is not None:
        # The cap of all parts by time; else it only says whether the dataset is open.
        size = len(step.partitions) if "whole" in pinned else 0
        parts = _parts(step, policy)
    whole, closed = gate_at(state, base, size), not covers_flow(pinned, step.flow)
    yield whole and whole._replace(closed=closed)
    if charges_others(pinned, step.flow):
        yield gate_at(state, f"{base}/others")
    for part in parts:
        if part:
            yield gate_at(state, f"{base}{part}")
        # A flow that the policy does not cover gets no account of its own.
        if step.flow is not None and not closed:
            for kind in OF_FLOW:
                yield gate_at(state, f"{base}{part}/{kind}/{step.flow}")


def _parts(step: Request, policy: Policy) -> list[str]:
    """Return what the ids of the partitions' accounts have behind their term's."""
    if policy.partition is None or not step.partitions:
        msg = (
            f"dataset {policy.dataset!r} is divided into partitions, and step "
            f"{step.step!r} does not say which it reads: give it partitions=, such "
            'as partitions="{week}". The step did not run.'
        )
        raise ConfigurationError(msg)
    for name in step.partitions:
        policy.partition.check_name(name, policy.dataset)
    return [f"/partition/{name}" for name in step.partitions]


def population_of(policy: Policy) -> str | None:
    """Return the book of the population that a dataset belongs to."""
    return None if policy.population is None else f"population/{policy.population}"


def charges_of(
    asked: Iterable[tuple[Gate, Cost]], held: Sums = _NOTHING
) -> list[tuple[Gate, Tally]]:
    """Return what is asked of each account, summed up.

    Args:
        asked: The gates, each with a cost.
        held: What is left out of what is used, by account.

    Raises:
        UnsupportedCost: If a gate would have to guess.
    """
    found: dict[str, tuple[Gate, Tally]] = {}
    for gate, cost in asked:
        mine = held.get(gate.id)
        used = gate.used if mine is None else remainder(gate.used, Tally(mine))
        # A later step of a run asks when the earlier ones are held.
        before = found[gate.id][1] if gate.id in found else gate.rule.zero()
        found[gate.id] = (gate, before + gate.price(cost, used + before))
    return list(found.values())


def fitting_factor(asked: Sequence[tuple[Gate, Cost]]) -> Fraction | None:
    """Return by how much the noise must grow for every gate to admit what is asked.

    It is solved, and remembered while nothing else is used.

    Args:
        asked: The gates, each with a cost as it was asked for; those of one account
            add up.

    Returns:
        A factor within about 1 % of the smallest, or None if none up to 1e6 fits.
    """
    return _solved_factor(
        tuple((gate._replace(row=None), cost) for gate, cost in asked)
    )


@lru_cache(maxsize=64)
def _solved_factor(asked: tuple[tuple[Gate, Cost], ...]) -> Fraction | None:
    before_solving(lambda: _solved_factor(asked))

    def fits(factor: Fraction) -> bool:
        try:
            smaller = [(gate, cost.noisier(factor).rounded()) for gate, cost in asked]
            return all(gate.admits(amount) for gate, amount in charges_of(smaller))
        except (ValueError, UnsupportedCost):
            return False

    high = least_noise(fits, low=1, high=2, most=10**6, close=Fraction(101, 100))
    if high is None:
        return None
    # Three digits, upwards, unless a cost may not say so much: what is shown must fit.
    step = Fraction(10) ** (len(str(int(high))) - 3)
    rounded = -(-high // step) * step
    return rounded if fits(rounded) else high
