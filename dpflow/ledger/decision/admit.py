"""The decision about one request: replay, wait, refuse or hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from dpflow.accounting.costs.text import python_form
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    ReservationConflict,
)
from dpflow.ledger.decision.alerts import thresholds_of
from dpflow.ledger.decision.fitting import (
    first_fitting_part,
    fitting_factor,
    in_windows,
    window_fact,
    with_parts_near,
)
from dpflow.ledger.decision.gates import Gate, accounts_of, gates_of
from dpflow.ledger.decision.refusal import Refusal, journaled, refusal_error
from dpflow.ledger.decision.settlement import known_charge
from dpflow.ledger.decision.terms import policies_of, terms_of
from dpflow.ledger.entry import canonical
from dpflow.ledger.journal import KINDS
from dpflow.ledger.model import Command, Decision, accounts_near, newest_terms
from dpflow.ledger.records import (
    Busy,
    Granted,
    Replayed,
    Request,
    cost_text,
)
from dpflow.ledger.rows import (
    Charge,
    Release,
    Term,
    account_key,
    granted_key,
)
from dpflow.ledger.state import State, charge_keys

#: Characters of what an entry says of its keys.
MOST_TEXT = 16 * 2**20
#: Causes of a refusal that no noise and no smaller step changes, and all others.
_NEVER, _OTHERS = ("frozen", "closed"), ("halted", "overdrawn", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve(Command):
    """Hold a step's worst case, or find its release."""

    guarded: ClassVar[bool] = True

    request: Request

    def keys(self, state: State) -> Iterator[str]:
        """Yield the accounts of every gate, the release, the runs, what was granted."""
        request, rows = self.request, state.rows
        yield "repairs"
        yield from (f"claim/{p.source}" for p in request.policies if p.source)
        yield from charge_keys(state, request.reservation)
        if request.release_key is not None:
            key = f"release/{request.release_key}"
            yield key
            if release := rows.get(key):
                yield from charge_keys(state, release["charge"])
        for run in filter(None, (request.flow_run, *request.enclosing_runs)):
            yield f"run/{run}"
        for policy in (*request.policies, *request.populations):
            book = policy.dataset
            yield from newest_terms(state, book)
            number = max((rows.get(f"book/{book}") or {"term": 1})["term"], 1)
            # Older terms decide whether an uncharged one gets its first charge.
            if account_key(f"{book}#{number}") in state.loaded - rows.keys():
                yield from (account_key(f"{book}#{n}") for n in range(1, number))
            length = policy.window.length if policy.window else 0
            for name in accounts_of(policy, request, number):
                yield account_key(name)
                yield granted_key(request.step, name)
                near = accounts_near(name, length, length) if length else ()
                yield from (account_key(other) for _, other in near)

    def charges_met(self, state: State) -> Iterable[str | None]:
        """Return the charge that makes its release."""
        release = state.release(self.request.release_key)
        return (release and release.charge,)

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
            return pen.answered(_sent_before(request, charge), earlier=[charge.made])
        before = released(state, request)
        if before is not None:
            return pen.answered(before)
        case = _case(pen, request)
        return pen.answered(_refused(case) or _held(case))


class _Case(NamedTuple):
    """A request with its gates and the amount for each account.

    Attributes:
        pairs: The gate of each account, with the price.
        body: What the journal keeps of the request, whatever the answer.
    """

    pen: Decision
    request: Request
    terms: Sequence[Term]
    pairs: Sequence[tuple[Gate, Tally]]
    body: Mapping[str, Any]


def _sent_before(request: Request, charge: Charge) -> Granted:
    """Answer an id that was sent before exactly as it was answered then."""
    made = charge.made.body
    mine = (charge.owner, charge.state) == (request.owner, "open")
    if not (mine and request.made(made)):
        msg = (
            f"reservation {request.reservation} was made for another request or is "
            f"{charge.state} already; every execution needs an id of its own"
        )
        raise ReservationConflict(msg, reservation=request.reservation)
    return Granted(reservation=charge.id, accounts=tuple(made["accounts"]))


