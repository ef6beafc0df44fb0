"""Charges of an operator: corrections of a step, and prior spending.

A charge by hand only ever raises usage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError
from dpflow.ledger.account_ids import roots_of, split
from dpflow.ledger.decisions.decision import About, Author, Decision
from dpflow.ledger.decisions.gates import Gate, check_holds, remainder
from dpflow.ledger.decisions.reserve import describe_priced, price_step, without_empty
from dpflow.ledger.decisions.settlement import (
    find_gate,
    is_newest,
    raise_alerts,
    refuse_end,
)
from dpflow.ledger.decisions.suggestions import in_windows, with_parts_near
from dpflow.ledger.requests import Request, describe_cost
from dpflow.ledger.tables.loaded import Rows, sum_amounts
from dpflow.ledger.tables.rows import Charge, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """Amount that was posted to one account.

    Attributes:
        amount: In the theorem's own currency.
        overdrawn: Whether its gate would not have admitted the amount.
    """

    account: str
    amount: Mapping[str, str]
    overdrawn: bool


class ChargeByHand(NamedTuple):
    """Charge of what a step cost more than was reserved, or of prior spending.

    `Composed` and `Repeated` costs hold several steps.

    Attributes:
        cost: Corrected cost of the step, or all prior spending.
        reason: Why, for the journal.
        evidence: The sha256 of a file that proves it; a term uses each once.
        dataset: One that the step read, if the operator names it.
        request: Of prior spending, a step that would be charged as much.
    """

    cost: Cost
    reason: str
    evidence: str | None = None
    dataset: str | None = None
    request: Request | None = None


class Raise(NamedTuple):
    """Amount by which an account is raised.

    Attributes:
        account: Id of the account.
        gate: Gate of the account; None if its term is lost.
        more: The amount.
        late: Whether other charges were perhaps priced without it.
    """

    account: str
    gate: Gate | None
    more: Tally
    late: bool = False

    @property
    def amount(self) -> Tally:
        """The amount to post, by the account's rule."""
        gate, more = self.gate, self.more
        if gate and self.late and any(more.amounts) and any(gate.used.amounts):
            return gate.rule.charge_late(gate.used, more)
        return more


def decide_amendment(rows: Rows, author: Author, amendment: ChargeByHand) -> Decision:
    """Charge what a step cost more than was reserved for it; it may have ended.

    Raises:
        ReservationConflict: If that is no more than was charged: nothing falls.
        UnsupportedCost: If the theorem of an account has no price for the cost, or
            that does not hold under the relation of its term.
    """
    charge = rows.charge
    assert charge is not None
    datasets = [part.dataset for part in rows.charge_datasets]
    if amendment.dataset not in (None, *datasets):
        named = f"charged {', '.join(map(repr, datasets))}, "
        problem = f"not dataset {amendment.dataset!r}. Nothing was charged."
        raise refuse_end(charge, f"{named}{problem}")
    cost = amendment.cost
    increases = (find_raise(rows, charge, name, cost) for name in charge.amounts)
    raises = [increase for increase in increases if increase is not None]
    if not any(any(increase.more.amounts) for increase in raises):
        reserved = cost_from_description(charge.request["cost"])
        problem = (
            f"is {charge.state}, reserved at {reserved!r}: {cost!r} is no "
            "more than was charged, and a charge is only ever raised. Nothing was "
            "charged."
        )
        raise refuse_end(charge, problem)
    roots = roots_of(charge.amounts)
    raises = [r for r in raises if any(r.more.amounts) or r.account in roots]
    decision = Decision(author)
    request, about = charge.request, charge.about
    adjust(decision, rows, raises, amendment, request=request, about=about)
    amounts = dict(charge.amounts)
    for increase in raises:
        held = amounts[increase.account]
        added = sum_amounts(increase.amount.amounts, held.added)
        amounts[increase.account] = held._replace(added=added)
    decision.changes.append(("update_charge", charge._replace(amounts=amounts)))
    return decision


def find_raise(rows: Rows, charge: Charge, name: str, cost: Cost) -> Raise | None:
    """Return by how much the cost is above all that was charged to an account.

    None for a share that a change of access ended: no step is charged there, either.
    """
    held = charge.amounts[name]
    gate = find_gate(rows, charge, name)
    if gate is None:
        return None
    term = rows.term(*split(name)[:2])
    if term is not None:
        pinned = term.fields["pinned"]
        check_holds(cost, term.book, pinned["relation"])
    used = gate.rule.zero() if held.used is None else Tally(held.used)
    charged = Tally(find_posted(rows, charge, name))
    # What was posted late is not all the step's own: it counts for others.
    if gate.rule.steady and held.added is not None:
        charged = charged + Tally(held.added)
    more = remainder(gate.price(cost, used), charged)
    return Raise(name, gate, more, late=not is_newest(rows, name, held))


