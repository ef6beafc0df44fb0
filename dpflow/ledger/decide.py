"""The decision about one request: replay, wait, refuse or hold."""

from __future__ import annotations

import json
from typing import Any

from dpflow.accounting.mechanism_costs import relations_of
from dpflow.accounting.tally import Tally
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.account import (
    Account,
    append,
    fitting_factor,
    now,
)
from dpflow.ledger.database import Session
from dpflow.ledger.gates import accounts_of
from dpflow.ledger.owner import Liveness
from dpflow.ledger.records import (
    Answer,
    Busy,
    Granted,
    Replayed,
    Request,
    canonical,
)
from dpflow.ledger.refusal import Refusal, refusal_error
from dpflow.ledger.writer import writer


def decide(
    session: Session, request: Request, owners: Liveness
) -> Answer | BudgetRefused:
    """Decide one request against every account, in the caller's transaction.

    Returns:
        `Granted`, `Replayed` or `Busy`; a refusal is journaled and returned.

    Raises:
        DpflowError: For a request that cannot be decided. The caller rolls back to
            where the request began, so that it leaves no trace.
    """
    announce(session, request)
    known = _known(session, request) or _released(session, request, owners)
    if known is not None:
        return known
    _check_relation(request)
    accounts = accounts_of(session, request)
    asked = [account.price(request.cost) for account in accounts]
    refusal = _refused(session, request, accounts, asked)
    if refusal is not None:
        return refusal
    _hold(session, request, accounts, asked)
    return Granted(
        reservation=request.reservation,
        accounts=tuple(account.id for account in accounts),
    )


def announce(session: Session, request: Request) -> None:
    """Say what the decision will ask first, all of which may be answered at once."""
    session.soon("read_reservation", id=request.reservation)
    if request.release_key is not None:
        session.soon("read_release", release_key=request.release_key)
    for dataset in request.datasets:
        session.soon("newest_term", dataset=dataset)
    if request.flow_run is not None:
        session.soon("halting_accounts", run=request.flow_run)


def _known(session: Session, request: Request) -> Granted | None:
    """Answer an id that was sent before exactly as it was answered then."""
    rows = session.rows("read_reservation", id=request.reservation)
    if not rows:
        return None
    row = rows[0]
    same = (row["fingerprint"], row["owner"], row["state"]) == (
        request.fingerprint(),
        request.owner,
        "open",
    )
    if not same:
        msg = (
            f"reservation {request.reservation} was made for another request or is "
            f"{row['state']} already; every execution needs an id of its own"
        )
        raise ReservationConflict(msg, reservation=request.reservation)
    return Granted(reservation=row["id"], accounts=tuple(json.loads(row["accounts"])))


def _released(
    session: Session, request: Request, owners: Liveness
) -> Replayed | Busy | None:
    """Look the release key up: replay it, wait for a live claim, or go on."""
    if request.release_key is None:
        return None
    rows = session.rows("read_release", release_key=request.release_key)
    if not rows:
        return None
    row = rows[0]
    if row["state"] == "settled" and row["value"] is not None:
        if row["cost"] != canonical(request.cost.describe()):
            msg = (
                f"release {row['key_text']!r} of step {row['step']!r} was made at "
                f"cost {row['cost']}, now {canonical(request.cost.describe())}. "
                "Use another release_key for another cost."
            )
            raise ReservationConflict(msg, release_key=row["key_text"])
        return Replayed(
            reservation=row["reservation"],
            value=row["value"],
            digest=row["digest"],
        )
    if row["state"] == "claimed" and owners.alive(row["owner"]):
        return Busy(reservation=row["reservation"], owner=row["owner"])
    return None


def _check_relation(request: Request) -> None:
    """Refuse a cost whose price does not hold under a dataset's relation."""
    allowed = relations_of(request.cost)
    for policy in request.policies:
        if policy.relation not in allowed:
            holds = " and ".join(allowed) or "no relation"
            msg = (
                f"{request.cost!r} is priced for {holds}, but the policy of dataset "
                f"{policy.dataset!r} says {policy.relation}. Declare a cost that holds "
                "for that relation."
            )
            raise UnsupportedCost(msg, mechanism=request.cost.mechanism)


