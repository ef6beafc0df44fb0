"""The decision about one request: replay, wait, refuse or hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.text import python_form
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    LedgerUnavailable,
    ReservationConflict,
)
from dpflow.ledger.decision.gates import (
    Gate,
    charges_of,
    fitting_factor,
    gates_of,
    places_of,
)
from dpflow.ledger.decision.preflight import (
    Cover,
    check_additive,
    cover_of,
    reopened,
)
from dpflow.ledger.decision.refusal import (
    Refusal,
    journaled,
    refusal_error,
    refused_with_run,
)
from dpflow.ledger.decision.terms import check_relation, terms_of
from dpflow.ledger.entry import canonical
from dpflow.ledger.model import Command, Decision, newest_terms, terms_of_accounts
from dpflow.ledger.pure_cache import by_identity
from dpflow.ledger.records import (
    Alert,
    Busy,
    Granted,
    Replayed,
    Request,
    TermOpened,
    cost_text,
)
from dpflow.ledger.rows import Charge, Release, Term, account_key, granted_key
from dpflow.ledger.state import State, charge_keys
from dpflow.policy import Policy
from dpflow.rounding import number_text

#: Characters of what an entry says of its keys.
MOST_TEXT = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve(Command):
    """Hold a step's worst case, or find its release."""

    guarded: ClassVar[bool] = True

    request: Request

    @property
    def reads(self) -> Sequence[Policy]:
        """Those of the request."""
        return self.request.policies

    def keys(self, state: State) -> Iterator[str]:
        """Yield the accounts of every gate, the release, the runs, what was granted."""
        request = self.request
        yield "repairs"
        yield from charge_keys(state, request.reservation)
        if request.release_key is not None:
            yield f"release/{request.release_key}"
            kept = state.rows.get(f"release/{request.release_key}")
            if kept is not None:
                yield from charge_keys(state, kept["charge"])
        around = (*request.preflights, request.flow_run, *request.enclosing_runs)
        for run in filter(None, (request.covers, *around)):
            yield f"run/{run}"
            known = state.rows.get(f"run/{run}")
            if known and known["unheld"] is not None:
                yield f"#{known['unheld']}"
            reservation = known and known["reservation"]
            if reservation and run in (request.covers, *request.preflights):
                yield from _reservation_keys(state, run, reservation, request)
        yield from (f"claim/{p.source}" for p in request.policies if p.source)
        for step in request.planned or (request,):
            for policy in (*step.policies, *step.populations):
                book = policy.dataset
                yield from newest_terms(state, book)
                row = state.rows.get(f"book/{book}")
                number = 1 if row is None else row["term"]
                for place in places_of(policy, step):
                    account = f"{book}#{number}{place}"
                    yield account_key(account)
                    yield granted_key(request.step, account)

    def charges_met(self, state: State) -> Iterable[str | None]:
        """Return who makes its release now, and who holds its run."""
        kept = state.release(self.request.release_key)
        held = state.reservation(self.request.covers)
        return (None if kept is None else kept.charge, held and held.id)

    def decide(self, state: State) -> Decision:
        """Decide one request against every account.

        Returns:
            `Granted`, `Replayed` or `Busy`; or the refusal, which is journaled.

        Raises:
            DpflowError: For a request that cannot be decided.
        """
        request, pen = self.request, Decision(state, self)
        charge = state.charge(request.reservation)
        if charge is not None:
            return _known(pen, request, charge)
        before = released(state, request)
        if before is not None:
            return pen.answered(before)
        taken = None if request.covers is None else reopened(pen, request)
        if taken is not None:
            return taken
        case = _case(pen, request)
        body = _body(case)
        return pen.answered(_refused(pen, case, body) or _held(pen, case, body))


def _reservation_keys(
    state: State, run: str, reservation: str, request: Request
) -> Iterator[str]:
    """Yield the keys of a run's reservation, and of what its end would move."""
    yield from charge_keys(state, reservation)
    made = state.made.get(reservation)
    if made is not None and run == request.covers:
        yield from map(account_key, made.amounts)
        yield from terms_of_accounts(made.amounts)