def released(state: State, request: Request) -> Replayed | Busy | None:
    """Look the release key up: replay it, wait for a live claim, or go on."""
    release = state.release(request.release_key)
    if release is None:
        return None
    if any(state.book(name).frozen is not None for name in request.locked):
        # Frozen means that nothing is answered, be it free: the gates refuse.
        return None
    charge = known_charge(state, release.charge)
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
        ReservationConflict: If its value was not stored, or it answers other arguments,
            or the step refuses another cost.
    """
    made, value = charge.made.body, state.values.get(release.key)
    mine, before = request.arguments or {}, made.get("arguments", {})
    differ = [
        name
        for name in sorted({*mine, *before} - {""})
        if mine.get(name, "") not in {before.get(name), None}
    ]
    changed = canonical(made["cost"]) != cost_text(request.cost)
    made_at = python_form(made["cost"]) if changed else None
    if release.digest is None and request.arguments is not None:
        why = "was charged, but its value was not kept. Return what can be kept"
    elif value is None:
        return None
    elif before.get("") not in {None, *request.makers}:
        why = (
            f"belongs to another function than {next(iter(request.makers.values()))!r}."
            " If the function was moved or renamed, say moved_from= with its former "
            'file and name, such as "flows/old.py:count"; else give each function its '
            "own release_key= or name="
        )
    elif differ:
        why = (
            f"was made for another value of {', '.join(differ)}. Write what "
            "distinguishes the two into release_key=, or ignore=(...) if the output "
            "does not depend on it"
        )
    elif changed and request.on_change == "refuse":
        why = (
            f"was made at {made_at}, the step declares {request.cost!r} now, and it "
            'says on_change="refuse". Remove that to replay it'
        )
    else:
        name, digest = charge.id, str(release.digest)
        return Replayed(reservation=name, value=value, digest=digest, made_at=made_at)
    msg = (
        f"release {request.key_text!r} of step {made['step']!r} {why}; fresh=True "
        "draws it anew, at a new charge."
    )
    raise ReservationConflict(msg, release_key=request.key_text)


def _case(pen: Decision, request: Request) -> _Case:
    """Find every account that a request is charged to, and price it there."""
    if foreign := KINDS["reserve"].facts & request.body.keys():
        msg = (
            f"step {request.step!r} says {min(foreign)!r} in its facts for the "
            "journal, which the ledger itself writes. Nothing was charged. Omit it."
        )
        raise ConfigurationError(msg)
    terms = terms_of(pen, request)
    gates = gates_of(pen.state, request, terms)
    gates = [with_parts_near(pen.state, gate, request.partitions) for gate in gates]
    pairs = in_windows([(gate, gate.price(request.cost)) for gate in gates])
    arguments = {k: v for k, v in (request.arguments or {}).items() if v}
    body: dict[str, Any] = {
        **request.body,
        **request.facts(),
        **policies_of(terms),
        "release_key": request.key_text or None,
        "units": {gate.id: gate.size for gate in gates if gate.size != 1},
        **_said(arguments=arguments),
        **window_fact(gates),
    }
    return _Case(pen, request, terms, pairs, body)


def _said(**facts: Any) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact}


# Refusing


def _refused(case: _Case) -> BudgetRefused | None:
    """Refuse a request that a gate does not admit, with an entry; None if all do."""
    request, refusals = case.request, _refusals(case)
    if not refusals:
        return None
    error = _error(case, refusals)
    # An odometer halts the flow run even where another gate refused first; a frozen
    # one says nothing about the run.
    halts = [
        refusal.gate.id
        for refusal in refusals
        if refusal.gate.kind == "odometer" and refusal.cause not in _NEVER
    ]
    runs = (*request.enclosing_runs, request.flow_run)
    first = refusals[0].gate.id
    facts = {
        **case.body,
        **journaled(error),
        "account": first,
        "accounts": [*dict.fromkeys((first, *halts))],
        "runs": [run for run in dict.fromkeys(runs) if run is not None],
        "halts": halts,
    }
    case.pen.write("refuse", {}, facts, charge=request.reservation)
    return error


def _refusals(case: _Case) -> list[Refusal]:
    """Return the gates that do not admit a request, the first cause first."""
    run, causes = case.request.flow_run, (*_NEVER, *_OTHERS)
    halted = () if run is None else case.pen.state.run(run).halted
    refusals = []
    for gate, amount in case.pairs:
        if gate.state == "frozen":
            cause = "frozen"
        elif gate.closed:
            cause = "closed"
        elif gate.id in halted:
            cause = "halted"
        elif not gate.admits(amount):
            cause = "full" if gate.state == "open" else gate.state
        else:
            continue
        refusals.append(Refusal(gate, amount, cause))
    return sorted(refusals, key=lambda r: min(causes.index(r.cause), len(_NEVER)))


def _error(case: _Case, refusals: Sequence[Refusal]) -> BudgetRefused:
    """Build the error of the first account that refuses a request."""
    state, first = case.pen.state, refusals[0]
    halted = any(refusal.cause == "halted" for refusal in refusals)
    factor = None
    if first.cause == "full" and not halted:
        gates = tuple(gate._replace(row=None, rest=None) for gate, _ in case.pairs)
        factor = fitting_factor(gates, case.request.cost)
    # Other gates that refuse admit no later part.
    by_windows = all(r.gate.window and r.cause == "full" for r in refusals)
    most = state.granted(case.request.step, first.gate.id)
    # A correction is of its own part: a later one is no way out.
    release = state.release(case.request.release_key)
    corrects = release is not None and release.digest is not None
    before = most is not None and first.amount.fits_within(Tally(most))
    exhausted = before and first.cause not in _NEVER
    return refusal_error(
        case.request,
        first,
        BudgetExhausted if exhausted else BudgetRefused,
        frozen=state.book(first.gate.dataset).frozen,
        halted=halted,
        factor=factor,
        again=first_fitting_part(case.pairs) if by_windows and not corrects else None,
    )


# Holding


def _held(case: _Case) -> Granted:
    """Hold a request on all its accounts, with an entry."""
    request, state = case.request, case.pen.state
    opened = [term for term in case.terms if state.account(term.whole) is None]
    accounts = [gate.id for gate, _ in case.pairs]
    facts = {**case.body, "owner": request.owner, "accounts": accounts}
    facts |= _said(
        key=request.release_key,
        alert_at=thresholds_of((*request.policies, *request.populations)),
    )
    amounts = {gate.id: amount.amounts for gate, amount in case.pairs}
    entry = case.pen.write("reserve", amounts, facts, charge=request.reservation)
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
        opened=tuple(opened),
    )