def _refused(
    session: Session,
    request: Request,
    accounts: list[Account],
    asked: list[Tally],
) -> BudgetRefused | None:
    pairs = list(zip(accounts, asked, strict=True))
    closed = [
        policy for policy in request.policies if not policy.covers_flow(request.flow)
    ]
    halted = _halted(session, request) & {account.id for account in accounts}
    refusing = [
        (account, amount)
        for account, amount in pairs
        if account.id in halted or not account.admits(amount)
    ]
    if closed:
        datasets = {policy.dataset for policy in closed}
        refusing = [
            (account, amount)
            for account, amount in pairs
            if account.kind == "dataset" and account.dataset in datasets
        ]
    if not refusing:
        return None
    account, amount = refusing[0]
    refusal = Refusal(
        request=request,
        account=account,
        asked=amount,
        closed=bool(closed),
        halted=account.id in halted,
        run_halted=bool(halted),
        factor=None if closed or halted else fitting_factor(accounts, request.cost),
    )
    granted = _granted(session, account, request.step)
    exhausted = not closed and granted is not None and amount.fits_within(granted)
    error = refusal_error(refusal, BudgetExhausted if exhausted else BudgetRefused)
    body = {**_body(request), **refusal.told(error)}
    _journal_refusal(session, request, account, amount, body)
    for other, other_amount in refusing[1:]:
        # An odometer halts the flow run even where another gate refused first.
        if other.kind == "odometer":
            _journal_refusal(session, request, other, other_amount, body)
    return error


def _journal_refusal(
    session: Session,
    request: Request,
    account: Account,
    amount: Tally,
    body: dict[str, Any],
) -> None:
    refused = append(
        session,
        account,
        "refuse",
        amount,
        settled=account.settled,
        held=account.held,
        reservation=request.reservation,
        run=request.flow_run,
        body=body,
        writer=writer(),
    )
    for run in dict.fromkeys((*request.enclosing_runs, request.flow_run)):
        if run is not None:
            charged = int(run == request.flow_run)
            place = {"account": refused.id, "seq": refused.seq}
            session.post("note_refused", run=run, charged=charged, **place)


def _hold(
    session: Session,
    request: Request,
    accounts: list[Account],
    asked: list[Tally],
) -> None:
    body = _body(request)
    granted = [_granted(session, account, request.step) for account in accounts]
    session.post(
        "open_reservation",
        id=request.reservation,
        fingerprint=request.fingerprint(),
        owner=request.owner,
        datasets=canonical(request.datasets),
        accounts=canonical([account.id for account in accounts]),
        cost=canonical(request.cost.describe()),
        step=request.step,
        release_key=request.release_key,
        body=canonical(body),
        at=now(),
    )
    for account, amount, highest in zip(accounts, asked, granted, strict=True):
        append(
            session,
            account,
            "reserve",
            amount,
            settled=account.settled,
            held=account.held + amount,
            reservation=request.reservation,
            run=request.flow_run,
            body=body,
            writer=writer(),
        )
        if highest is None or not amount.fits_within(highest):
            higher = amount if highest is None else highest.highest(amount)
            session.post(
                "note_granted",
                account=account.id,
                step=request.step,
                amount=higher.to_text(),
            )
    if request.release_key is not None:
        session.post(
            "claim_release",
            release_key=request.release_key,
            key_text=request.key_text,
            dataset=",".join(request.datasets),
            step=request.step,
            cost=canonical(request.cost.describe()),
            reservation=request.reservation,
            owner=request.owner,
            at=now(),
        )


def _halted(session: Session, request: Request) -> set[str]:
    """Return the odometer accounts that have refused a step of this flow run."""
    if request.flow_run is None:
        return set()
    rows = session.rows("halting_accounts", run=request.flow_run)
    return {row["account"] for row in rows}


def _granted(session: Session, account: Account, step: str) -> Tally | None:
    """Return the most that a step was ever granted on an account."""
    rows = session.rows("read_granted", account=account.id, step=step)
    return Tally.from_text(rows[0]["amount"]) if rows else None


def _body(request: Request) -> dict[str, Any]:
    return {
        **request.body,
        "step": request.step,
        "flow": request.flow,
        "cost": request.cost.describe(),
        "release_key": request.key_text or None,
    }
