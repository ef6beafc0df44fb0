"""The decision about one request: replay, wait, refuse or hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
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
    now,
)
from dpflow.ledger.alerts import new_alerts, new_terms
from dpflow.ledger.database import Session
from dpflow.ledger.gates import Gate, fitting_factor, gates_of, terms_of
from dpflow.ledger.owner import Liveness
from dpflow.ledger.records import (
    Alert,
    Answer,
    Busy,
    Conditions,
    Granted,
    Replayed,
    Request,
    canonical,
)
from dpflow.ledger.refusal import Refusal, refusal_error
from dpflow.ledger.terms import Term, frozen_by
from dpflow.ledger.writer import writer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A request with all that is asked for it: each account and the amount."""

    request: Request
    terms: list[Term]
    gates: list[Gate]
    pairs: list[tuple[Account, Tally]]
    body: dict[str, Any]


def decide(
    session: Session, request: Request, owners: Liveness, conditions: Conditions
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
    check_relation(request)
    facts = conditions.facts
    terms = terms_of(session, request, applies=conditions.applies_policies, facts=facts)
    gates = gates_of(session, request, terms, facts)
    case = _Case(
        request=request,
        terms=terms,
        gates=gates,
        pairs=[(gate.account, gate.price(request.cost)) for gate in gates],
        body=_body(request, terms, gates, facts),
    )
    refusal = _refused(session, case)
    if refusal is not None:
        return refusal
    _hold(session, case)
    return Granted(
        reservation=request.reservation,
        accounts=tuple(gate.account.id for gate in gates),
        alerts=_alerts(session, case),
        opened=tuple(new_terms(session, terms, [account for account, _ in case.pairs])),
    )


def announce(session: Session, request: Request) -> None:
    """Say what the decision will ask first, all of which may be answered at once."""
    session.soon("read_reservation", id=request.reservation)
    if request.release_key is not None:
        session.soon("read_release", release_key=request.release_key)
    for dataset in request.locked:
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
    if any(frozen_by(session, dataset) is not None for dataset in request.datasets):
        # Frozen means that nothing is answered, be it free: the gates refuse.
        return None
    rows = session.rows("read_release", release_key=request.release_key)
    if not rows:
        return None
    row = rows[0]
    replayable = row["state"] == "settled" and row["value"] is not None
    if replayable and not request.fresh:
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


def check_relation(request: Request) -> None:
    """Refuse a cost whose price does not hold under a dataset's relation."""
    allowed = relations_of(request.cost)
    for policy in (*request.policies, *request.populations):
        if policy.relation not in allowed:
            holds = " and ".join(allowed) or "no relation"
            msg = (
                f"{request.cost!r} is priced for {holds}, but the policy of dataset "
                f"{policy.dataset!r} says {policy.relation}. Declare a cost that holds "
                "for that relation."
            )
            raise UnsupportedCost(msg, mechanism=request.cost.mechanism)


def _refused(session: Session, case: _Case) -> BudgetRefused | None:
    request, pairs = case.request, case.pairs
    closed = [t.dataset for t in case.terms if not t.covers_flow(request.flow)]
    halted = _halted(session, request) & {account.id for account, _ in pairs}
    refusing = [
        (account, amount)
        for account, amount in pairs
        if account.id in halted or not account.admits(amount)
    ]
    if closed:
        refusing = [
            (account, amount)
            for account, amount in pairs
            if account.kind == "dataset" and account.dataset in closed
        ]
    if not refusing:
        return None
    # What closes a dataset for everyone is said before what this step lacks.
    refusing.sort(key=lambda pair: pair[0].state != "frozen")
    account, amount = refusing[0]
    frozen = account.state == "frozen"
    never = bool(closed) or frozen
    refusal = Refusal(
        request=request,
        account=account,
        asked=amount,
        closed=bool(closed) and not frozen,
        halted=account.id in halted,
        run_halted=bool(halted),
        frozen=frozen_by(session, account.dataset) if frozen else None,
        factor=None if never or halted else fitting_factor(case.gates, request.cost),
    )
    granted = _granted(session, account, request.step)
    exhausted = not never and granted is not None and amount.fits_within(granted)
    error = refusal_error(refusal, BudgetExhausted if exhausted else BudgetRefused)
    body = {**case.body, **refusal.told(error)}
    _journal_refusal(session, request, account, amount, body)
    for other, other_amount in refusing[1:]:
        # An odometer halts the flow run even where another gate refused first; a
        # frozen one says nothing about the run.
        if other.kind == "odometer" and other.state != "frozen":
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


def _hold(session: Session, case: _Case) -> None:
    request, body = case.request, case.body
    granted = [_granted(session, account, request.step) for account, _ in case.pairs]
    session.post(
        "open_reservation",
        id=request.reservation,
        fingerprint=request.fingerprint(),
        owner=request.owner,
        datasets=canonical(request.locked),
        accounts=canonical([account.id for account, _ in case.pairs]),
        cost=canonical(request.cost.describe()),
        step=request.step,
        release_key=request.release_key,
        body=canonical(body),
        at=now(),
    )
    for (account, amount), highest in zip(case.pairs, granted, strict=True):
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


def _alerts(session: Session, case: _Case) -> tuple[Alert, ...]:
    policies = (*case.request.policies, *case.request.populations)
    by_name = {policy.dataset: policy for policy in policies}
    return tuple(
        alert
        for account, amount in case.pairs
        for alert in new_alerts(session, by_name[account.dataset], account, amount)
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


def _body(
    request: Request, terms: list[Term], gates: list[Gate], facts: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        **facts,
        **request.body,
        "policy": {term.dataset: term.policy_hash for term in terms},
        "step": request.step,
        "flow": request.flow,
        "cost": request.cost.describe(),
        "release_key": request.key_text or None,
        "datasets": request.datasets,
        "partitions": list(request.partitions),
        "units": {g.account.id: g.size for g in gates if g.size != 1},
    }
