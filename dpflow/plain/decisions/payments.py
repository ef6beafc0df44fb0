"""Payments: the people of an account were charged for a step."""

from __future__ import annotations

from dataclasses import dataclass

from dpflow.exceptions import ReservationConflict
from dpflow.ledger.rows import split
from dpflow.plain.decisions.decision import Author, Decision
from dpflow.plain.decisions.freezes import name_entries
from dpflow.plain.decisions.settlement import refuse_end
from dpflow.plain.tables.loaded import Rows
from dpflow.plain.tables.rows import PeopleStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """Note that the people of an account were charged for a step.

    Attributes:
        account: Account of the dataset.
        command: Id of the command.
        before: Charge of the newest step so far; None before the first one.
    """

    account: str
    command: str
    before: str | None


def decide_payment(rows: Rows, payment: Payment, author: Author) -> Decision:
    """Note the step, unless another copy of the store was used since.

    Raises:
        ReservationConflict: If it was used, or the charge is not open.
    """
    charge, account = rows.charge, payment.account
    assert charge is not None
    if rows.sent:
        return Decision(earlier=name_entries(rows))
    store = rows.people.get(account)
    newest = None if store is None else store.newest
    if newest != payment.before:
        msg = (
            f"another copy of the store of {account} is in use, and went on "
            "to another step. The step drew no noise. Remove this copy."
        )
        raise ReservationConflict(msg, reservation=charge.id)
    if charge.state != "open":
        raise refuse_end(charge, f"is {charge.state} already")
    held = charge.amounts.get(account)
    # The first step makes the store, which its charge pays.
    if held is None or (store is None and not any(held.amount)):
        raise refuse_end(charge, f"did not pay for the people of {account!r}")
    first = charge.id if store is None else store.first
    decision = Decision()
    decision.change("put_people_store", PeopleStore(account, first, charge.id))
    decision.append(
        rows.book(split(account)[0]),
        "pay",
        author,
        payment.command,
        body={"people": account},
        charge=charge.id,
        step=charge.step,
        flow=charge.flow,
        run=charge.run,
    )
    return decision
