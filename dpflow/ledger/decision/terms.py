"""Terms: which copy of a policy governs a step, and how the next one opens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dpflow.accounting.solving import before_solving
from dpflow.exceptions import (
    ConfigurationError,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger.decision.gates import gates_text, population_of
from dpflow.ledger.decision.lifetime import view_of
from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.model import Decision, rule_of
from dpflow.ledger.records import Request, TermView, by_identity, digest
from dpflow.ledger.rows import Term, split
from dpflow.ledger.state import State
from dpflow.policy import Policy
from dpflow.policy.lifetime import promise_of
from dpflow.policy.pinned import difference_lines

FIRST = "first decision"
UNCHARGED = "nothing was charged before"
#: Reasons of terms that a step opened; the next file may replace such a term until it
#: is charged.
BY_ITSELF = (FIRST, UNCHARGED)


def agrees(term: Term, policy: Policy) -> bool:
    """Say whether a file declares what the ledger has pinned."""
    if term.facts["declared"] == declared(policy):
        return True
    return canonical(term.facts["pinned"]) == canonical(pinned(policy))


@by_identity
def pinned(policy: Policy) -> dict[str, Any]:
    """Return what a term pins of a file, with solved numbers."""
    before_solving(lambda: pinned(policy))
    return policy.pinned()


@by_identity
def declared(policy: Policy) -> dict[str, Any]:
    """Return what a file declares."""
    return policy.declared()


def governing(pen: Decision, policy: Policy, *, applies: bool) -> Term:
    """Return the term under which a step is decided; open the first one.

    Raises:
        PolicyChanged: If the file differs from the copy that governs.
        PolicyNotApplied: If there is no copy, and a person has to apply it; or if a
            repair charged an older term since a step opened this one.
    """
    term = pen.state.newest(policy.dataset)
    if term is not None and agrees(term, policy):
        _check_first(pen.state, term)
        return term
    if term is not None and not (applies and may_be_replaced(pen.state, term)):
        raise _changed(term, policy)
    if not applies:
        msg = (
            f"the ledger has not applied the policy of dataset {policy.dataset!r}. An "
            f"operator has to run `dpflow policy apply {policy.dataset}`. The step did "
            "not run."
        )
        raise PolicyNotApplied(msg, dataset=policy.dataset)
    return opened(pen, policy, reason=FIRST if term is None else UNCHARGED)


def terms_of(pen: Decision, request: Request) -> list[Term]:
    """Return the term of each dataset that a request reads, and of its populations.

    Raises:
        ConfigurationError: If populations are missing.
        PolicyChanged: If a policy differs from the copy that governs.
        PolicyNotApplied: If a person has to apply it first.
    """
    policies = request.policies
    needed = {population_of(p) for p in policies if p.population is not None}
    given = {policy.dataset for policy in request.populations}
    if needed != given:
        msg = (
            f"the datasets {', '.join(request.datasets)} belong to the populations "
            f"{sorted(map(str, needed))}, and the request charges {sorted(given)}"
        )
        raise ConfigurationError(msg)
    return [
        governing(pen, policy, applies=pen.command.applies)
        for policy in (*policies, *request.populations)
    ]


def policies_of(terms: Iterable[Term]) -> dict[str, Any]:
    """Return the hash of each term's policy, and the currency of its amounts."""
    named = [*terms]
    return {
        "policy": {term.book: term.facts["policy_hash"] for term in named},
        "currency": {term.whole: term.facts["currency"] for term in named},
    }


def currency_of(pins: Mapping[str, Any], gates: Mapping[str, Any]) -> str:
    """Return a digest of what the amounts of a dataset mean in a term.

    Amounts of one digest may be posted to a term of an equal one.
    """
    some = filter(None, map(gates.get, ("dataset", "partition", "population")))
    rules = [rule_of(gate["rule"]).currency() for gate in some]
    return digest(canonical([pins["unit"], pins["relation"], rules]))[:16]


def check_currencies(state: State, lost: Iterable[tuple[str, str]]) -> None:
    """Refuse terms whose lost charges are in another currency.

    Args:
        state: With the terms.
        lost: Accounts of whole terms that lost charges, each with the currency of
            these; without a number for the newest term.

    Raises:
        ConfigurationError: If the amounts of a term mean something else.
    """
    for whole, currency in sorted(lost):
        book, number = split(whole)[:2]
        term = state.term(book, number)
        if term is not None and term.facts["currency"] != currency:
            msg = (
                f"term {term.number} of dataset {book!r} was opened with another "
                "filter, unit or relation than its lost charges, whose amounts mean "
                "something else there. Nothing was written. Put the policy file of "
                "that time back. If the term is charged, restore another backup."
            )
            raise ConfigurationError(msg, dataset=book)


