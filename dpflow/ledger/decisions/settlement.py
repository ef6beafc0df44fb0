"""The end of a charge: settled, voided or forfeited.

A charge ends once. It posts everything that it holds, unless its outcome returns a
part and nothing was lost since. A charge without an end stays held permanently.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from operator import le
from typing import Any

from dpflow.accounting.costs.base import Outcome, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.windows import fullest_window
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.interrupts import suppress
from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.decisions.decision import Author, Decision, negative
from dpflow.ledger.decisions.gates import Gate, gate_at
from dpflow.ledger.decisions.pinned_rules import OF_SHARES
from dpflow.ledger.decisions.windows import accounts_near
from dpflow.ledger.requests import Alert, Settled
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Charge, Held
from dpflow.rounding import number_from_text

#: State of a charge that a kind of entry ends.
STATES = {"settle": "settled", "void": "void", "forfeit": "forfeited"}


@dataclass(frozen=True, slots=True)
class End:
    """Request to end a charge.

    Attributes:
        kind: "settle" posts the charge and keeps its release; "void" gives it back,
            for its body never started; "forfeit" posts it in full.
        charge: Id of the charge.
        owner: Name of this process; empty for an operator.
        body: Further facts, such as the outcome and the digest of the value.
        reported: Number of sub-steps that ran, or cell of the mechanism's output.
        value: The encoded output; None keeps nothing to replay.
        shape: Length, groups and columns of the output.
    """

    kind: str
    charge: str
    owner: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    reported: Outcome | None = None
    value: str | None = None
    shape: Mapping[str, Any] | None = None


def decide_end(rows: Rows, end: End, author: Author) -> Decision:
    """Post a charge, or give it back.

    Only the process that reserved knows that the body never started, or how it ended.

    Raises:
        ReservationConflict: If there is no such charge, or another command ended it;
            if another process would void it; if a charge to forfeit still runs.
    """
    charge = rows.charge
    if charge is None:
        raise refuse_unknown(end.charge)
    is_own, in_full = charge.owner == end.owner, is_before_repair(rows)
    if end.kind == "void" and not is_own:
        problem = "belongs to another process, which alone can end it so"
        raise refuse_end(charge, problem)
    if charge.state != "open":
        return answer_sent_end(rows, charge, end, author)
    if end.kind == "forfeit" and rows.claimant_is_alive:
        raise refuse_end(charge, "is held by a process that still runs")
    prices = {name: held.amount for name, held in charge.amounts.items()}
    realised = end.reported if is_own else None
    if end.kind == "void" and not in_full:
        prices = price_end(rows, charge)
    elif realised is not None:
        # An unknown class of cost is an error, whatever is posted.
        cost_from_description(charge.request["cost"])
        end = replace(end, body={**end.body, "reported": realised})
        corrected = any(held.added is not None for held in charge.amounts.values())
        if end.body.get("outcome") == "completed" and not (corrected or in_full):
            prices = price_end(rows, charge, realised)
    return post_end(rows, charge, end, author, prices=prices, realised=realised)


def refuse_unknown(charge: str) -> ReservationConflict:
    """Return the error for a charge that the ledger does not have."""
    msg = (
        f"the ledger has no reservation {charge!s:.60}. `dpflow history` lists all, "
        "and `dpflow ledger reservations` those that are open."
    )
    return ReservationConflict(msg, reservation=charge)


def refuse_end(charge: Charge, problem: str) -> ReservationConflict:
    """Return the error for a charge that a command may not end."""
    msg = f"reservation {charge.id} {problem}"
    return ReservationConflict(msg, reservation=charge.id)


def answer_sent_end(rows: Rows, charge: Charge, end: End, author: Author) -> Decision:
    """Answer a command that ended the charge before.

    Raises:
        ReservationConflict: If another command ended it.
    """
    parts = [p for p in rows.charge_datasets if p.end_number is not None]
    if not parts or parts[0].end_command != author.command:
        raise refuse_end(charge, f"is {charge.state} already")
    entries = [(p.dataset, p.end_number or 0, str(p.end_hash)) for p in parts]
    answer = Settled(digest=end.body.get("digest"), alerts=())
    return Decision(answer=answer, earlier=tuple(entries))


def post_end(
    rows: Rows,
    charge: Charge,
    end: End,
    author: Author,
    *,
    prices: Mapping[str, Amounts],
    realised: Outcome | None,
) -> Decision:
    """Move a charge from held to settled, and end it in all its datasets."""
    decision, amounts = Decision(author), dict[str, Held]()
    for name, held in charge.amounts.items():
        before = rows.account(name)
        if before is None or before.version < held.version:
            # A page of an older time may be whole.
            msg = f"account {name!r} is missing, or older than its charge {charge.id}"
            raise LedgerCorrupt(msg)
        decision.post(rows, name, (prices[name], negative(held.amount)))
        # Charges that others made meanwhile were priced beside it, and stay so.
        version = held.version + (before.version == held.version)
        amounts[name] = held._replace(version=version)
    alerts = raise_alerts(decision, rows, charge.request.get("alerts", {}))
    decision.answer = Settled(digest=end.body.get("digest"), alerts=tuple(alerts))
    parts = {part.dataset: part for part in rows.charge_datasets}
    if parts.keys() != decision.postings.keys():
        msg = f"charge {charge.id} names other datasets than its accounts do"
        raise LedgerCorrupt(msg)
    for name, posted in decision.postings.items():
        raised = {a.account: a.threshold for a in alerts if a.dataset == name}
        body = {**end.body, "alerts": raised} if raised else end.body
        entry = decision.append(
            rows.book(name), end.kind, postings=posted, body=body, about=charge.about
        )
        ended = parts[name]._replace(end_number=entry.number)
        decision.changes.append(("end_charge_dataset", ended))
    charge = charge._replace(state=STATES[end.kind], amounts=amounts, realised=realised)
    decision.changes.append(("update_charge", charge))
    end_release(decision, rows, charge, end)
    return decision


def end_release(decision: Decision, rows: Rows, charge: Charge, end: End) -> None:
    """Keep a charge's output, or let go of its key.

    A charge that lost its key to another one settles without a release.
    """
    release = rows.release
    if release is None or release.charge != charge.id:
        return
    if end.kind == "settle" and end.body.get("outcome") == "completed":
        digest = end.body.get("digest")
        release = release._replace(
            state="settled", digest=digest, value=end.value, shape=end.shape
        )
    elif release.state == "claimed":
        release = release._replace(state="free")
    else:
        return
    decision.changes.append(("put_release", release))


# The price of an outcome


def is_before_repair(rows: Rows) -> bool:
    """Return True if one of the charge's datasets was repaired since it was made.

    Such a charge ends in full, whatever its outcome, in all its datasets.
    """
    return any(
        part.reserve_number <= rows.book(part.dataset).repaired_at
        for part in rows.charge_datasets
    )


def price_end(
    rows: Rows, charge: Charge, reported: Outcome | None = None
) -> dict[str, Amounts]:
    """Return the amounts that an end posts: everything held where they are not within.

    Where something was reserved on an account after the charge, its rule says what may
    still return. Mixing components of two prices would be no price of either.

    Args:
        rows: Rows of the ledger.
        charge: The charge.
        reported: Its outcome; None if its body never started.
    """
    posted = dict[str, Amounts]()
    for name, held in charge.amounts.items():
        gate, posted[name] = find_gate(rows, charge, name), held.amount
        if gate is None:
            continue
        price = gate.rule.zero().amounts
        if reported is not None:
            price = price_outcome(gate, charge, held, reported)
        if not is_newest(rows, name, held):
            price = gate.rule.settle_late(Tally(held.amount), Tally(price)).amounts
        if all(map(le, price, held.amount)):
            posted[name] = price
    return posted


def is_newest(rows: Rows, account: str, held: Held) -> bool:
    """Return True if surely no other entry posted to an account since a charge.

    Under a rule whose prices depend on what is used, only then may a charge return, and
    be raised, at its own price (docs/derivations/residue.md#refunds).
    """
    row = rows.account(account)
    return row is not None and row.version == held.version


def price_outcome(gate: Gate, charge: Charge, held: Held, reported: Outcome) -> Amounts:
    """Return what an outcome costs on an account if nothing was reserved after it."""
    rule = gate.rule
    if rule.settlements <= {"full"}:
        return held.amount
    with suppress(InvalidCost, UnsupportedCost):
        cost = cost_from_description(charge.request["cost"])
        if getattr(cost, "settlement", None) in rule.settlements:
            used = rule.zero() if held.used is None else Tally(held.used)
            return gate.price(cost, used, reported).amounts
    return held.amount


def find_gate(rows: Rows, charge: Charge, account: str) -> Gate | None:
    """Return the gate of a charge's account; None of a share that access ended.

    Raises:
        LedgerCorrupt: If its term has no other gate.
    """
    gate = gate_at(rows, account, charge.request.get("units", {}).get(account, 1))
    if gate is None and split(account)[2] not in OF_SHARES:
        msg = f"account {account!r} has no gate in its term"
        raise LedgerCorrupt(msg)
    return gate


# Alerts: thresholds of use that settled amounts cross, each once. An alert is raised in
# the entry that ends a charge or charges by hand, for the highest crossed threshold.


def raise_alerts(
    decision: Decision, rows: Rows, thresholds: Mapping[str, Sequence[str]]
) -> list[Alert]:
    """Note in the accounts of a decision which alerts they raise, and return these.

    Args:
        decision: The decision, with the accounts after its entries.
        rows: Rows of the ledger, with the parts that share windows with the accounts.
        thresholds: By dataset, the thresholds of its policy, the lowest first.
    """
    alerts = list[Alert]()
    for name, account in decision.accounts.items():
        limits = thresholds.get(split(name)[0], ())
        gate = gate_at(rows, name) if limits and any(account.settled) else None
        if gate is None:
            continue
        used, alerted, crossed = Tally(account.settled), [account.alerted], ""
        if gate.window is not None:
            after = ChainMap(decision.accounts, rows.account_rows)
            near = accounts_near(after, name, gate.window.length)
            settled = {position: Tally(row.settled) for position, row in near.items()}
            used = fullest_window(settled, gate.window.position, gate.window.length)
            alerted = [row.alerted for row in near.values()]
        raised = [read_threshold(text) for text in alerted if text]
        for text in limits:
            threshold = read_threshold(text)
            if threshold <= max(raised, default=0):
                continue
            if not gate.uses(used, threshold):
                break
            if not gate.uses(find_settled_next_to(rows, gate), threshold):
                crossed = text
        if crossed:
            decision.accounts[name] = account._replace(alerted=crossed)
            share = gate.measure_use(used) or 0.0
            alert = Alert(gate.dataset, name, gate.kind, gate.name, crossed, share)
            alerts.append(alert)
    return alerts


def find_settled_next_to(rows: Rows, gate: Gate) -> Tally:
    """Return what the fuller of the windows next to a part has settled.

    A window that moves on to the next part is no other usage. Zero without windows.
    """
    zero, window = gate.rule.zero(), gate.window
    if window is None:
        return zero
    near = accounts_near(rows.account_rows, gate.id, window.length + 1)
    settled = {position: Tally(row.settled) for position, row in near.items()}
    sums = (
        sum((settled.get(n, zero) for n in range(first, first + window.length)), zero)
        for first in (window.position - window.length, window.position + 1)
    )
    return max(sums, key=lambda tally: gate.measure_use(tally) or 0.0)


@cache
def read_threshold(text: str) -> Fraction:
    """Return a threshold of use as a number."""
    return Fraction(number_from_text(text))