def find_posted(rows: Rows, charge: Charge, name: str) -> tuple[int, ...]:
    """Return what a charge holds on an account, or what its end posted there."""
    for part in rows.charge_datasets:
        if part.dataset == split(name)[0] and part.end_postings is not None:
            settled, _ = json.loads(part.end_postings)[name]
            return tuple(settled)
    return charge.amounts[name].amount


def decide_prior(rows: Rows, author: Author, prior: ChargeByHand) -> Decision:
    """Charge what was spent elsewhere; irreversible.

    Raises:
        ConfigurationError: If this evidence was charged before, or no part of a
            divided dataset is named.
    """
    request = prior.request
    assert request is not None
    step = price_step(rows, request, author)
    raises = [Raise(gate.id, gate, amount, late=True) for gate, amount in step.charges]
    stated, about = describe_priced(step), (None, request.step, request.flow, None)
    decision = step.begin_decision()
    adjust(decision, step.rows, raises, prior, request=stated, about=about)
    return decision


def adjust(
    decision: Decision,
    rows: Rows,
    raises: Sequence[Raise],
    command: ChargeByHand,
    *,
    request: Mapping[str, Any],
    about: About,
) -> None:
    """Write entries that raise what accounts have settled.

    Args:
        decision: The decision.
        rows: Rows of the ledger.
        raises: Amount for each account.
        command: The charge by hand.
        request: What the ledger keeps of the step that is charged.
        about: Id of the charge, step, flow and flow run.
    """
    check_evidence(rows, raises)
    post_raises(decision, rows, raises)
    alerts = raise_alerts(decision, rows, request.get("alerts", {}))
    body = {
        **decision.author.provenance,
        "policy": request["policy"],
        "reason": command.reason,
        "cost": describe_cost(command.cost),
    }
    for name, changes in decision.postings.items():
        fields = without_empty(
            alerts={a.account: a.threshold for a in alerts if a.dataset == name},
            evidence=command.evidence,
            overdrawn=name_overdrawn(decision, name),
        )
        stated, dataset = {**body, **fields}, rows.book(name)
        entry = decision.append(
            dataset, "adjust", postings=changes, body=stated, about=about
        )
        for root in roots_of(changes) if command.evidence else ():
            book, number = split(root)[:2]
            evidence = Evidence(book, number, str(command.evidence), entry.number)
            decision.changes.append(("insert_evidence", evidence))


def post_raises(decision: Decision, rows: Rows, raises: Sequence[Raise]) -> None:
    """Post amounts on accounts, which an amount above its gate overdraws.

    The decision gets the accounts after that and the answer.
    """
    pairs = [
        (with_parts_near(rows, increase.gate), increase.amount)
        for increase in raises
        if increase.gate is not None
    ]
    gates = {gate.id: gate for gate, _ in in_windows(pairs)}
    answers = list[Posted]()
    for name, amount in ((r.account, r.amount) for r in raises):
        gate, named, overdrawn = gates.get(name), {"amount": str(amount.amounts)}, False
        if gate is not None:
            named, overdrawn = gate.rule.label(amount), gate.overdrawn_by(amount)
        change = amount.amounts, amount.times(0).amounts
        decision.post(rows, name, change, overdrawn=overdrawn)
        answers.append(Posted(account=name, amount=named, overdrawn=overdrawn))
    decision.answer = tuple(answers)


def name_overdrawn(decision: Decision, dataset: str) -> list[str]:
    """Return the accounts of a dataset that a decision overdraws, sorted."""
    names = (posted.account for posted in decision.answer if posted.overdrawn)
    return sorted(name for name in names if split(name)[0] == dataset)


def check_evidence(rows: Rows, raises: Sequence[Raise]) -> None:
    """Refuse an evidence that was charged in the same term before.

    Raises:
        ConfigurationError: If it was.
    """
    terms = {
        split(root)[:2] for root in roots_of(increase.account for increase in raises)
    }
    for before in rows.evidence:
        if (before.dataset, before.term) in terms:
            msg = (
                "this evidence was charged in the same term before, by entry "
                f"{before.number}: a second time would charge the same spending "
                "twice. Other spending needs a file of its own that proves it."
            )
            raise ConfigurationError(msg)
