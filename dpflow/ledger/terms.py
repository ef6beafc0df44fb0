"""Terms: stretches of a dataset's life under one set of pinned policy fields.

The ledger's applied copy governs. A file is compared with it by what it declares; the
rules come from what was pinned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.theorem import Rule
from dpflow.exceptions import LedgerCorrupt, PolicyChanged, PolicyNotApplied
from dpflow.ledger.account import (
    Account,
    account_from_row,
    now,
    open_account,
    read_account,
    rule_from_text,
)
from dpflow.ledger.database import Row, Session
from dpflow.ledger.memo import by_identity
from dpflow.ledger.records import canonical, digest
from dpflow.ledger.writer import writer
from dpflow.policy import Policy
from dpflow.policy_copy import difference_lines
from dpflow.policy_population import PREFIX
from dpflow.rounding import number_from_text, number_text

FIRST = "first decision"
UNCHARGED = "nothing was charged before"
#: Reasons of terms that nobody applied in so many words; the next file may replace
#: such a term until something is charged.
BY_ITSELF = (FIRST, UNCHARGED)

#: Kinds of gates that a flow adds, in the order in which they are asked.
OF_FLOW = ("flow", "odometer")
#: Of one copy; a decision asks for few.
_MOST_GATES = 256

#: Entries that say that data may have been read, or that usage was raised.
_QUIET = (
    *("open", "reserve", "void", "refuse", "tighten", "freeze", "thaw"),
    *("draw", "seal"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term as the ledger holds it.

    Attributes:
        pinned: The fields on which the guarantee rests, with derived numbers.
        declared: What the policy declared, as canonical JSON; None for old terms.
        because: Why it was opened.
    """

    dataset: str
    number: int
    pinned: Mapping[str, Any]
    declared: str | None
    policy_hash: str
    opened_at: str
    opened_by: str
    because: str

    @property
    def account(self) -> str:
        """Id of the whole dataset's account."""
        return f"{self.dataset}#{self.number}"

    @property
    def officers(self) -> tuple[str, ...]:
        """Who may apply policies and thaw; empty if anyone may."""
        return tuple(self.pinned.get("officers", ()))

    def covers_flow(self, flow: str | None) -> bool:
        """Say whether a flow may use the dataset at all."""
        return flow in self.pinned["flows"] or self.pinned["other_flows"] == "allow"

    def agrees(self, policy: Policy) -> bool:
        """Say whether a file asks for what the ledger has pinned."""
        if self.declared == _declared_text(policy):
            return True
        return canonical(self.pinned) == canonical(policy.pinned())

    def differences(self, policy: Policy) -> list[str]:
        """Return how a file differs, in lines; none if it agrees."""
        if self.agrees(policy):
            return []
        if self.declared is None:
            return policy.differences(self.pinned)
        return difference_lines(json.loads(self.declared), policy.declared())


def newest_term(session: Session, dataset: str) -> Term | None:
    """Return the term that governs a dataset; None if nothing was applied yet."""
    rows = session.rows("newest_term", dataset=dataset)
    return _from_row(rows[0]) if rows else None


def all_terms(session: Session, dataset: str) -> list[Term]:
    """Return the terms of a dataset, oldest first."""
    return [_from_row(row) for row in session.rows("list_terms", dataset=dataset)]


def governing_term(
    session: Session, policy: Policy, *, applies: bool, facts: Mapping[str, Any]
) -> Term:
    """Return the term under which a step is decided.

    Args:
        session: The caller's transaction.
        policy: The file, which must agree with the ledger's copy.
        applies: Whether a policy that nothing was charged under is applied at once.
        facts: Who decides, for the journal.

    Raises:
        PolicyChanged: If the file differs from the copy that governs.
        PolicyNotApplied: If there is no copy, and a person has to apply it.
    """
    term = newest_term(session, policy.dataset)
    if term is not None and term.agrees(policy):
        return term
    if term is not None and not (applies and may_be_replaced(session, term)):
        raise _changed(term, policy)
    if not applies or policy.officers:
        named = ", ".join(policy.officers)
        whose = f"an officer ({named}) has to" if policy.officers else "someone must"
        msg = (
            f"the ledger has not applied the policy of dataset {policy.dataset!r}; "
            f"{whose} run `dpflow policy apply {policy.dataset}`. The step did not run."
        )
        raise PolicyNotApplied(msg, dataset=policy.dataset)
    because = FIRST if term is None else UNCHARGED
    number = 1 if term is None else term.number + 1
    return open_term(session, policy, number=number, because=because, facts=facts)


