"""The decision about one step: replay, wait, refuse or hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import BudgetExhausted, BudgetRefused, ConfigurationError
from dpflow.ledger.account_ids import split
from dpflow.ledger.canonical import by_identity, canonical, digest
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.gates import Gate, gates_of
from dpflow.ledger.decisions.refusals import Refusal, describe_refusal, refusal_error
from dpflow.ledger.decisions.releases import answer_sent_charge, find_release
from dpflow.ledger.decisions.suggestions import (
    first_fitting_part,
    fitting_factor,
    in_windows,
    with_parts_near,
)
from dpflow.ledger.decisions.terms import (
    TermChange,
    check_populations,
    find_term,
    write_term,
)
from dpflow.ledger.requests import Granted, Request, describe_cost
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import (
    Charge,
    ChargeDataset,
    Held,
    Release,
    Run,
    Term,
    request_text,
)
from dpflow.policy import Policy
from dpflow.rounding import number_text

#: Characters of the postings of an entry.
MOST_TEXT = 16 * 2**20
#: So many parts are never too long for an entry.
_MANY = 1000
#: Causes of a refusal that no noise and no smaller step changes; they come first.
_NEVER = ("frozen", "closed")


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A step with its gates and the amount for each account.

    Attributes:
        request: The step.
        rows: Rows of the ledger, with the terms that the step opens.
        terms: Terms of its datasets and populations.
        opened: Those that the step opens.
        charges: The gate of each account once, with its amount.
        author: Who asks.
    """

    request: Request
    rows: Rows
    terms: Sequence[Term]
    opened: Sequence[TermChange]
    charges: Sequence[tuple[Gate, Tally]]
    author: Author

    def begin_decision(self) -> Decision:
        """Return a decision that writes the terms which the step opens."""
        decision = Decision(self.author)
        for term in self.opened:
            write_term(decision, term)
        return decision


class Refused(NamedTuple):
    """A step that gates do not admit; `decide_refusal` finds the words.

    Attributes:
        step: The priced step.
        refusals: Gates that do not admit it, the first cause first.
    """

    step: PricedStep
    refusals: Sequence[Refusal]


def decide_reserve(rows: Rows, request: Request, author: Author) -> Decision | Refused:
    """Decide whether a step may run.

    A released key replays at no cost, whatever the budget. A key that another step is
    drawing waits. Only then is each gate consulted.

    Args:
        rows: Rows of the ledger.
        request: The step.
        author: Who asks.

    Raises:
        DpflowError: For a request that cannot be decided.
    """
    if rows.charge is not None:
        return answer_sent_charge(rows, rows.charge, request)
    earlier = find_release(rows, request)
    if earlier is not None:
        return Decision(answer=earlier)
    step = price_step(rows, request, author)
    refusals = find_refusals(step)
    if refusals:
        return Refused(step, refusals)
    return grant(step)


# Gates


def price_step(rows: Rows, request: Request, author: Author) -> PricedStep:
    """Find every account that a step is charged to, and price the step there."""
    check_populations(request)
    terms, opened = list[Term](), list[TermChange]()
    for policy in (*request.policies, *request.populations):
        term = find_term(rows, policy, author)
        if isinstance(term, TermChange):
            opened.append(term)
            rows = rows.with_term(term.after, term.term)
            term = term.term
        terms.append(term)
    gates = [
        with_parts_near(rows, gate, request.partitions)
        for gate in gates_of(rows, request, terms)
    ]
    charges = in_windows([(gate, gate.price(request.cost)) for gate in gates])
    return PricedStep(request, rows, terms, opened, charges, author)


def find_refusals(step: PricedStep) -> list[Refusal]:
    """Return the gates that do not admit a step, the first cause first."""
    run, refusals = step.request.flow_run, list[Refusal]()
    halted = {
        account
        for (name, _), row in step.rows.runs.items()
        if name == run
        for account in row.halted
    }
    for gate, amount in step.charges:
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
    return sorted(refusals, key=order_refusal)


def order_refusal(refusal: Refusal) -> tuple[int, bool, float]:
    """Return a key by which the fullest filter comes first, and odometers last."""
    gate, cause = refusal.gate, refusal.cause
    first = _NEVER.index(cause) if cause in _NEVER else len(_NEVER)
    share = gate.measure_use(gate.total) or 0.0
    return first, gate.kind == "odometer", -share


