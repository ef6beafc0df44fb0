"""The end of a charge: settled, voided or forfeited.

A charge ends once. It posts everything that it holds, unless its outcome returns a
part and nothing was lost since. A charge without an
    end stays held permanently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import le, neg
from typing import Any

from dpflow.accounting.costs.base import Outcome, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.decisions.alerts import raise_alerts
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.gates import Gate, gate_at
from dpflow.ledger.requests import Alert
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Account, Charge, Held, Posting

#: State of a charge that a kind of entry ends.
STATES = {"settle": "settled", "void": "void", "forfeit": "forfeited"}


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Request to end a charge.

    Attributes:
        charge: Id of the charge.
        command: Id of the command.
        owner: Name of this process; empty for an operator.
        body: Further facts, such as the outcome and the digest of the value.
        reported: Number of sub-steps that ran, or cell of the mechanism's output.
        value: The encoded output; None keeps nothing to replay.
        shape: Length, groups and columns of the output.
    """

    charge: str
    command: str
    owner: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    reported: Outcome | None = None
    value: str | None = None
    shape: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The answer to the end of a charge.

    Attributes:
        alerts: Thresholds that were crossed with it; empty for a command that was sent
            again.
    """

    alerts: tuple[Alert, ...] = field(default=(), compare=False)


def decide_settle(rows: Rows, end: End, author: Author) -> Decision:
    """Post a charge, and keep its release.

    Raises:
        ReservationConflict: If there is no such charge, or another command ended it.
    """
    charge = find_charge(rows, end)
    if (sent := answer_sent_end(rows, charge, end)) is not None:
        return sent
    posted, realised = {n: held.amount for n, held in charge.amounts.items()}, None
    # Only the process that ran the body knows its outcome and its cost's class.
    if end.reported is not None and charge.owner == end.owner:
        cost_from_description(charge.request["cost"])
        realised = end.reported
        if end.body.get("outcome") == "completed" and not may_be_incomplete(
            rows, charge
        ):
            price = partial(price_on_gate, charge=charge, reported=end.reported)
            posted = price_end(rows, charge, price)
    body = {**end.body, **({} if realised is None else {"reported": realised})}
    return post_end(
        rows, end, author, kind="settle", posted=posted, body=body, realised=realised
    )


def decide_void(rows: Rows, end: End, author: Author) -> Decision:
    """Give a charge back whose body never started; only its process knows that.

    Raises:
        ReservationConflict: If another process reserved it, or it has ended.
    """
    charge = find_charge(rows, end)
    if charge.owner != end.owner:
        problem = "belongs to another process, which alone can end it so"
        raise refuse_end(charge, problem)
    if (sent := answer_sent_end(rows, charge, end)) is not None:
        return sent
    posted = {name: held.amount for name, held in charge.amounts.items()}
    if not is_before_repair(rows):
        posted = price_end(rows, charge, lambda gate: gate.rule.zero().amounts)
    return post_end(rows, end, author, kind="void", posted=posted, body=end.body)


def decide_forfeit(rows: Rows, end: End, author: Author) -> Decision:
    """Post a charge in full whose process has ended.

    Raises:
        ReservationConflict: If its process still runs, or it has ended.
    """
    charge = find_charge(rows, end)
    if (sent := answer_sent_end(rows, charge, end)) is not None:
        return sent
    if rows.claimant_is_alive:
        raise refuse_end(charge, "is held by a process that still runs")
    posted = {name: held.amount for name, held in charge.amounts.items()}
    body = {**author.facts, **end.body}
    return post_end(rows, end, author, kind="forfeit", posted=posted, body=body)


def find_charge(rows: Rows, end: End) -> Charge:
    """Return the charge that a command ends.

    Raises:
        ReservationConflict: If the ledger has no such charge.
    """
    if rows.charge is None:
        raise refuse_unknown(end.charge)
    return rows.charge


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


def answer_sent_end(rows: Rows, charge: Charge, end: End) -> Decision | None:
    """Answer a command that ended the charge before; None if it is open.

    Raises:
        ReservationConflict: If another command ended it.
    """
    if charge.state == "open":
        return None
    parts = [p for p in rows.charge_datasets if p.end_number is not None]
    if not parts or parts[0].end_command != end.command:
        raise refuse_end(charge, f"is {charge.state} already")
    entries = [(p.dataset, p.end_number or 0, str(p.end_hash)) for p in parts]
    return Decision(answer=Ended(), earlier=tuple(entries))


def post_end(
    rows: Rows,
    end: End,
    author: Author,
    *,
    kind: str,
    posted: Mapping[str, Amounts],
    body: Mapping[str, Any],
    realised: Any = None,
) -> Decision:
    """Move a charge from held to settled, and end it in all its datasets."""
    charge = find_charge(rows, end)
    after, held_after = dict[str, Account](), dict[str, Held]()
    postings: dict[str, dict[str, Posting]] = {
        part.dataset: {} for part in rows.charge_datasets
    }
    for name, held in charge.amounts.items():
        before = rows.account_rows.get(name)
        if before is None or before.version < held.version:
            # A page of an older time may be whole.
            msg = f"account {name!r} is missing, or older than its charge {charge.id}"
            raise LedgerCorrupt(msg)
        change = posted[name], (*map(neg, held.amount),)
        after[name] = before.posted(*change)
        # Charges that others made meanwhile were priced beside it, and stay so.
        amount, version, *others = held
        version += before.version == version
        held_after[name] = Held(amount, version, *others)
        postings[split(name)[0]][name] = change
    alerts, after = raise_alerts(rows, after, charge.request.get("alerts", {}))
    decision = Decision(answer=Ended(alerts=tuple(alerts)), accounts=after)
    for part in rows.charge_datasets:
        dataset = rows.book(part.dataset)
        raised = {a.account: a.threshold for a in alerts if a.dataset == part.dataset}
        entry = decision.append(
            dataset,
            kind,
            author,
            end.command,
            postings=postings[part.dataset],
            body={**body, "alerts": raised} if raised else body,
            about=charge.about,
        )
        ended = part._replace(end_number=entry.number)
        decision.changes.append(("end_charge_dataset", ended))
    ended_charge = charge._replace(
        state=STATES[kind], amounts=held_after, realised=realised
    )
    decision.changes.append(("update_charge", ended_charge))
    end_release(decision, rows, charge, end, kind)
    return decision


def end_release(
    decision: Decision, rows: Rows, charge: Charge, end: End, kind: str
) -> None:
    """Keep a charge's output, or let go of its key.

    A charge that lost its key to another one settles without a release.
    """
    release = rows.release
    if release is None or release.charge != charge.id:
        return
    if kind == "settle" and end.body.get("outcome") == "completed":
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


def may_be_incomplete(rows: Rows, charge: Charge) -> bool:
    """Return True if a charge ends in full: it was corrected, or is before a repair."""
    corrected = any(held.added is not None for held in charge.amounts.values())
    return corrected or is_before_repair(rows)


def price_end(
    rows: Rows, charge: Charge, price: Callable[[Gate], Amounts]
) -> dict[str, Amounts]:
    """Return the amounts that an end posts, of what it costs on each gate."""
    units, posted = charge.request.get("units", {}), {}
    for name, held in charge.amounts.items():
        gate = find_gate(rows, name, units.get(name, 1))
        posted[name] = limit_refund(rows, gate, held, price(gate))
    return posted


def limit_refund(rows: Rows, gate: Gate, held: Held, price: Amounts) -> Amounts:
    """Return the amount to post: everything held where the price is not within it.

    Where something was reserved on an account after the charge, its rule says what may
    still return. Mixing components of two prices would be no price of either.
    """
    if not is_newest(rows, gate.id, held):
        amounts = gate.rule.settled_late(Tally(held.amount), Tally(price)).amounts
    else:
        amounts = price
    return amounts if all(map(le, amounts, held.amount)) else held.amount


def is_newest(rows: Rows, account: str, held: Held) -> bool:
    """Return True if surely no other entry posted to an account since a charge.

    Under a rule whose prices depend on what is used, only then may a charge return, and
    be raised, at its own price (docs/derivations/residue.md#refunds).
    """
    row = rows.account(account)
    return row is not None and row.version == held.version


def price_on_gate(gate: Gate, charge: Charge, reported: Outcome) -> Amounts:
    """Return what an outcome costs on an account if nothing was reserved after it."""
    rule, held = gate.rule, charge.amounts[gate.id]
    if rule.settlements <= {"full"}:
        return held.amount
    try:
        cost = cost_from_description(charge.request["cost"])
        if getattr(cost, "settlement", None) not in rule.settlements:
            return held.amount
        used = rule.zero() if held.used is None else Tally(held.used)
        return gate.price(cost, used, reported).amounts
    except (InvalidCost, UnsupportedCost):
        return held.amount


def find_gate(rows: Rows, account: str, size: int = 1) -> Gate:
    """Return the gate of a charged account.

    Raises:
        LedgerCorrupt: If its term has no such gate.
    """
    state: Any = rows
    gate = gate_at(state, account, size)
    if gate is None:
        msg = f"account {account!r} has no gate in its term"
        raise LedgerCorrupt(msg)
    return gate
