"""Payments: the people of an account were charged for a step."""

from __future__ import annotations

from typing import NamedTuple

from dpflow.accounting.rules.rule import Rule
from dpflow.exceptions import ReservationConflict
from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.gates import gate_at
from dpflow.ledger.decisions.settlement import refuse_end
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import PeopleStore


class Payer(NamedTuple):
    """A charge that pays for the people of its dataset.

    Attributes:
        account: Account of the dataset.
        rule: Rule of the account; None if its term is lost.
        amount: Amount of the charge on the account.
        is_void: True if the charge was given back.
        store: Charges of the account's store of people; None before the first step.
    """

    account: str
    rule: Rule | None
    amount: Amounts
    is_void: bool
    store: PeopleStore | None


def find_payer(rows: Rows, name: str) -> Payer:
    """Return the charge of the rows as the payer of the people of an account."""
    charge = rows.charge
    assert charge is not None
    gate = gate_at(rows, name)
    rule = None if gate is None else gate.rule
    amount, is_void = charge.amounts[name].amount, charge.state == "void"
    return Payer(name, rule, amount, is_void, rows.people.get(name))


def decide_payment(
    rows: Rows, author: Author, account: str, before: str | None
) -> Decision:
    """Note that people were charged for a step, unless another copy of them was used.

    Args:
        rows: Rows with the charge of the step and the store of people.
        author: Who sends the command.
        account: Account of the dataset.
        before: Charge of the newest step so far; None before the first one.

    Raises:
        ReservationConflict: If it was used, or the charge is not open.
    """
    charge = rows.charge
    assert charge is not None
    store = rows.people.get(account)
    newest = None if store is None else store.newest
    if newest != before:
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
    decision = Decision(author)
    store = PeopleStore(account, first, charge.id)
    decision.changes.append(("put_people_store", store))
    dataset, body = rows.book(split(account)[0]), {"people": account}
    decision.append(dataset, "pay", body=body, about=charge.about)
    return decision
