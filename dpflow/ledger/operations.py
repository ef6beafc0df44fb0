"""What operators charge by hand: these entries only ever raise usage."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.costs import Cost
from dpflow.accounting.tally import Tally
from dpflow.exceptions import ConfigurationError, LedgerCorrupt, ReservationConflict
from dpflow.ledger.account import (
    Account,
    append,
    check_kept,
    read_account,
    remainder,
)
from dpflow.ledger.database import Row, Session
from dpflow.ledger.decide import check_holds, check_relation
from dpflow.ledger.gates import Gate, gates_of, terms_of
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.provenance import told_anew
from dpflow.ledger.records import Request
from dpflow.ledger.terms import all_terms
from dpflow.ledger.watch import line_of
from dpflow.ledger.writer import writer
from dpflow.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What was posted to one account.

    Attributes:
        amount: In the theorem's own currency.
        state: Of the account afterwards: "overdrawn" if its gate would not have
            admitted so much.
    """

    account: str
    entry: int
    amount: Mapping[str, str]
    state: str


def amend(
    ledger: Ledger, reservation: str, cost: Cost, *, because: str
) -> list[Charge]:
    """Charge what a step cost more than was reserved for it.

    Args:
        ledger: The ledger.
        reservation: The step's; it may have ended, also as void.
        cost: What the step truly did.
        because: How that was found out, for the journal.

    Raises:
        ReservationConflict: If that is no more than was charged: nothing is lowered.
        UnsupportedCost: If the theorem of an account has no price for the cost, or
            that does not hold under the relation of its term.
    """
    with ledger.writing((), guarded=True) as session:
        row = ledger.locked_row(session, reservation)
        if row["run"] is not None:
            msg = (
                f"reservation {reservation} is the preflight of flow run {row['run']}, "
                "under which no body runs. Amend the step that cost more."
            )
            raise ReservationConflict(msg, reservation=reservation)
        body = {
            **told_anew(json.loads(row["body"]), ledger.conditions.facts),
            "cost": cost.describe(),
            "reserved_cost": json.loads(row["cost"]),
            "because": because,
        }
        extra = []
        for gate, charged in _charged(session, row, ledger.place):
            account = gate.account
            for term in all_terms(session, account.dataset):
                if term.number == account.term:
                    check_holds(cost, term.dataset, term.pinned["relation"])
            extra.append((account, remainder(gate.price(cost), charged)))
        if not any(any(amount.amounts) for _, amount in extra):
            msg = (
                f"{cost!r} is no more than was charged for reservation {reservation} "
                f"({row['state']}, reserved at {row['cost']}). A charge is only ever "
                "raised."
            )
            raise ReservationConflict(msg, reservation=reservation)

        def raised(account: Account, amount: Tally) -> Account:
            return post(
                session, account, "amend", amount, body, reservation=reservation
            )

        moved = [
            (raised(account, amount), amount)
            for account, amount in extra
            if any(amount.amounts)
        ]
    return told(ledger, moved)


def import_prior(
    ledger: Ledger,
    policy: Policy,
    cost: Cost,
    *,
    because: str,
    evidence: str,
    populations: tuple[Policy, ...] = (),
    partitions: tuple[str, ...] = (),
) -> list[Charge]:
    """Charge what was spent on a dataset before dpflow governed it; irreversible.

    Args:
        ledger: The ledger.
        policy: The dataset's.
        cost: All that was spent; `Composed` and `Repeated` hold several steps.
        because: What it was, for the journal.
        evidence: The sha256 of what proves it.
        populations: Of the population that the dataset belongs to.
        partitions: Which parts of a divided dataset it was spent on.

    Raises:
        ConfigurationError: If this evidence was charged before, or the parts are not
            said.
        UnsupportedCost: If the theorem has no price for the cost.
        PolicyChanged: If the policy file differs from what the ledger pinned.
    """
    request = Request(
        reservation=uuid.uuid4().hex,
        owner="operator",
        policies=(policy,),
        populations=populations,
        partitions=partitions,
        cost=cost,
        step="spent before dpflow",
    )
    check_relation(request)
    body = {
        "because": because,
        "evidence_sha256": evidence,
        "cost": cost.describe(),
        "step": request.step,
        "flow": None,
        "release_key": None,
    }
    conditions = ledger.conditions
    body = {**conditions.facts, **body}
    with ledger.writing(request.locked, guarded=True) as session:
        terms = terms_of(
            session,
            request,
            applies=conditions.applies_policies,
            facts=conditions.facts,
        )
        gates = gates_of(session, request, terms, conditions.facts)
        body["policy"] = {term.dataset: term.policy_hash for term in terms}
        for gate in gates:
            _check_new_evidence(session, gate.account, evidence)
        moved = []
        for gate in gates:
            amount = gate.price(cost)
            moved.append((post(session, gate.account, "prior", amount, body), amount))
    return told(ledger, moved)


def _check_new_evidence(session: Session, account: Account, evidence: str) -> None:
    for row in session.rows("priors_of_account", account=account.id):
        if json.loads(row["body"]).get("evidence_sha256") == evidence:
            msg = (
                f"this evidence was charged to account {account.id!r} before, by entry "
                f"{row['seq']}; a second time would charge the same spending twice. "
                "Other spending needs a file of its own that proves it."
            )
            raise ConfigurationError(msg)


def _charged(session: Session, row: Row, place: str) -> list[tuple[Gate, Tally]]:
    """Return a step's gates and what each account was charged for it."""
    found = []
    for account_id in json.loads(row["accounts"]):
        where = {"account": account_id, "reservation": row["id"]}
        account = read_account(session, account_id)
        reserved = session.rows("reserved_amount", **where)
        if account is None or len(reserved) != 1:
            msg = f"account {account_id!r} lacks reservation {row['id']}"
            raise LedgerCorrupt(msg, ledger=place)
        check_kept(reserved[0], "reserve")
        # How many units of one person the step touched there, as it was reserved.
        units = json.loads(reserved[0]["body"]).get("units", {})
        charged = Tally.from_text(reserved[0]["amount"])
        for end in session.rows("ends_of_reservation", **where):
            void = end["kind"] == "void"
            charged = account.rule.zero() if void else Tally.from_text(end["amount"])
        for amendment in session.rows("amendments_of_reservation", **where):
            charged = charged + Tally.from_text(amendment["amount"])
        found.append((Gate(account, units.get(account_id, 1)), charged))
    return found


def post(
    session: Session,
    account: Account,
    kind: str,
    amount: Tally,
    body: Mapping[str, Any],
    *,
    reservation: str | None = None,
) -> Account:
    """Append an entry that raises what an account has settled."""
    return append(
        session,
        account,
        kind,
        amount,
        settled=account.settled + amount,
        held=account.held,
        reservation=reservation,
        run=None,
        body=body,
        writer=writer(),
    )


def told(ledger: Ledger, moved: list[tuple[Account, Tally]]) -> list[Charge]:
    """Tell the witness of charges that are committed, and return them."""
    ledger.watch.tell([line_of(account, amount) for account, amount in moved])
    return [
        Charge(
            account=account.id,
            entry=account.seq,
            amount=account.rule.named(amount),
            state=account.state,
        )
        for account, amount in moved
    ]
