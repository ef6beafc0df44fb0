"""Charges that did not go as most do: own noise, failures, and what was forfeited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.records import UnusualSteps
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.views.charge_entries import openings, told
from dpflow.ledger.views.reservations import UnsettledCharge, waiting

#: So many entries of a dataset's journal tell of its newest steps.
RECENT = 20_000
#: What the journal says of a step that called nothing of dpflow to draw its noise.
OWN_NOISE = ("own", "self-declared")
_FORFEITED = "was forfeited"


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
        account = f"{dataset}#{book.terms}"
        first = openings(reading, dataset)[book.terms].number
        start = first if most is None else max(book.number - most, first)
        own_noise = failed = 0
        forfeited = len(_lost(ledger, reading, account))
        for entry in _of_account(reading, account, start):
            if entry.kind == "settle":
                failed += entry.body.get("outcome") == "failed"
                own_noise += entry.body.get("noise") in OWN_NOISE
            forfeited += entry.kind == "forfeit"
    return UnusualSteps(
        own_noise=own_noise, failed=failed, forfeited=forfeited, older=start > first
    )


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


def unusual(ledger: Ledger, dataset: str, term: int) -> list[Unusual]:
    """Return the steps that did not go as most do, the newest first.

    Args:
        ledger: The ledger to read.
        dataset: A dataset or population.
        term: Number of one of its terms.
    """
    account = f"{dataset}#{term}"
    found: dict[tuple[str, str, str | None], list[str]] = {}
    with ledger.storage.read() as reading:
        opening = openings(reading, dataset).get(term)
        if opening is None:
            return []
        ended = (
            entry
            for entry in _of_account(reading, account, opening.number)
            if _unusual(entry)
        )
        for entry, body in told(reading, ended):
            _note(found, _unusual(entry), body, entry.at)
        for each in _lost(ledger, reading, account):
            _note(found, _FORFEITED, each.made.body, each.made.at)
    return sorted(
        (
            Unusual(
                what=what,
                step=step,
                flow=flow,
                times=len(times),
                first=min(times),
                last=max(times),
            )
            for (what, step, flow), times in found.items()
        ),
        key=lambda each: each.last,
        reverse=True,
    )


def _of_account(reading: Reading, account: str, start: int) -> Iterator[Entry]:
    """Yield the entries that move an account, after a number, oldest first."""
    for entry in reading.after(account.partition("#")[0], start):
        if account in entry.postings:
            yield entry


def _lost(ledger: Ledger, reading: Reading, account: str) -> list[UnsettledCharge]:
    """Return the charges on an account that nobody will settle."""
    return [
        each
        for each in waiting(ledger, reading)
        if not each.alive and account in each.charge.held
    ]


def _unusual(entry: Entry) -> str:
    """Say what was unusual about a charge's end; "" if nothing was."""
    if entry.kind == "forfeit":
        return _FORFEITED
    if entry.kind != "settle":
        return ""
    if entry.body.get("outcome") == "failed":
        return f"failed: {entry.body.get('error_type') or 'error'}"
    return "drew its own noise" if entry.body.get("noise") in OWN_NOISE else ""


def _note(
    found: dict[tuple[str, str, str | None], list[str]],
    what: str,
    body: Mapping[str, Any],
    at: str,
) -> None:
    step = str(body.get("step") or "-")
    found.setdefault((what, step, body.get("flow")), []).append(at)
