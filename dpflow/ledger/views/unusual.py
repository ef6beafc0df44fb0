"""Charges that did not go as most do: own noise, failures, and what was forfeited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import UnusualSteps
from dpflow.ledger.rows import account_key, split
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.charges import charges, openings, window
from dpflow.ledger.views.reservations import waiting
from dpflow.ledger.views.terms import governing

#: So many entries of a dataset's newest term tell of its newest steps.
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


def unusual_steps(ledger: Ledger, dataset: str, *, most: int = RECENT) -> UnusualSteps:
    """Count the steps of a newest term that drew their own noise, failed or got lost.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; nothing is counted if it has no term yet.
        most: Read so many entries of its term, the newest.
    """
    with ledger.storage.read() as reading:
        term = governing(reading, dataset)
        if term is None:
            return UnusualSteps()
        account = f"{dataset}#{term.number}"
        start, older = window(reading, [account_key(account)], most)
        found = [what for what, *_ in _unusual(ledger, reading, account, start)]
    own_noise, forfeited = found.count(_DREW), found.count(_FORFEITED)
    return UnusualSteps(
        own_noise=own_noise,
        failed=len(found) - own_noise - forfeited,
        forfeited=forfeited,
        older=older,
    )


def unusual(ledger: Ledger, dataset: str, term: int) -> list[Unusual]:
    """Return the steps that did not go as most do, the newest first.

    Args:
        ledger: The ledger to read.
        dataset: A dataset or population.
        term: Number of one of its terms.
    """
    times: dict[tuple[str, str, str | None], tuple[int, str, str]] = {}
    with ledger.storage.read() as reading:
        opening = openings(reading, dataset).get(term)
        if opening is None:
            return []
        every = _unusual(ledger, reading, f"{dataset}#{term}", opening.number)
        for what, made, at in every:
            group = what, str(made.body.get("step") or "-"), made.body.get("flow")
            count, first, last = times.get(group, (0, at, at))
            times[group] = count + 1, min(first, at), max(last, at)
    found = [
        Unusual(what=what, step=step, flow=flow, times=count, first=first, last=last)
        for (what, step, flow), (count, first, last) in times.items()
    ]
    return sorted(found, key=lambda each: each.last, reverse=True)


def _unusual(
    ledger: Ledger, reading: Reading, account: str, start: int
) -> Iterator[tuple[str, Entry, str]]:
    """Yield how unusual charges that ended after an entry, or never, went.

    With each come the entry that began it, and when it ended.
    """
    for charge in charges(reading, split(account)[0], start):
        if account in charge.last.amounts and (what := _way(charge.last)):
            yield what, charge.made, charge.last.at
    for each, alive in waiting(ledger, reading):
        if not alive and account in each.held:
            yield _FORFEITED, each.made, each.made.at


def _way(entry: Entry) -> str:
    """Return the unusual way in which a charge ended; "" if it was none."""
    if entry.kind == "forfeit":
        return _FORFEITED
    if entry.kind != "settle":
        return ""
    if entry.body.get("outcome") == "failed":
        return f"failed: {entry.body.get('error_type') or 'error'}"
    return _DREW if entry.body.get("noise") in OWN_NOISE else ""