class _Case(NamedTuple):
    """A request with all that is asked for it: each gate and the amount.

    Attributes:
        drawn: Whether the preflight of the step's run holds all of it already.
    """

    request: Request
    terms: Sequence[Term]
    pairs: Sequence[tuple[Gate, Tally]]
    asked: Sequence[tuple[Gate, Cost]]
    cover: Cover | None
    drawn: bool

    @property
    def added(self) -> Sequence[tuple[Gate, Tally]]:
        """By how much the request raises what each account holds."""
        if not self.drawn:
            return self.pairs
        return [(gate, gate.rule.zero()) for gate, _ in self.pairs]


def _known(pen: Decision, request: Request, charge: Charge) -> Decision:
    """Answer an id that was sent before exactly as it was answered then."""
    made = charge.made.body
    mine = (charge.owner, charge.state) == (request.owner, "open")
    if not (mine and request.made(made)):
        msg = (
            f"reservation {request.reservation} was made for another request or is "
            f"{charge.state} already; every execution needs an id of its own"
        )
        raise ReservationConflict(msg, reservation=request.reservation)
    found = Granted(reservation=charge.id, accounts=tuple(made["accounts"]))
    return pen.answered(found, earlier=[charge.made])


def released(state: State, request: Request) -> Replayed | Busy | None:
    """Look the release key up: replay it, wait for a live claim, or go on."""
    release = state.release(request.release_key)
    if release is None:
        return None
    if any(state.book(name).frozen is not None for name in request.locked):
        # Frozen means that nothing is answered, be it free: the gates refuse.
        return None
    charge = state.charge(release.charge)
    if charge is None:
        msg = f"release {request.key_text!r} is of a charge that nobody made"
        raise ReservationConflict(msg, release_key=request.key_text)
    if release.state == "settled" and not request.fresh:
        return _replayed(state, request, release, charge)
    if release.state == "claimed" and charge.owner in state.alive:
        return Busy(reservation=charge.id, owner=charge.owner)
    return None


def _replayed(
    state: State, request: Request, release: Release, charge: Charge
) -> Replayed | None:
    """Replay a release, unless its value is deleted.

    Raises:
        ReservationConflict: If its value was never kept, or it answers other arguments,
            or the step refuses another cost.
    """
    made = charge.made.body
    value = state.values.get(release.key)
    asked, before = request.arguments or {}, made.get("arguments", {})
    differ = [
        name
        for name in sorted({*asked, *before})
        if asked.get(name, "") not in {before.get(name), None}
    ]
    changed = canonical(made["cost"]) != cost_text(request.cost)
    made_at = python_form(made["cost"]) if changed else None
    why = ""
    if release.digest is None and request.arguments is not None:
        why = (
            "was charged, but its value was not kept, so that it cannot be replayed. "
            "Return what can be kept; fresh=True draws it anew, at a new charge"
        )
    elif value is None:
        return None
    elif differ:
        why = (
            f"was made for another value of {', '.join(differ)}. Write what tells the "
            "two apart into release_key=, or ignore=(...) if the output does not "
            "depend on it"
        )
    elif changed and request.on_change == "refuse":
        why = (
            f"was made at {made_at}, the step declares {request.cost!r} now, and it "
            'says on_change="refuse". Leave that away to replay it; fresh=True draws '
            "it anew, at a new charge"
        )
    if why:
        msg = f"release {request.key_text!r} of step {made['step']!r} {why}."
        raise ReservationConflict(msg, release_key=request.key_text)
    digest = str(release.digest)
    return Replayed(
        reservation=charge.id, value=str(value), digest=digest, made_at=made_at
    )