def facts_of(policy: Policy) -> dict[str, Any]:
    """Return what the term of a file is opened with."""
    pins = pinned(policy)
    gates = gates_text(pins)
    promise = promise_of(pins, declared(policy), gates)
    return {"pinned": pins, "currency": currency_of(pins, gates), **promise}


def opened_as(policy: Policy, number: int = 1) -> TermView:
    """Return a file as a term."""
    return view_of({"number": number, **facts_of(policy)})


def opened(pen: Decision, policy: Policy, *, reason: str, **body: Any) -> Term:
    """Open the next term of a book.

    Args:
        pen: Writes its entry.
        policy: The file.
        reason: Why.
        **body: As of `pin`.
    """
    number = pen.state.book(policy.dataset).terms + 1
    # Only a person's term has further facts, and it is never taken for a step's.
    reason += " (applied)" * (bool(body) and reason in BY_ITSELF)
    term = {
        "number": number,
        **facts_of(policy),
        "reason": reason,
        "at": pen.command.at,
        "by": pen.command.writer,
    }
    entry = pin(pen, "open", policy, term, {**body, "reason": reason})
    return Term(policy.dataset, number, entry.number, entry.body["term"])


def pin(
    pen: Decision,
    kind: str,
    policy: Policy,
    term: Mapping[str, Any],
    body: Mapping[str, Any],
) -> Entry:
    """Write an entry that pins a copy of a policy's file.

    Args:
        pen: Writes it.
        kind: "open" or "tighten".
        policy: The file.
        term: Facts that its file does not declare: the copy with solved
            numbers as `pinned`, and gates, which stay where the copy has none.
        body: Further facts for the journal.
    """
    _check_alone(pen.state, policy)
    pins = term["pinned"]
    facts = {
        **term,
        "declared": declared(policy),
        "about": dict(policy.about),
        "policy_hash": digest(canonical(pins)),
        "gates": {**term.get("gates", {}), **gates_text(pins)},
    }
    said = {"policy": facts["policy_hash"], "book": policy.dataset, "term": facts}
    return pen.write(kind, {}, {**body, **said})


def may_be_replaced(state: State, term: Term) -> bool:
    """Say whether a step with the next file may replace an uncharged term.

    It replaces neither a term that a person applied nor one of a frozen dataset, nor
    one after a charged term: a repair may charge an older term later.
    """
    wholes = (f"{term.book}#{number}" for number in range(term.number, 0, -1))
    by_itself = term.facts["reason"] in BY_ITSELF
    is_open = state.book(term.book).frozen is None
    return by_itself and is_open and not any(map(state.account, wholes))


def is_behind(state: State, term: Term) -> bool:
    """Say whether an older term was charged since a step opened this uncharged one."""
    older = (f"{term.book}#{number}" for number in range(1, term.number))
    by_itself = term.facts["reason"] in BY_ITSELF
    is_first = state.account(term.whole) is None
    return by_itself and is_first and any(map(state.account, older))


def _check_first(state: State, term: Term) -> None:
    """Refuse the first charge of a term whose lifetime was not checked.

    Raises:
        PolicyNotApplied: If a step opened it while older terms had no charge.
    """
    if is_behind(state, term):
        msg = (
            f"a repair charged an older term of dataset {term.book!r} since a step "
            f"opened term {term.number}. The step did not run. Run `dpflow policy "
            f"apply {term.book} --new-term --reason TEXT`, which checks the lifetime."
        )
        raise PolicyNotApplied(msg, dataset=term.book)


def _changed(term: Term, policy: Policy) -> PolicyChanged:
    differences = difference_lines(term.facts["declared"], policy.declared())
    msg = (
        f"the policy of dataset {policy.dataset!r} is not the one that the ledger has "
        f"applied (term {term.number}): {'; '.join(differences)}. The ledger's copy "
        f"governs: undo the edit, or see `dpflow policy diff {policy.dataset}`, which "
        "says what applying it would do. The step did not run."
    )
    return PolicyChanged(msg, dataset=policy.dataset, differences=differences)


def other_claimant(
    state: State, source: str | None, book: str, population: str | None
) -> str | None:
    """Return another dataset that spends a source, if there is one.

    Under two names the same data would have two budgets. Datasets of one population
    are capped together.
    """
    claims = {} if source is None else state.claimed(source)
    for other, its_population in sorted(claims.items()):
        if other != book and not (its_population and its_population == population):
            return other
    return None


def _check_alone(state: State, policy: Policy) -> None:
    """Refuse a term on a source that another dataset of this ledger spends already.

    Raises:
        ConfigurationError: If there is one.
    """
    book = other_claimant(state, policy.source, policy.dataset, policy.population)
    if book is not None:
        msg = (
            f"the policy of dataset {policy.dataset!r} names the source "
            f"{policy.source!r} of {book!r}: under two names the same data would "
            f"have two budgets. Go on with {book!r}, or let one population cap "
            "both. The policy was not applied."
        )
        raise ConfigurationError(msg)