def open_term(
    session: Session,
    policy: Policy,
    *,
    number: int,
    because: str,
    facts: Mapping[str, Any],
) -> Term:
    """Open a term and, with it, the dataset's account, which tells why."""
    text = canonical(policy.pinned())
    session.post(
        "open_term",
        dataset=policy.dataset,
        number=number,
        pinned=text,
        declared=canonical(policy.declared()),
        policy_hash=digest(text),
        at=now(),
        writer=writer(),
        because=because,
    )
    term = newest_term(session, policy.dataset)
    if term is None or term.number != number:
        msg = f"term {number} of dataset {policy.dataset!r} was opened and is not there"
        raise LedgerCorrupt(msg)
    facts = {**facts, "because": because, "policy": term.policy_hash}
    kind = "population" if policy.dataset.startswith(PREFIX) else "dataset"
    open_gate(session, term, kind, "", facts)
    return term


# Gates


def gate_of(
    term: Term, kind: str, name: str
) -> tuple[dict[str, Any], Fraction | None] | None:
    """Return the pinned rule and halt of an account; None if the term asks for none."""
    return pinned_gate(term.pinned, kind, name)


def pinned_gate(
    pinned: Mapping[str, Any], kind: str, name: str
) -> tuple[dict[str, Any], Fraction | None] | None:
    """Return what a pinned copy says of an account, as `gate_of` does."""
    if kind in ("dataset", "partition", "population"):
        # All partitions by time together have a cap of their own, if any.
        whole = pinned.get("whole") if kind == "dataset" else None
        return {"role": "filter", **(whole or pinned["filter"])}, None
    share = pinned["flows"].get(name, {})
    if kind == "flow":
        rule = share.get("filter")
        return None if rule is None else ({"role": "filter", **rule}, None)
    rule = share.get("odometer", pinned["odometer"])
    if kind != "odometer" or rule is None:
        return None
    text = share.get("halt_at_epsilon")
    halt = None if text is None else number_from_text(text)
    return {"role": "odometer", **rule}, halt


def taken_off(pinned: Mapping[str, Any], kind: str, name: str) -> bool:
    """Say whether an account is a flow's that may not use the dataset any more.

    Its gate stays as it was, and no step asks it.
    """
    allowed = name in pinned["flows"] or pinned["other_flows"] == "allow"
    return kind in OF_FLOW and not allowed


def gate_place(term: Term, kind: str, name: str, partition: str = "") -> str:
    """Return the id of a gate's account."""
    base = f"{term.account}/partition/{partition}" if partition else term.account
    return f"{base}/{kind}/{name}" if name else base


def open_gate(
    session: Session,
    term: Term,
    kind: str,
    name: str,
    facts: Mapping[str, Any],
    *,
    partition: str = "",
) -> Account | None:
    """Read the account of a gate, or open it; None if the term asks for none.

    Args:
        session: The caller's transaction.
        term: The term that governs.
        kind: "dataset", "population", "partition", "flow" or "odometer".
        name: Of the flow or partition.
        facts: Who decides, for the journal.
        partition: The partition that a flow's gate belongs to.

    Raises:
        LedgerCorrupt: If the account has another gate than its term.
    """
    gate = _gate_rule(term.pinned, kind, name)
    if gate is None:
        return None
    rule, halt = gate
    place = gate_place(term, kind, name, partition)
    account = read_account(session, place)
    if account is None:
        names = {"dataset": term.dataset, "term": term.number}
        return open_account(
            session,
            place,
            rule=rule,
            halt=None if halt is None else number_text(halt),
            writer=writer(),
            facts=facts,
            **names,
            kind=kind,
            name=name,
        )
    if not _same_rule(account.rule, rule) or account.halt != halt:
        msg = (
            f"the gate of account {account.id!r} is not the one that its term pinned. "
            "Someone edited the ledger, or it is damaged: restore a backup before any "
            "further step."
        )
        raise LedgerCorrupt(msg)
    return account


_GateRule = tuple[Rule, Fraction | None]


