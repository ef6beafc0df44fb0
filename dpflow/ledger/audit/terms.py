"""Terms of a dataset, checked again: their pinned copies and their lifetime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dpflow.ledger.account_ids import Term, split
from dpflow.ledger.canonical import canonical, digest
from dpflow.ledger.decisions.lifetimes import is_charged, lifetime_error, term_views
from dpflow.ledger.decisions.pinned_rules import gate_in
from dpflow.ledger.decisions.terms import BY_ITSELF
from dpflow.ledger.tables.loaded import Rows


def check_terms(
    rows: Rows, opening: Mapping[int, Mapping[str, Any]], add: Callable[[str], None]
) -> None:
    """Check the hash of each pinned copy, and each term against the lifetime.

    Args:
        rows: Rows of the dataset, with its terms as they were opened.
        opening: Body of the entry that opened each term.
        add: Adds a finding.
    """
    for name in rows.datasets:
        # An overdraft may be newer than the next term.
        views = [replace(v, overdrawn=False) for v in term_views(rows, name)]
        for index, term in enumerate(rows.terms(name)):
            if digest(canonical(term.fields["pinned"])) != term.fields["policy_hash"]:
                add(f"the pinned policy of term {term.number} was edited")
            body = opening[term.number]
            if term.fields["reason"] in BY_ITSELF or not views[index].charged:
                continue
            raises = bool(body.get("raises"))
            before, new = views[:index], views[index]
            if error := lifetime_error(name, before, new, raises=raises):
                add(error.message)


def with_gates(term: Term, revised: Mapping[str, Any]) -> Term:
    """Return a term with the gates of a revision that it was opened without.

    `others` rises where a share is reserved no longer; it never falls below what was
    used.
    """
    gates = dict(term.fields["gates"])
    for position, gate in revised.items():
        kind, _, name = position.partition("/")
        if kind == "others" or gate_in(gates, kind, name) is None:
            gates[position] = gate
    return term._replace(fields={**term.fields, "gates": gates})


def find_terms(rows: Rows, account: str) -> list[Term]:
    """Return the term of an account, or the charged terms that share its windows."""
    dataset, number, *_ = split(account)
    if number:
        return [*filter(None, [rows.term(dataset, number)])]
    return [term for term in rows.terms(dataset) if is_charged(rows, term)]
