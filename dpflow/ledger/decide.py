"""The decision about one request: replay, wait, refuse or hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.costs import Cost
from dpflow.accounting.mechanism_costs import relations_of
from dpflow.accounting.tally import Tally
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    UnsupportedCost,
)
from dpflow.ledger.account import (
    Account,
    append,
    now,
)
from dpflow.ledger.alerts import new_alerts, new_terms
from dpflow.ledger.answered import known, released
from dpflow.ledger.database import Session
from dpflow.ledger.gates import (
    Gate,
    charges_of,
    fitting_factor,
    gates_of,
    terms_of,
)
from dpflow.ledger.owner import Liveness
from dpflow.ledger.preflight import (
    Cover,
    announce_runs,
    check_additive,
    cover_of,
    draw,
    note_preflight,
    reopened,
)
from dpflow.ledger.records import (
    Alert,
    Answer,
    Conditions,
    Granted,
    Request,
    canonical,
    cost_text,
)
from dpflow.ledger.refusal import (
    Refusal,
    journaled,
    refusal_error,
    refused_with_run,
)
from dpflow.ledger.terms import Term, frozen_by
from dpflow.ledger.writer import writer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A request with all that is asked for it: each account and the amount."""

    request: Request
    terms: list[Term]
    pairs: list[tuple[Account, Tally]]
    asked: list[tuple[Gate, Cost]]
    body: dict[str, Any]
    cover: Cover | None

    @property
    def drawn(self) -> bool:
        """Whether the preflight of the step's run holds all of it already."""
        return self.cover is not None and self.cover.drawn

    def added(self, account: Account, amount: Tally) -> Tally:
        """Return by how much the request raises what an account holds."""
        return account.rule.zero() if self.drawn else amount


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
    before = (
        known(session, request)
        or released(session, request, owners)
        or reopened(session, request, owners)
    )
    if before is not None:
        return before
    case = _case(session, request, conditions)
    refusal = _refused_with_run(session, case) or _refused(session, case)
    if refusal is not None:
        return refusal
    _hold(session, case)
    return Granted(
        reservation=request.reservation,
        accounts=tuple(account.id for account, _ in case.pairs),
        alerts=_alerts(session, case),
        beyond=case.cover is not None and not case.drawn,
        opened=tuple(new_terms(session, case.terms, [a for a, _ in case.pairs])),
    )


def _case(session: Session, request: Request, conditions: Conditions) -> _Case:
    """Find every account that a request is charged to, and price it there."""
    facts = conditions.facts
    steps = request.planned or (request,)
    for step in steps:
        check_relation(step)
    terms = terms_of(session, request, applies=conditions.applies_policies, facts=facts)
    asked = [
        (gate, step.cost)
        for step in steps
        for gate in gates_of(session, step, _of(step, terms), facts)
    ]
    pairs = charges_of(asked)
    for account, _ in pairs if request.planned else ():
        check_additive(account.rule, account.id)
    cover = cover_of(session, request, pairs)
    body = _body(request, terms, [gate for gate, _ in asked], facts)
    return _Case(
        request=request,
        terms=terms,
        pairs=pairs,
        asked=asked,
        body=body if cover is None else {**body, **cover.told()},
        cover=cover,
    )


def _of(request: Request, terms: list[Term]) -> list[Term]:
    """Return the terms of a request's datasets and populations, in their order."""
    by_name = {term.dataset: term for term in terms}
    policies = (*request.policies, *request.populations)
    return [by_name[policy.dataset] for policy in policies]


def announce(session: Session, request: Request) -> None:
    """Say what the decision will ask first, all of which may be answered at once."""
    session.soon("read_reservation", id=request.reservation)
    announce_runs(session, request)
    if request.release_key is not None:
        session.soon("read_release", release_key=request.release_key)
    for dataset in request.locked:
        session.soon("newest_term", dataset=dataset)
    if request.flow_run is not None:
        session.soon("halting_accounts", run=request.flow_run)