# Refusing


def decide_refusal(rows: Rows, refused: Refused) -> Decision:
    """Refuse a step, with an entry.

    Args:
        rows: Rows of the ledger, with the amounts of earlier charges of the step.
        refused: The gates that do not admit it.
    """
    step, refusals = refused
    decision = step.begin_decision()
    decision.answer = build_refusal(refused, rows.earlier_amounts)
    # An odometer halts the flow run even where another gate refused first; a frozen
    # one says nothing about the run.
    halts = [
        refusal.gate.id
        for refusal in refusals
        if refusal.gate.kind == "odometer" and refusal.cause not in _NEVER
    ]
    fields, account = describe_priced(step), refusals[0].gate.id
    write_refusal(decision, step.rows, step.request, account, fields, halts=halts)
    return decision


def decide_refusal_of_run(
    rows: Rows, author: Author, request: Request, gate: Gate, amount: Tally
) -> Decision:
    """Refuse the first step of a flow run that cannot end, with an entry.

    Args:
        rows: Rows with the dataset of the gate and the runs of the request.
        author: Who asks.
        request: The first step of the run that would be charged.
        gate: The gate that a whole run would not pass.
        amount: Amount of the rest of a whole run.
    """
    error = refusal_error(request, Refusal(gate, amount, "run"), BudgetExhausted)
    decision = Decision(author, answer=error)
    run_amount = dict(gate.rule.label(amount))
    fields = {**describe_request(request), "whole_run": run_amount}
    write_refusal(decision, rows, request, gate.id, fields)
    return decision


def write_refusal(
    decision: Decision,
    rows: Rows,
    request: Request,
    account: str,
    fields: Mapping[str, Any],
    *,
    halts: Sequence[str] = (),
) -> None:
    """Append the entries of a refusal, and count it in the flow runs around the step.

    Args:
        decision: The decision, whose answer is the error.
        rows: Rows with the runs of the request.
        request: The refused step.
        account: The first account that refuses.
        fields: Facts of the step.
        halts: Odometers that halt the flow run.
    """
    runs, first = request.runs, split(account)[0]
    about = request.reservation, request.step, request.flow, request.flow_run
    body = {
        **decision.author.provenance,
        **fields,
        **describe_refusal(decision.answer),
        "account": account,
        "accounts": [*dict.fromkeys((account, *halts))],
        **without_empty(halts=halts, runs=runs),
    }
    by_dataset: dict[str, list[str]] = {first: []}
    for halt in halts:
        by_dataset.setdefault(split(halt)[0], []).append(halt)
    for name, halted in by_dataset.items():
        short = {"account": account, "halts": halted, "refused_in": first}
        stated = body if name == first else short
        decision.append(rows.book(name), "refuse", body=stated, about=about)
        for run in runs:
            row = rows.runs.get((run, name)) or Run(run, name, request.flow)
            gates = [*row.halted, *(halted if run == request.flow_run else ())]
            refusals, halted_by = row.refusals + (name == first), dict.fromkeys(gates)
            row = row._replace(refusals=refusals, halted=tuple(halted_by))
            decision.changes.append(("put_run", row))


def build_refusal(
    refused: Refused, earlier_amounts: Iterable[Mapping[str, Any]]
) -> BudgetRefused:
    """Build the error of the first account that refuses a step."""
    step, refusals = refused
    first, causes = refusals[0], {refusal.cause for refusal in refusals}
    account, frozen = first.gate.id, step.rows.book(first.gate.dataset).frozen
    first = first._replace(frozen=frozen, is_halted="halted" in causes)
    if first.cause == "full" and not first.is_halted:
        gates = tuple(
            gate._replace(row=None, neighbours=None) for gate, _ in step.charges
        )
        first = first._replace(factor=fitting_factor(gates, step.request.cost))
    # Other gates that refuse admit no later part. A correction is of its own part: a
    # later one is no way out.
    release = step.rows.release
    corrects = release is not None and release.state != "free" and bool(release.digest)
    by_windows = causes == {"full"} and all(r.gate.window for r in refusals)
    if by_windows and not corrects:
        first = first._replace(again=first_fitting_part(step.charges))
    before = any(
        first.amount.fits_within(Tally(tuple(amounts[account][0])))
        for amounts in earlier_amounts
        if account in amounts and any(amounts[account][0])
    )
    is_exhausted = before and first.cause not in _NEVER
    kind = BudgetExhausted if is_exhausted else BudgetRefused
    return refusal_error(step.request, first, kind)