def kept_or_error(state: State, command: Command, why: LedgerUnavailable) -> Any:
    """Answer with a kept release where nothing can be charged, else say why not."""
    if not isinstance(command, Reserve):
        return why
    try:
        return released(state, command.request) or why
    except ReservationConflict as error:
        return error


def _case(pen: Decision, request: Request) -> _Case:
    """Find every account that a request is charged to, and price it there."""
    steps = request.planned or (request,)
    for step in steps:
        check_relation(step)
    terms = terms_of(pen, request)
    by_name = {term.book: term for term in terms}
    asked = [
        (gate, step.cost)
        for step in steps
        for gate in gates_of(
            pen.state,
            step,
            [by_name[p.dataset] for p in (*step.policies, *step.populations)],
        )
    ]
    for gate, _ in asked if request.planned else ():
        check_additive(gate)
    cover = cover_of(pen.state, request, asked) if request.preflights else None
    drawn = None if cover is None else cover.drawn
    pairs = charges_of(asked) if drawn is None else drawn
    return _Case(request, terms, pairs, asked, cover, drawn is not None)


# Refusing


def _refused_with_run(
    pen: Decision, case: _Case, told: Mapping[str, Any], body: Mapping[str, Any]
) -> BudgetRefused:
    """Refuse a draw in a run whose preflight was refused, whatever it asks for."""
    error = refused_with_run(case.request, told)
    # Of the account that refused the run, if the step is charged to it.
    pair = min(case.pairs, key=lambda pair: pair[0].id != told["account"])
    _journal_refusal(pen, case.request, [pair], {**body, **journaled(error)})
    return error


def _refused(
    pen: Decision, case: _Case, body: Mapping[str, Any]
) -> BudgetRefused | None:
    request, pairs, state = case.request, case.pairs, pen.state
    if case.cover is not None and case.cover.refused is not None:
        return _refused_with_run(pen, case, case.cover.refused, body)
    closed = {gate.id for gate, _ in case.asked if gate.closed}
    ended = case.cover is not None and case.cover.ended
    run = request.flow_run
    halted = {*(state.run(run).halted if run else ())} & {gate.id for gate, _ in pairs}
    refusing = [
        pair
        for pair, (gate, added) in zip(pairs, case.added, strict=True)
        if gate.id in halted or not gate.admits(added)
    ]
    if ended:
        refusing = list(pairs[:1])
    if closed:
        refusing = [pair for pair in pairs if pair[0].id in closed]
    if not refusing:
        return None
    # What closes a dataset for everyone is said before what this step lacks.
    refusing.sort(key=lambda pair: pair[0].state != "frozen")
    gate, amount = refusing[0]
    frozen = gate.state == "frozen"
    never = bool(closed) or frozen or ended
    refusal = Refusal(
        request=request,
        account=gate,
        asked=amount,
        closed=bool(closed) and not frozen,
        halted=gate.id in halted,
        run_halted=bool(halted),
        frozen=state.book(gate.dataset).frozen if frozen else None,
        factor=None if never or halted or case.drawn else fitting_factor(case.asked),
        ended=ended,
    )
    most = state.granted(request.step, gate.id)
    exhausted = not never and most is not None and amount.fits_within(Tally(most))
    error = refusal_error(refusal, BudgetExhausted if exhausted else BudgetRefused)
    _journal_refusal(pen, request, refusing, {**body, **journaled(error)})
    return error


def _journal_refusal(
    pen: Decision,
    request: Request,
    refusing: Sequence[tuple[Gate, Tally]],
    body: Mapping[str, Any],
) -> None:
    """Write the first refusal and, with it, every odometer that halts the run."""
    told = [
        refusing[0],
        # It halts the flow run even where another gate refused first; a frozen one
        # says nothing about the run.
        *(p for p in refusing[1:] if p[0].kind == "odometer" and p[0].state == "open"),
    ]
    runs = [*request.enclosing_runs, request.flow_run, request.covers]
    facts = {
        **body,
        "account": told[0][0].id,
        "accounts": [gate.id for gate, _ in told],
        "runs": [run for run in dict.fromkeys(runs) if run is not None],
        "halts": [gate.id for gate, _ in told if gate.kind == "odometer"],
    }
    pen.write("refuse", {}, facts, charge=request.reservation)