def check_relation(request: Request) -> None:
    """Refuse a cost whose price does not hold under a dataset's relation."""
    for policy in (*request.policies, *request.populations):
        check_holds(request.cost, policy.dataset, policy.relation)


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


def _refused_with_run(session: Session, case: _Case) -> BudgetRefused | None:
    """Refuse a draw in a run whose preflight was refused, whatever it asks for."""
    told = None if case.cover is None else case.cover.refused
    if told is None:
        return None
    error = refused_with_run(case.request, told)
    # Of the account that refused the run, if the step is charged to it.
    account, amount = min(case.pairs, key=lambda pair: pair[0].id != told["account"])
    body = {**case.body, **journaled(error)}
    _journal_refusal(session, case.request, account, amount, body)
    return error


def _refused(session: Session, case: _Case) -> BudgetRefused | None:
    request, pairs = case.request, case.pairs
    closed = [
        term.dataset
        for step in request.planned or (request,)
        for term in _of(step, case.terms)
        if not term.covers_flow(step.flow)
    ]
    ended = case.cover is not None and case.cover.ended
    halted = _halted(session, request) & {account.id for account, _ in pairs}
    refusing = [
        (account, amount)
        for account, amount in pairs
        if account.id in halted or not account.admits(case.added(account, amount))
    ]
    if ended:
        refusing = pairs[:1]
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
    never = bool(closed) or frozen or ended
    refusal = Refusal(
        request=request,
        account=account,
        asked=amount,
        closed=bool(closed) and not frozen,
        halted=account.id in halted,
        run_halted=bool(halted),
        frozen=frozen_by(session, account.dataset) if frozen else None,
        factor=None if never or halted or case.drawn else fitting_factor(case.asked),
        ended=ended,
    )
    granted = _granted(session, account, request.step)
    exhausted = not never and granted is not None and amount.fits_within(granted)
    error = refusal_error(refusal, BudgetExhausted if exhausted else BudgetRefused)
    body = {**case.body, **journaled(error)}
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
    runs = (*request.enclosing_runs, request.flow_run, request.covers)
    for run in dict.fromkeys(runs):
        if run is not None:
            charged = int(run == request.flow_run)
            place = {"account": refused.id, "seq": refused.seq}
            session.post("note_refused", run=run, charged=charged, **place)


def _hold(session: Session, case: _Case) -> None:
    request, body, at = case.request, canonical(case.body), now()
    cost = cost_text(request.cost)
    granted = [_granted(session, account, request.step) for account, _ in case.pairs]
    session.post(
        "open_reservation",
        id=request.reservation,
        fingerprint=request.fingerprint(),
        owner=request.owner,
        datasets=canonical(request.locked),
        accounts=canonical([account.id for account, _ in case.pairs]),
        cost=cost,
        step=request.step,
        release_key=request.release_key,
        body=body,
        at=at,
    )
    if request.covers is not None:
        note_preflight(session, request)
    for (before, amount), highest in zip(case.pairs, granted, strict=True):
        account = before
        if case.cover is not None and case.drawn:
            account = draw(session, (before, amount), case.cover, request, case.body)
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
            cost=cost,
            reservation=request.reservation,
            owner=request.owner,
            at=at,
        )


def _alerts(session: Session, case: _Case) -> tuple[Alert, ...]:
    policies = (*case.request.policies, *case.request.populations)
    by_name = {policy.dataset: policy for policy in policies}
    return tuple(
        alert
        for account, amount in case.pairs
        for alert in new_alerts(
            session, by_name[account.dataset], account, case.added(account, amount)
        )
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
    held = {} if request.covers is None else {"covers": request.covers}
    return {
        **facts,
        **request.body,
        **held,
        "policy": {term.dataset: term.policy_hash for term in terms},
        "step": request.step,
        "flow": request.flow,
        "cost": request.described_cost(),
        "release_key": request.key_text or None,
        "datasets": request.datasets,
        "partitions": list(request.partitions),
        "units": {g.account.id: g.size for g in gates if g.size != 1},
    }
