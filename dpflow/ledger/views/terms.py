"""Terms of a dataset as people read them, now and at an entry of its journal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from dpflow.exceptions import require
from dpflow.ledger.account_ids import split
from dpflow.ledger.decisions.lifetimes import TermView, term_views
from dpflow.ledger.decisions.terms import agrees
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Account, Term
from dpflow.ledger.views.reading import (
    ENDLESS,
    Reading,
    Source,
    open_reading,
    read_postings,
)
from dpflow.policy import Policy


def terms(source: Source, dataset: str) -> list[TermView]:
    """Return the terms of a dataset, oldest first."""
    with open_reading(source) as reading:
        reading.load(dataset)
        return list(term_views(reading.rows, dataset))


def newest_term(source: Source, dataset: str) -> Term | None:
    """Return the term that governs a dataset; None if nothing was applied yet."""
    with open_reading(source) as reading:
        return reading.newest(dataset)


def promise(
    source: Source, dataset: str, number: int = ENDLESS
) -> tuple[tuple[int, str], list[Term], Sequence[TermView], str]:
    """Return the promise of a dataset at an entry of its journal, or at the newest.

    Returns:
        Number and hash of the entry; the terms, oldest first, with their facts and as
        people read them; the day of the first release in UTC.

    Raises:
        ConfigurationError: If the dataset had no release at that entry.
    """
    with open_reading(source) as reading:
        number = min(number, reading.rows.book(dataset).number)
        past = find_past(reading, dataset, number)
        completed = '%"outcome":"completed"%'
        released = reading.ask(
            "read_first_release", dataset=dataset, number=number, pattern=completed
        )
        require(
            released,
            f"the ledger has no release from dataset {dataset!r} up to entry {number}. "
            "So there is no promise to show. `dpflow history "
            f"{dataset}` lists its steps.",
        )
        ((at,),), views = released, term_views(past, dataset)
        digest = reading.transaction.hash_of(dataset, number)
        return (number, digest), past.terms(dataset), views, at[:10]


def find_past(reading: Reading, dataset: str, number: int) -> Rows:
    """Return the terms of a dataset after an entry, and which accounts they had.

    Of an account only matters that it is there, and whether it is overdrawn.
    """
    past, row = Rows(), reading.rows.book(dataset)._replace(term=0, frozen=None)
    charged, overdrawn = set[str](), set[str]()
    for entry in reading.decisions(dataset):
        body = json.loads(entry.body)
        if entry.number > number:
            break
        if "term" in body:
            row = row._replace(term=body["term"]["number"])
            term = Term(dataset, row.term, entry.number, body["term"])
            past.known_terms[dataset, row.term] = term
        row = row._replace(frozen=body.get("frozen", row.frozen))
        overdrawn.update(body.get("overdrawn", ()))
        charged |= {f"{dataset}#{split(n)[1]}" for n in read_postings(entry.postings)}
    openings = [*reading.find_openings(dataset), ENDLESS]
    for term_number, (opened, later) in enumerate(pairwise(openings), 1):
        where = {"dataset": dataset, "after": opened, "before": min(later, number)}
        if reading.ask("read_first_charges", **where):
            charged.add(f"{dataset}#{term_number}")
    rows = [Account(name, (), ()) for name in charged - overdrawn]
    rows += [Account(name, (), (), overdrawn=1) for name in overdrawn]
    past.account_rows = {account.id: account for account in rows}
    past.datasets[dataset] = row
    return past


def find_governing(source: Source, policy: Policy) -> Mapping[str, Any]:
    """Return the ledger's copy of a policy, or what the first step will pin.

    A file that differs from the copy is refused or takes its place, by the decision.
    """
    term = newest_term(source, policy.dataset)
    if term is not None and agrees(term, policy):
        pinned: Mapping[str, Any] = term.fields["pinned"]
        return pinned
    return policy.to_pinned()
