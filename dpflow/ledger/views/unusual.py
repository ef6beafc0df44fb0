"""Charges that did not go as most do: own noise, failures, and what was forfeited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.records import UnusualSteps
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.views.charges import JournalCharge, charges, openings
from dpflow.ledger.views.reservations import waiting

#: So many entries of a dataset's journal tell of its newest steps.
RECENT = 20_000
#: What the journal says of a step that called nothing of dpflow to draw its noise.
OWN_NOISE = ("own", "self-declared")
_DREW, _FORFEITED = "drew its own noise", "was forfeited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusual:
    """Charges of one step that went the same unusual way.

    Attributes:
        what: "drew its own noise", "failed: TYPE" or "was forfeited".
        times: How many there are.
        first: When the oldest was posted or, if it never was, reserved; a label.
        last: When the newest was.
    """

    what: str
    step: str
    flow: str | None
    times: int
    first: str
    last: str


def unusual_steps(
    ledger: Ledger, dataset: str, *, most: int | None = RECENT
) -> UnusualSteps:
    """Count the steps of a newest term that drew their own noise, failed or got lost.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; nothing is counted if it has no term yet.
        most: Read so many entries of its journal, the newest; None: all.
    """
    with ledger.storage.read() as reading:
        book = reading.load(Keys(books=(dataset,))).book(dataset)
        if not book.terms:
            return UnusualSteps()
        first = openings(reading, dataset)[book.terms].number
        start = first if most is None else max(book.number - most, first)
        account = f"{dataset}#{book.terms}"
        found = [what for what, _ in _unusual(ledger, reading, account, start)]
    own_noise, forfeited = found.count(_DREW), found.count(_FORFEITED)
    return UnusualSteps(
        own_noise=own_noise,
        failed=len(found) - own_noise - forfeited,
        forfeited=forfeited,
        older=start > first,
    )


def unusual(ledger: Ledger, dataset: str, term: int) -> list[Unusual]:
    """Return the steps that did not go as most do, the newest first.

    Args:
        ledger: The ledger to read.
        dataset: A dataset or population.
        term: Number of one of its terms.
    """
    times: dict[tuple[str, str, str | None], list[str]] = {}
    with ledger.storage.read() as reading:
        opening = openings(reading, dataset).get(term)
        if opening is None:
            return []
        account = f"{dataset}#{term}"
        for what, charge in _unusual(ledger, reading, account, opening.number):
            body = charge.made.body
            group = what, str(body.get("step") or "-"), body.get("flow")
            times.setdefault(group, []).append(charge.last.at)
    found = [
        Unusual(
            what=what,
            step=step,
            flow=flow,
            times=len(labels),
            first=min(labels),
            last=max(labels),
        )
        for (what, step, flow), labels in times.items()
    ]
    return sorted(found, key=lambda each: each.last, reverse=True)


def _unusual(
    ledger: Ledger, reading: Reading, account: str, start: int
) -> Iterator[tuple[str, JournalCharge]]:
    """Yield the unusual charges on an account that ended after an entry, or never."""
    for charge in charges(reading, account.partition("#")[0], start):
        if account in charge.last.postings and (what := _way(charge.last)):
            yield what, charge
    for each in waiting(ledger, reading):
        if not each.alive and account in each.charge.held:
            yield _FORFEITED, JournalCharge(each.made, None, {})


def _way(entry: Entry) -> str:
    """Return the unusual way in which a charge ended; "" if it was none."""
    if entry.kind == "forfeit":
        return _FORFEITED
    if entry.kind != "settle":
        return ""
    if entry.body.get("outcome") == "failed":
        return f"failed: {entry.body.get('error_type') or 'error'}"
    return _DREW if entry.body.get("noise") in OWN_NOISE else ""
