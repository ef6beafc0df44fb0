"""How one budget was used up: the share of it after each entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from dpflow.accounting.tally import Tally
from dpflow.ledger.decision.end import gate_of
from dpflow.ledger.decision.gates import Gate, split
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.records import Usage
from dpflow.ledger.rows import Account
from dpflow.ledger.storage.base import Reading
from dpflow.ledger.views.said import body_of, made_by, openings

#: Journals up to so many entries are read whole, also where few points are asked for.
_SHORT = 20_000
#: Of a longer one, so many entries in a row are looked at for one of the account.
_NEAR = 8


def usage(ledger: Ledger, dataset: str) -> list[Usage]:
    """Return how the newest term's budget of a dataset was used up, oldest first."""
    with ledger.storage.read() as reading:
        terms = reading.load(Keys(books=(dataset,))).book(dataset).terms
    return account_usage(ledger, f"{dataset}#{terms}")


def account_usage(
    ledger: Ledger, account: str, *, most: int | None = None
) -> list[Usage]:
    """Return how one gate was used up, oldest first.

    Args:
        ledger: The ledger to read.
        account: Its id.
        most: Return about so many points, spread evenly; the newest is there, and so
            are as many refusals. Default: all.

    Returns:
        Nothing if there is no such account, or if it refuses nothing.
    """
    book = account.partition("#")[0]
    with ledger.storage.read() as reading:
        state = reading.load(Keys(whole=(book,)))
        row = state.account(account)
        gate = None if row is None else gate_of(state, account, 1)
        if row is None or gate is None or gate.used_share(gate.rule.zero()) is None:
            return []
        first = openings(reading, book)[split(account)[1]].number
        length = state.book(book).number - first
        if most is None or length <= max(_SHORT, most * _NEAR):
            found = _thinned(reading.after(book, first), row, most)
        else:
            found = _sampled(reading, row, first, most)
        made = made_by(reading, found)
        return [_usage(gate, entry, body_of(entry, made)) for entry in found]


def _thinned(
    entries: Iterable[Entry], account: Account, most: int | None
) -> list[Entry]:
    """Return every n-th entry of an account, the newest, and its newest refusals."""
    mine = [entry for entry in entries if account.id in entry.postings]
    if most is None:
        return mine
    stride, last = max(1, -(-len(mine) // most)), len(mine)
    even = {n for n in range(1, last + 1) if n == last or n % stride == 0}
    refused = [n for n in range(1, last + 1) if mine[n - 1].kind == "refuse"]
    return [mine[n - 1] for n in sorted(even.union(refused[-most:]))]


def _sampled(reading: Reading, account: Account, first: int, most: int) -> list[Entry]:
    """Return about as many entries of an account, found without reading the journal."""
    book, last = account.book, account.entry
    stride = max(1, -(-(last - first) // most))
    places = [
        (book, number)
        for start in range(first, last, stride)
        for number in range(start, min(start + min(_NEAR, stride), last))
    ]
    known = reading.entries([*places, (book, last)])
    found: dict[int, Entry] = {last: known[book, last]}
    taken = -1
    for place in places:
        part = (place[1] - first) // stride
        entry = known.get(place)
        if part != taken and entry is not None and account.id in entry.postings:
            found[entry.number], taken = entry, part
    refused = _refused(reading, account)
    found |= {entry.number: entry for entry in islice(refused, most)}
    return [found[number] for number in sorted(found)]


def _refused(reading: Reading, account: Account) -> Iterator[Entry]:
    for entry in reading.rare(account.book, "refuse"):
        if account.id in entry.postings:
            yield entry


def _usage(gate: Gate, entry: Entry, body: dict[str, object]) -> Usage:
    posting = entry.postings[gate.id]
    used = Tally(posting.settled) + Tally(posting.held)
    told = {name: body.get(name) for name in ("step", "release_key", "covers")}
    texts = {n: None if text is None else str(text) for n, text in told.items()}
    return Usage(
        seq=entry.number,
        kind=entry.kind,
        used_fraction=gate.used_share(used) or 0.0,
        reservation=entry.charge,
        step=texts["step"],
        release_key=texts["release_key"],
        at=entry.at,
        covers=texts["covers"],
    )