def _gate_rule(pinned: Mapping[str, Any], kind: str, name: str) -> _GateRule | None:
    """Return the rule and halt that a pinned copy, which never changes, asks for."""
    known = _gate_rules(pinned)
    if (kind, name) not in known:
        gate = pinned_gate(pinned, kind, name)
        if len(known) >= _MOST_GATES:
            known.clear()
        known[kind, name] = gate and (rule_from_text(canonical(gate[0])), gate[1])
    return known[kind, name]


@by_identity
def _gate_rules(pinned: Mapping[str, Any]) -> dict[tuple[str, str], _GateRule | None]:  # noqa: ARG001
    return {}


@by_identity
def _same_rule(found: Rule, pinned: Rule) -> bool:
    return found == pinned


@by_identity
def _declared_text(policy: Policy) -> str:
    return canonical(policy.declared())


# What was charged


def accounts_of_term(session: Session, term: Term) -> list[Account]:
    """Return all accounts of a term, each checked against its newest entry."""
    rows = session.rows("list_accounts", dataset=term.dataset)
    found = [read_account(session, r["id"]) for r in rows if r["term"] == term.number]
    return [account for account in found if account is not None]


def is_charged(session: Session, term: Term) -> bool:
    """Say whether a step may have read data under a term, at whatever cost.

    A void proves that its step did not. A step whose realised cost is zero did.
    """
    rows = [
        row
        for row in session.rows("list_accounts", dataset=term.dataset)
        if row["term"] == term.number
    ]
    accounts = [account_from_row(row) for row in rows]
    if any((a.settled, a.held) != (a.rule.zero(),) * 2 for a in accounts):
        return True
    return any(has_charges(session, account.id) for account in accounts)


def has_charges(session: Session, account: str) -> bool:
    """Say whether a step may have read data under an account, at whatever cost."""
    rows = session.rows("entries_by_kind", account=account)
    counts = {row["kind"]: int(row["entries"]) for row in rows}
    # No body runs under a preflight; its steps have reservations of their own.
    unread = counts.get("void", 0) + counts.get("seal", 0)
    unended = counts.get("reserve", 0) > unread
    return unended or any(kind not in _QUIET for kind in counts)


def frozen_by(session: Session, dataset: str) -> Mapping[str, Any] | None:
    """Return the facts of a dataset's freeze; None if it is not frozen."""
    term = newest_term(session, dataset)
    rows = [] if term is None else session.rows("read_account", id=term.account)
    if not rows or rows[0]["state"] != "frozen":
        return None
    told = session.rows("newest_of_kind", account=rows[0]["id"], kind="freeze")
    return {**json.loads(told[0]["body"]), "at": told[0]["at"]} if told else {}


def may_be_replaced(session: Session, term: Term) -> bool:
    """Say whether the next file may take an uncharged term's place by itself.

    Not if any term was charged, for then the lifetime decides; not one that a person
    applied; and not while the dataset is frozen, which a new account would not be.
    """
    return (
        term.because in BY_ITSELF
        and not term.officers
        and frozen_by(session, term.dataset) is None
        and not any(is_charged(session, t) for t in all_terms(session, term.dataset))
    )


def _changed(term: Term, policy: Policy) -> PolicyChanged:
    differences = term.differences(policy)
    msg = (
        f"the policy of dataset {policy.dataset!r} is not the one that the ledger has "
        f"applied (term {term.number}): {'; '.join(differences)}. The ledger's copy "
        f"governs: undo the edit, or see `dpflow policy diff {policy.dataset}`, which "
        "says what applying it would do. The step did not run."
    )
    return PolicyChanged(msg, dataset=policy.dataset, differences=differences)


def _from_row(row: Row) -> Term:
    text = row["pinned"]
    if digest(text) != row["policy_hash"]:
        msg = (
            f"term {row['number']} of dataset {row['dataset']!r} does not hold the "
            "policy that was applied. Someone edited the ledger, or it is damaged: "
            "restore a backup before any further step."
        )
        raise LedgerCorrupt(msg)
    return Term(
        dataset=row["dataset"],
        number=int(row["number"]),
        pinned=_parsed(text),
        declared=row["declared"],
        policy_hash=row["policy_hash"],
        opened_at=row["opened_at"],
        opened_by=row["opened_by"],
        because=row["because"],
    )


@lru_cache(maxsize=256)
def _parsed(text: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(text)
    return found