# Holding


def grant(step: PricedStep) -> Decision:
    """Hold the step's amount on each gate's account, and claim its release key."""
    rows, request, author = step.rows, step.request, step.author
    decision = step.begin_decision()
    amounts = dict[str, Held]()
    for gate, amount in step.charges:
        zero = gate.rule.zero().amounts
        after = decision.post(rows, gate.id, (zero, amount.amounts))
        used = None if gate.rule.steady else gate.used.amounts
        amounts[gate.id] = Held(amount.amounts, after.version, used)
    check_length(decision.postings, request)
    maker = request.reservation, "open", request.owner, author.login
    run = request.step, request.flow, request.flow_run, request.release_key
    stated = {**author.provenance, **describe_priced(step), "accounts": [*amounts]}
    charge = Charge(*maker, *run, stated, amounts)
    decision.changes.append(("insert_charge", charge))
    write_reserve_entries(decision, rows, charge)
    if request.release_key is not None:
        key = request.release_key, request.key_text, min(request.datasets)
        arguments = dict(request.arguments or {}) or None
        release = Release(*key, request.step, charge.id, "claimed", None, arguments)
        decision.changes.append(("put_release", release))
    opened = tuple(term for term in step.terms if rows.account(term.root) is None)
    decision.answer = Granted(charge.id, tuple(amounts), opened)
    return decision


def write_reserve_entries(decision: Decision, rows: Rows, charge: Charge) -> None:
    """Append an entry to the journal of each dataset of a charge."""
    names = decision.postings
    numbers = {name: decision.number_after(rows.book(name)) for name in names}
    stated = digest(request_text(charge.request))
    for name, posted in decision.postings.items():
        body: dict[str, Any] = {"request": stated}
        if len(numbers) > 1:
            body["with"] = [[other, n] for other, n in numbers.items() if other != name]
        dataset, about = rows.book(name), charge.about
        decision.append(dataset, "reserve", postings=posted, body=body, about=about)
        part = ChargeDataset(
            name, numbers[name], charge.id, None, charge.flow, charge.step
        )
        decision.changes.append(("insert_charge_dataset", part))


def check_length(postings: Mapping[str, Any], request: Request) -> None:
    """Refuse a step whose entry would be too long.

    Raises:
        ConfigurationError: If it reads too many parts.
    """
    parts = len(request.partitions)
    length = len(canonical(postings)) if parts > _MANY else 0
    if length > MOST_TEXT:
        fit = parts * MOST_TEXT // length
        msg = (
            f"step {request.step!r} reads {parts:,} parts, too many for one entry of "
            f"the journal. Nothing was charged. Read at most {fit:,} parts in a step."
        )
        raise ConfigurationError(msg)


def describe_request(request: Request) -> dict[str, Any]:
    """Return what the ledger keeps of a request."""
    return {
        **request.body,
        "cost": describe_cost(request.cost),
        "datasets": request.datasets,
        "partitions": [*request.partitions],
        **without_empty(key_text=request.key_text),
    }


def describe_priced(step: PricedStep) -> dict[str, Any]:
    """Return what the ledger keeps of a request and its gates."""
    request = step.request
    policies = (*request.policies, *request.populations)
    arguments = {k: v for k, v in (request.arguments or {}).items() if v}
    return {
        **describe_request(request),
        "policy": {term.book: term.fields["policy_hash"] for term in step.terms},
        **without_empty(
            units={gate.id: gate.size for gate, _ in step.charges if gate.size != 1},
            arguments=arguments,
            alerts={p.dataset: alert_thresholds(p) for p in policies},
        ),
    }


@by_identity
def alert_thresholds(policy: Policy) -> list[str]:
    """Return the thresholds of use at which a policy raises alerts."""
    return [number_text(Fraction(threshold)) for threshold in policy.alerts]


def without_empty(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}
