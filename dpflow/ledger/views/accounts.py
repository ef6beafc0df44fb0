"""Datasets, terms, accounts and open reservations as people read them.

The ledger's copy of a policy governs, so answers name it first; the files only speak
for datasets that the ledger does not know yet.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError, UnknownDataset, require
from dpflow.ledger.account_ids import split
from dpflow.ledger.decisions.gates import Gate, preview_gates
from dpflow.ledger.decisions.terms import agrees, may_be_replaced
from dpflow.ledger.tables.rows import Term
from dpflow.ledger.views.reading import (
    Forfeits,
    OpenReservation,
    Reading,
    Source,
    open_reading,
)
from dpflow.policy import Policy, PolicySet
from dpflow.policy.pinned import difference_lines
from dpflow.policy.types import did_you_mean
from dpflow.rounding import number_text


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """One account as people read it; amounts are in the theorem's own currency.

    Attributes:
        budget: Threshold by component, or None if the theorem has no box.
        spent: Settled, without the forfeits that an operator closed.
        reserved: Held by executions that still run.
        forfeited: Charged in full because the step's outcome is unknown.
        left: Budget minus all of these, or None.
        used_fraction: Share of the filter's threshold, everything included; of an
            odometer, how far its reading has moved from its idle value to its halt.
        reading: The odometer's bound on the loss, everything included.
        halt_at: The reading at which the odometer refuses.
        charged: Whether a step may have read data under it, at whatever cost. Where it
            cost nothing, whether one may have under its term.
        gate: The account as decisions see it.
    """

    id: str
    dataset: str
    term: int
    kind: str
    name: str
    theorem: str
    state: str
    parameters: Mapping[str, Any]
    epsilon: str | None
    delta: str
    budget: Mapping[str, str] | None
    spent: Mapping[str, str]
    reserved: Mapping[str, str]
    forfeited: Mapping[str, str]
    left: Mapping[str, str] | None
    used_fraction: float | None
    reading: float | None
    halt_at: str | None
    charged: bool = True
    gate: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    """A threshold that an account has reached, and when it first did."""

    account: str
    threshold: str
    at: str


#: State of an account that the first step of its flow will open.
NOT_OPENED = "not opened"


_ORDER = ("dataset", "flow", "partition", "population", "odometer", "others")


def account_view(
    gate: Gate,
    ended: Forfeits = ({}, {}),
    view: type[AccountView] = AccountView,
    parts: Sequence[Gate] = (),
    **fields: Any,
) -> AccountView:
    """Return an account as people read it.

    Args:
        gate: Its gate, as it stands; one of no ledger has no id and no term.
        ended: Forfeits of the ledger.
        view: Class of the answer.
        parts: Gates of all parts of its window, whose amounts add up.
        **fields: Further fields of the answer.
    """
    rule, left, parts = gate.rule, gate.left(), parts or [gate]
    zero = rule.zero()
    dead, closed = (
        sum((Tally(amounts[g.id]) for g in parts if g.id in amounts), zero)
        for amounts in ended
    )
    settled = sum((Tally(g.row.settled) for g in parts if g.row is not None), zero)
    used = sum((part.used for part in parts), zero)
    budget = rule.limit if isinstance(rule, Filter) else None
    return view(
        id=gate.id,
        dataset=gate.dataset,
        term=split(gate.id)[1] if gate.id else 0,
        kind=gate.kind,
        name=gate.name,
        theorem=rule.theorem,
        state=gate.state,
        parameters=rule.parameters(),
        epsilon=number_text(rule.epsilon) if isinstance(rule, Filter) else None,
        delta=number_text(rule.delta) if isinstance(rule, Filter | Odometer) else "0",
        budget=None if budget is None else rule.label(budget),
        spent=rule.label(settled - closed),
        reserved=rule.label(used - settled - dead),
        forfeited=rule.label(dead + closed),
        left=None if left is None else rule.label(left),
        used_fraction=gate.measure_use(gate.total),
        reading=rule.read(gate.used) if isinstance(rule, Odometer) else None,
        halt_at=None if gate.halt is None else number_text(gate.halt),
        gate=gate,
        **{"charged": False, **fields},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a dataset stands in its newest term.

    Attributes:
        term: None if the ledger does not know the dataset yet.
        pinned: The policy's guarantee-relevant fields: the ledger's copy if there is
            one.
        accounts: Opened ones and those that the policy announces.
        parts: Number of parts with an account; 0 where one part was read.
        differences: How the policy file differs from the ledger's copy.
        replaceable: Whether the next step applies a file that differs.
    """

    dataset: str
    term: int | None
    pinned: Mapping[str, Any]
    accounts: tuple[AccountView, ...]
    parts: int
    differences: tuple[str, ...]
    replaceable: bool