# Holding


def _held(pen: Decision, case: _Case, body: Mapping[str, Any]) -> Granted:
    request, state = case.request, pen.state
    alerts, opened = [*_alerts(case)], _first_charges(case, state)
    accounts = [gate.id for gate, _ in case.pairs]
    facts: dict[str, Any] = {**body, "owner": request.owner, "accounts": accounts}
    if request.release_key is not None:
        facts["key"] = request.release_key
    if request.planned:
        facts["planned"] = request.plan
    if case.cover is not None and case.drawn:
        held = {"held": case.cover.held} if case.cover.held else {}
        facts["preflight"] = {"id": case.cover.preflight, **held}
    told: dict[str, list[str]] = {}
    for alert in alerts:
        told.setdefault(alert.account, []).append(alert.threshold)
    if told:
        facts["told"] = told
    amounts = {gate.id: amount.amounts for gate, amount in case.pairs}
    entry = pen.write("reserve", amounts, facts, charge=request.reservation)
    if (length := len(entry.columns.rows)) > MOST_TEXT:
        fit = len(request.partitions) * MOST_TEXT // length
        msg = (
            f"step {request.step!r} reads {len(request.partitions):,} parts, too many "
            f"for one entry of the journal. Nothing was charged. Read at most {fit:,} "
            "parts in a step."
        )
        raise ConfigurationError(msg)
    return Granted(
        reservation=request.reservation,
        accounts=tuple(accounts),
        alerts=tuple(alerts),
        beyond=case.cover is not None and not case.drawn,
        opened=tuple(opened),
    )


def _body(case: _Case) -> dict[str, Any]:
    request, cover = case.request, case.cover
    gates = [gate for gate, _ in case.asked]
    told: dict[str, Any] = {
        **request.body,
        **request.told(),
        "policy": {term.book: term.facts["policy_hash"] for term in case.terms},
        "release_key": request.key_text or None,
        "units": {gate.id: gate.size for gate in gates if gate.size != 1},
    }
    if arguments := {k: v for k, v in (request.arguments or {}).items() if v}:
        told["arguments"] = arguments
    if request.covers is not None:
        told["covers"] = request.covers
    if cover is not None:
        told |= cover.told()
    return told


# What is told once


def _alerts(case: _Case) -> Iterator[Alert]:
    """Yield the thresholds of policies that a charge is the first to reach."""
    policies = (*case.request.policies, *case.request.populations)
    thresholds = {policy.dataset: _thresholds(policy) for policy in policies}
    for gate, added in case.added:
        used, told = gate.used + added, {} if gate.row is None else gate.row.told
        for threshold in thresholds[gate.dataset]:
            if not gate.uses(used, threshold):
                break
            if number_text(threshold) not in told:
                yield Alert(
                    dataset=gate.dataset,
                    account=gate.id,
                    gate=gate.kind,
                    name=gate.name,
                    threshold=number_text(threshold),
                    used_fraction=gate.used_share(used) or 0.0,
                )


@by_identity
def _thresholds(policy: Policy) -> list[Fraction]:
    return [Fraction(threshold) for threshold in policy.alerts]


def _first_charges(case: _Case, state: State) -> list[TermOpened]:
    """Return the terms that nothing was charged to before."""
    return [
        TermOpened(
            dataset=term.book,
            account=f"{term.book}#{term.number}",
            term=term.number,
            reason=term.facts["reason"],
            epsilon=str(term.facts["pinned"]["budget"]["epsilon"]),
            delta=str(term.facts["pinned"]["budget"]["delta"]),
        )
        for term in case.terms
        if state.account(f"{term.book}#{term.number}") is None
    ]
