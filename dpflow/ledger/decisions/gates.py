"""The accounts that a step is charged to: the gates that must all admit it.

A dataset that is divided has an account for each partition, with the whole budget; a
step is charged to each partition that it touches. Its population, and the cap of all
partitions by time, see a person in each of them: the step costs them as a group.
`pinned_rules.choose_rule` says which rule and halt a policy means for which account.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from operator import le
from typing import Any, NamedTuple, cast

from dpflow.accounting.costs.base import Cost, Outcome, relations_of
from dpflow.accounting.rules.groups import group_cost
from dpflow.accounting.rules.rule import (
    Filter,
    Odometer,
    Rule,
    ThresholdFilter,
    list_thresholds,
    price_or_error,
    unwrap,
)
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.tightening import admits_less
from dpflow.accounting.rules.windows import part_price
from dpflow.accounting.solving import before_solving
from dpflow.exceptions import ConfigurationError, DpflowError, UnsupportedCost
from dpflow.ledger.account_ids import Amounts, Term, split
from dpflow.ledger.canonical import by_identity, canonical
from dpflow.ledger.decisions.pinned_rules import OF_FLOW, choose_rule, gate_in, rule_of
from dpflow.ledger.decisions.windows import PartWindows, use_of, window_of
from dpflow.ledger.requests import Request
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Account
from dpflow.policy import Policy
from dpflow.policy.reserved import charges_others
from dpflow.rounding import float_down, float_up, number_from_text

RuleAndHalt = tuple[Rule, Fraction | None]


class Gate(NamedTuple):
    """An account under its rule, which must admit a step.

    Attributes:
        kind: "dataset", "population", "partition", "flow", "odometer", or "others" for
            all charges that no reserved share pays.
        name: Of the flow or partition.
        partition: The partition that it belongs to; empty if to none.
        halt: For an odometer, the reading above which it refuses.
        used: What is settled and held on the account.
        row: The account; None before its first entry.
        state: "open", "overdrawn" or "frozen".
        size: How many privacy units of one person the step can touch here; 0 for an
            account that only says whether the dataset is open.
        closed: Whether the policy gives the step's flow no access to the dataset.
        window: Of a part of windows, its place; `size` is then the most parts of the
            step in one window that contains it.
        neighbours: Use of the other parts of its fullest window, the step's included.
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
    window: PartWindows | None = None
    neighbours: Tally | None = None

    @property
    def family(self) -> tuple[str, str]:
        """Dataset and flow of a part: accounts of one family share windows."""
        return self.dataset, self.name if self.kind == "flow" else ""

    @property
    def total(self) -> Tally:
        """What is compared with the threshold: the account, or its fullest window."""
        return self.used if self.neighbours is None else self.used + self.neighbours

    def price(
        self, cost: Cost, used: Tally | None = None, outcome: Outcome | None = None
    ) -> Tally:
        """Return the price of a step on the account, rounded up.

        Args:
            cost: Of the step.
            used: What is settled and held when it asks. Default: what is now.
            outcome: Sub-steps that ran, or cell of the mechanism's output. Default: the
                worst case.

        Raises:
            UnsupportedCost: If the gate would have to guess. An odometer that halts
                nothing counts the step as uncovered instead.
            InvalidCost: If the cost knows no such outcome.
        """
        rule, size = self.rule, self.size
        if size == 0:
            return rule.zero()
        charge, price = rule.price_realised, _price_group
        if isinstance(rule, Odometer) and self.halt is None:
            charge, price = rule.charge_realised, _count_group
        if not rule.steady:
            used = self.used if used is None else used
            return charge(group_cost(cost, size), outcome, used)
        if self.window is not None:
            return _steady_price(part_price, rule, cost, size, outcome)
        return _steady_price(price, rule, cost, size, outcome)

    def admits(self, amount: Tally) -> bool:
        """Return True if the gate lets a step run that asks for an amount."""
        total = self.total + amount
        return self.state == "open" and rule_admits(self.rule, self.halt, total)

    def uses(self, used: Tally, share: Fraction) -> bool:
        """Return True if a tally uses a share of what the gate allows."""
        if not isinstance(self.rule, Filter):
            rule = cast("Odometer", self.rule)
            halts = self.halt is not None
            return halts and rule.read(used) >= _reading_at(rule, self.halt, share)
        # The quotient, rounded up, in whole numbers: a search for the share is slower.
        above, below = share.numerator, share.denominator
        quotients = [-(-a * below // above) + 1 if a else 0 for a in used.amounts]
        return not self.rule.admits(Tally((*quotients,)))

    def measure_use(self, used: Tally) -> float | None:
        """Return which share of what the gate allows a tally uses, rounded up.

        Of an odometer it is how far the reading has moved from where it idles to where
        it halts. None if the gate refuses nothing.
        """
        if isinstance(self.rule, Filter):
            return self.rule.used_fraction(used)
        if self.halt is None or not isinstance(self.rule, Odometer):
            return None
        reading, idle = self.rule.read(used), Fraction(self.rule.read(self.rule.zero()))
        # An undefined reading is above every halt.
        if reading == float("inf") or idle >= self.halt:
            return float("inf")
        return float_up(max(Fraction(reading) - idle, Fraction(0)) / (self.halt - idle))

    def left(self) -> Tally | None:
        """Return what remains of the threshold; None if the theorem has no box."""
        if not isinstance(self.rule, Filter) or self.rule.limit is None:
            return None
        return remainder(self.rule.limit, self.total)

    def overdrawn_by(self, amount: Tally) -> bool:
        """Return True if an amount that is charged anyway overdraws a filter."""
        above = isinstance(self.rule, Filter) and any(amount.amounts)
        return above and not rule_admits(self.rule, None, self.total + amount)


def rule_admits(rule: Rule, halt: Fraction | None, total: Tally) -> bool:
    """Return True if a rule with its halt admits a total."""
    if isinstance(rule, Filter):
        return rule.admits(total)
    # An undefined reading is infinite, and above every halt.
    return halt is None or cast("Odometer", rule).read(total) <= float_down(halt)


def is_admitted(term: Term | None, account: str, total: Amounts) -> bool:
    """Return True if the gate of an account admits a total.

    Steps may have been granted up to the thresholds that the term pinned: a later
    version that solves lower ones grants no more, and finds no fault with these.
    """
    gate = term and gate_in(term.fields["gates"], *split(account)[2:4])
    asked = rule_and_halt(gate)
    if gate is None or asked is None or rule_admits(*asked, Tally(total)):
        return asked is not None
    limits = json.loads(gate["rule"]).get("thresholds")
    if limits is None or not isinstance(asked[0], ThresholdFilter):
        return False
    return all(map(le, total, limits))


def is_tighter(old: RuleAndHalt | None, new: RuleAndHalt | None) -> bool:
    """Return True if a rule with its halt admits no more than another one."""
    if old is None or new is None:
        return old is None
    if isinstance(old[0], Filter) and isinstance(new[0], Filter):
        return old[0] == new[0] or admits_less(new[0], old[0])
    lower = old[1] is None or (new[1] is not None and new[1] <= old[1])
    return old[0] == new[0] and lower


def remainder(limit: Tally, drawn: Tally) -> Tally:
    """Return what remains of a limit, component by component, at least zero."""
    pairs = zip(limit.amounts, drawn.amounts, strict=True)
    return Tally(tuple(max(a - b, 0) for a, b in pairs))


@by_identity
def _reading_at(rule: Odometer, halt: Fraction | None, share: Fraction) -> float:
    """Return what an odometer reads where it uses a share, rounded down."""
    idle = Fraction(rule.read(rule.zero()))
    return float_down(idle + share * max((halt or idle) - idle, Fraction(0)))


#: Prices a cost for a group of privacy units, or for a part of windows.
Price = Callable[[Rule, Cost, int, Outcome | None], Tally]


def _price_group(rule: Rule, cost: Cost, size: int, outcome: Outcome | None) -> Tally:
    return rule.price_realised(group_cost(cost, size), outcome, rule.zero())


def _count_group(rule: Rule, cost: Cost, size: int, outcome: Outcome | None) -> Tally:
    return cast("Odometer", rule).charge_realised(
        group_cost(cost, size), outcome, rule.zero()
    )


@by_identity
def _steady_price(
    price: Price, rule: Rule, cost: Cost, size: int, outcome: Outcome | None
) -> Tally:
    """Return the price of a rule that does not ask what is used."""
    return unwrap(_solve_price(price, rule, cost, size, outcome))


@lru_cache(maxsize=1024)
def _solve_price(
    price: Price, rule: Rule, cost: Cost, size: int, outcome: Outcome | None
) -> Tally | DpflowError:
    before_solving(lambda: _solve_price(price, rule, cost, size, outcome))
    return price_or_error(lambda: price(rule, cost, size, outcome))


# The gates of a term


def gates_text(pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule and halt of every gate of a copy, with solved thresholds.

    By "dataset", "partition", "population", "odometer" and "flow" for flows that are
    not named, "others" where shares are reserved, "flow/NAME" and "odometer/NAME" for
    named flows.
    """
    paths = ["dataset", "partition", "population", "odometer"]
    paths += ["others"] if "others" in pinned else []
    paths += ["flow"] if "each" in pinned else []
    paths += [f"{kind}/{name}" for name in pinned["flows"] for kind in OF_FLOW]
    gates = dict[str, Any]()
    for path in paths:
        kind, _, name = path.partition("/")
        asked = choose_rule(pinned, kind, name)
        gates[path] = None
        if asked is not None:
            numbers, halt = asked
            rule = rule_of(canonical(numbers))
            numbers = {"role": numbers["role"], **rule.parameters()}
            thresholds = list_thresholds(rule) if isinstance(rule, Filter) else None
            if thresholds is not None:
                numbers["thresholds"] = thresholds
            gates[path] = {"rule": canonical(numbers), "halt": halt}
    return gates


def preview_gate(pinned: Mapping[str, Any], kind: str, name: str) -> Gate | None:
    """Return the gate that a first charge would meet, of no ledger yet.

    Args:
        pinned: What `Policy.to_pinned` returned, from the file or from the ledger.
        kind: As of a gate.
        name: Of the flow or partition.

    Returns:
        None if the policy asks for no such gate.
    """
    asked = choose_rule(pinned, kind, name)
    if asked is None:
        return None
    rule, halt = rule_of(canonical(asked[0])), _halt(asked[1])
    return Gate("", pinned["dataset"], kind, name, "", rule, halt, rule.zero())


def preview_gates(pinned: Mapping[str, Any]) -> list[Gate]:
    """Return the gates that a policy names, each as if nothing was charged to it."""
    paths = [(split(pinned["dataset"])[2], "")]
    if "partition" in pinned:
        cap = paths if "whole" in pinned else []
        paths = [("partition", f"each {pinned['partition']['by']}"), *cap]
    paths += [("others", "")] if "others" in pinned else []
    paths += [(kind, name) for name in pinned["flows"] for kind in OF_FLOW]
    paths += [("flow", "each other flow")] if "each" in pinned else []
    gates = (preview_gate(pinned, *path) for path in paths)
    return [gate for gate in gates if gate is not None]


def rule_and_halt(pinned: Mapping[str, Any] | None) -> RuleAndHalt | None:
    """Return the rule and halt that a term pins for a gate; None if for no gate."""
    if pinned is None:
        return None
    return rule_of(pinned["rule"]), _halt(pinned["halt"])


@lru_cache(maxsize=512)
def _halt(text: str | None) -> Fraction | None:
    return None if text is None else number_from_text(text)


def covers_flow(pinned: Mapping[str, Any], flow: str | None) -> bool:
    """Return True if a flow may use the dataset of a policy at all.

    Steps outside of any flow have no share: they need `allow`.
    """
    is_shared = isinstance(pinned["other_flows"], Mapping) and flow is not None
    return flow in pinned["flows"] or pinned["other_flows"] == "allow" or is_shared


def gate_at(rows: Rows, account: str, size: int = 1) -> Gate | None:
    """Return the gate of an account; None if the ledger has no such term or gate."""
    book, number, kind, name, partition = split(account)
    dataset, row, state = rows.book(book), rows.account_rows.get(account), "open"
    term = rows.known_terms.get((book, number or dataset.term))
    pinned = term and gate_in(term.fields["gates"], kind, name)
    if term is None or pinned is None:
        return None
    rule, halt = rule_of(pinned["rule"]), _halt(pinned["halt"])
    used = rule.zero() if row is None else use_of(row)
    if dataset.frozen is not None:
        # A freeze hides an overdraft.
        state = "frozen"
    elif row is not None and row.overdrawn:
        state = "overdrawn"
    window = window_of(term.fields["pinned"], partition) if partition else None
    names = account, book, kind, name, partition
    return Gate(*names, rule, halt, used, row, state, size, window=window)


# The gates of a step


def accounts_of(policy: Policy, request: Request, number: int) -> list[str]:
    """Return the ids of a step's accounts of a dataset or population, in a term."""
    root, book = f"{policy.dataset}#{number}", f"{policy.dataset}#"
    names = [root]
    parts = ("",) if policy.partition is None else request.partitions
    for part in parts:
        prefix = part and f"/partition/{part}"
        if prefix:
            # Terms share the parts of windows.
            names.append(f"{book if policy.window else root}{prefix}")
        elif has_reserved_share(policy):
            names.append(f"{root}/others")
        if request.flow:
            names += [f"{root}{prefix}/{kind}/{request.flow}" for kind in OF_FLOW]
    return names


@by_identity
def has_reserved_share(policy: Policy) -> bool:
    """Return True if a flow of a policy has a reserved share."""
    return any(share.reserved for share in policy.flows.values())


def gates_of(rows: Rows, request: Request, terms: Sequence[Term]) -> list[Gate]:
    """Return every gate that must admit a request.

    Args:
        rows: Rows with the accounts of these terms.
        request: The step.
        terms: Of its datasets and populations, in their order.

    Raises:
        ConfigurationError: If the request names no partition of a divided dataset, or
            one that cannot be, or some where no dataset is divided; or if its datasets
            are divided by different things.
        UnsupportedCost: If its price does not hold under a dataset's relation.
    """
    _check_partitions(request)
    for term in terms:
        check_holds(request.cost, term.book, term.fields["pinned"]["relation"])
    gates: list[Gate] = []
    parts, policies = len(request.partitions), request.policies
    for term, policy in zip(terms, policies, strict=False):
        pinned = term.fields["pinned"]
        closed = not covers_flow(pinned, request.flow)
        skipped = OF_FLOW if closed else ()
        if not charges_others(pinned, request.flow):
            skipped = (*skipped, "others")
        # The cap of all parts by time; else the account only says what is open.
        size = 1 if policy.partition is None else parts * ("whole" in pinned)
        for name in accounts_of(policy, request, term.number):
            gate = gate_at(rows, name)
            if gate is None or gate.kind in skipped:
                continue
            if name == term.root:
                gate = gate._replace(size=size, closed=closed)
            gates.append(gate)
    for term in terms[len(policies) :]:
        members = [p.partition for p in policies if population_of(p) == term.book]
        # A person can be in each part by time.
        size = sum(parts if part and part.by_time else 1 for part in members)
        gate = gate_at(rows, term.root, size)
        gates += [] if gate is None else [gate]
    return gates


@by_identity
def check_holds(cost: Cost, dataset: str, relation: str) -> None:
    """Refuse a cost whose price does not hold under a relation.

    Raises:
        UnsupportedCost: If it is priced for another one.
    """
    allowed = relations_of(cost)
    if relation not in allowed:
        holds = " and ".join(allowed) or "no relation"
        msg = (
            f"{cost!r} is priced for {holds}, but the policy of dataset {dataset!r} "
            f"says {relation}. Declare a cost that holds for that relation."
        )
        raise UnsupportedCost(msg, mechanism=cost.mechanism)


def _check_partitions(request: Request) -> None:
    """Refuse partitions that do not fit the division of a step's datasets."""
    divided = {p.dataset: p.partition for p in request.policies if p.partition}
    kinds = {partition.by for partition in divided.values()}
    if len(kinds) > 1 or bool(kinds) != bool(request.partitions):
        divisions = ", ".join(
            f"{name!r} by {part.by}" for name, part in divided.items()
        )
        msg = (
            f"step {request.step!r} names the parts {request.partitions!r:.80}, and "
            f"its divided datasets are: {divisions or 'none'}. Name parts where "
            'datasets are divided, and only there: partitions="{week}". Read datasets '
            "that are divided by different things in steps of their own."
        )
        raise ConfigurationError(msg)
    for dataset, partition in divided.items():
        for name in request.partitions:
            partition.check_name(name, dataset)


def population_of(policy: Policy) -> str | None:
    """Return the book of the population that a dataset belongs to."""
    return None if policy.population is None else f"population/{policy.population}"