#: A window of which more than this share is used counts as full.
FULL = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView(AccountView):
    """The newest window of a dataset.

    Attributes:
        full_windows: Number of windows that are full.
    """

    full_windows: int = 0


def accounts(source: Source, dataset: str | None = None) -> list[AccountView]:
    """Return the accounts of newest terms, of one dataset or of all."""
    with open_reading(source) as reading:
        reading.load(dataset)
        terms = map(reading.newest, reading.names(dataset))
        return [v for term in terms if term for v in term_accounts(reading, term)]


def term_accounts(
    reading: Reading, term: Term, part: str | None = None
) -> list[AccountView]:
    """Return the accounts of a term.

    An overdrawn account is read with every part: it breaks the guarantee of all parts.
    Parts of windows have one account, that of their newest window.

    Args:
        reading: The ledger.
        term: The term.
        part: Only this part of a divided dataset, and the accounts of no part.

    Raises:
        ConfigurationError: If the part has no account.
    """
    pinned, gates = term.fields["pinned"], dict(reading.term_gates(term.root))
    charged = gates[term.root].row is not None
    if "partition" in pinned and "whole" not in pinned:
        # The account has no budget: it only opens and freezes the dataset.
        del gates[term.root]
    if part is not None and all(gate.partition != part for gate in gates.values()):
        msg = (
            f"nothing was charged to a part {part!r} of dataset {term.book!r}. Its "
            f"whole budget remains. `dpflow status {shlex.quote(term.book)} --details` "
            "shows the fullest parts."
        )
        raise ConfigurationError(msg)
    views, families = list[AccountView](), dict[tuple[str, str], list[Gate]]()
    for gate in gates.values():
        is_overdrawn = gate.row is not None and bool(gate.row.overdrawn)
        if gate.window is not None and part is None:
            families.setdefault(gate.family, []).append(gate)
            if not is_overdrawn:
                continue
        if part is None or gate.partition in ("", part) or is_overdrawn:
            views.append(account_view(gate, reading.forfeits, charged=charged))
    for family in families.values():
        newest = window_view(family, reading.forfeits, charged=charged)
        views = [*(view for view in views if view.id != newest.id), newest]
    return views


def window_view(
    family: Sequence[Gate], ended: Forfeits, *, charged: bool
) -> AccountView:
    """Return the account of the newest window, and how many windows are full.

    A window ends at each charged part.

    Args:
        family: Gates of all parts that share windows with each other.
        ended: Forfeits of the ledger.
        charged: True if a step may have read data under the term.
    """
    gates = {gate.window.position: gate for gate in family if gate.window is not None}
    last = max(gates)
    newest, zero, full = gates[last], family[0].rule.zero(), 0
    assert newest.window is not None
    first = last - newest.window.length
    parts = [gate for at, gate in gates.items() if first < at]
    is_overdrawn = any(gate.row is not None and gate.row.overdrawn for gate in parts)
    if newest.state == "open" and is_overdrawn:
        newest = newest._replace(state="overdrawn")
    for gate in family:
        assert gate.window is not None
        near = (used for at, used in gate.window.used if at <= gate.window.position)
        full += (newest.measure_use(sum(near, zero)) or 0.0) > FULL
    fields = {"charged": charged, "full_windows": full}
    return account_view(newest, ended, WindowView, parts, **fields)


def alerts(source: Source, dataset: str) -> list[AlertView]:
    """Return the alerts that accounts of a newest term raised, newest first."""
    with open_reading(source) as reading:
        gates = reading.newest_gates(dataset).values()
        raised = {g.id: g.window for g in gates if g.row is not None and g.row.alerted}
        if not raised:
            return []
        # Parts of windows belong to all terms.
        after = 0 if any(raised.values()) else reading.find_openings(dataset)[-1]
        where = {"dataset": dataset, "after": after, "pattern": '%"alerts":{%'}
        entries = reading.ask("read_alerts", **where)
    return [
        AlertView(account=account, threshold=threshold, at=at)
        for _, at, body in entries
        for account, threshold in sorted(json.loads(body).get("alerts", {}).items())
        if account in raised
    ]


# Gates


def standing_gates(source: Source, dataset: str) -> dict[str, Gate]:
    """Return the gates of newest terms, of a dataset and its population."""
    with open_reading(source) as reading:
        names = [term.book for term in reading.newest_of(dataset)]
        return {k: g for name in names for k, g in reading.newest_gates(name).items()}


# Open reservations


def open_reservations(source: Source) -> list[OpenReservation]:
    """Return the charges that no process has settled, oldest first."""
    with open_reading(source) as reading:
        return reading.open_charges


# Standings of datasets


def standings(
    source: Source,
    policies: PolicySet,
    dataset: str | None = None,
    part: str | None = None,
) -> list[Standing]:
    """Return where each dataset stands, or one of them.

    Args:
        source: The ledger to read.
        policies: Policies of the project.
        dataset: Only this one.
        part: Only this part of the dataset.

    Raises:
        UnknownDataset: If neither the ledger nor a policy knows the dataset.
        ConfigurationError: If the part has no account.
    """
    with open_reading(source) as reading:
        names = {dataset} if dataset else find_datasets(reading, policies)
        if dataset is not None:
            check_dataset(reading, policies, dataset)
        reading.load(dataset)
        return [
            read_standing(reading, name, policies.get(name), part)
            for name in sorted(names)
        ]


def read_standing(
    reading: Reading, dataset: str, policy: Policy | None, part: str | None
) -> Standing:
    """Return where a dataset stands: with its opened and its announced accounts."""
    term, opened, parts = reading.newest(dataset), list[AccountView](), set[str]()
    differences = list[str]()
    if term is None:
        assert policy is not None
        pinned = policy.to_pinned()
    else:
        pinned = term.fields["pinned"]
        opened = term_accounts(reading, term, part)
        if part is None:
            gates = reading.term_gates(term.root).values()
            parts = {gate.partition for gate in gates} - {""}
        if policy is not None and not agrees(term, policy):
            copy = term.fields["declared"]
            differences = difference_lines(copy, policy.to_declared())
    names = {(view.kind, view.name) for view in opened}
    views = [
        account_view(gate._replace(state=NOT_OPENED))
        for gate in preview_gates(pinned)
        if (gate.kind, gate.name) not in names
    ]
    views = [*opened, *views]
    views.sort(key=lambda view: (_ORDER.index(view.kind), view.name, view.id))
    return Standing(
        dataset=dataset,
        term=term and term.number,
        pinned=pinned,
        accounts=tuple(views),
        parts=len(parts),
        differences=tuple(differences),
        replaceable=term is None or may_be_replaced(reading.rows, term),
    )


def find_datasets(source: Source, policies: PolicySet) -> set[str]:
    """Return the datasets that the ledger or a policy knows."""
    with open_reading(source) as reading:
        return {*reading.datasets, *policies}


def check_dataset(source: Source, policies: PolicySet, dataset: str) -> None:
    """Refuse a dataset that neither the ledger nor a policy knows.

    Raises:
        UnknownDataset: It is one.
        ConfigurationError: If the policies, which may know it, cannot be read.
    """
    names = find_datasets(source, policies)
    if dataset not in names:
        require(policies.problem is None, str(policies.problem))
        hint = did_you_mean(dataset, names)
        msg = f"neither the ledger nor a policy knows the dataset {dataset!r}. {hint}"
        raise UnknownDataset(msg, dataset=dataset, known=sorted(names), hint=hint)
