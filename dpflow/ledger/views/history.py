"""The journals as people read them: a line for each account that an entry moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from dpflow.accounting.rules.rule import Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.settlement import gate_of
from dpflow.ledger.entry import Entry as Journaled
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, State
from dpflow.ledger.records import AccountLine
from dpflow.ledger.rows import Amounts, split
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.views.charge_entries import told
from dpflow.policy.population import PREFIX

#: Entries that a person decided on: no charge and no refusal of a step.
_DECIDED = (
    *("open", "tighten", "freeze", "unfreeze"),
    *("forfeit", "amend", "prior", "repair"),
)
#: Those of them that may stand in several journals: they charge a step's accounts.
_SPREAD = ("forfeit", "amend", "prior")


class _Line(NamedTuple):
    """A line before it is written out.

    Attributes:
        account: The one that the entry moves; its term's whole if it moves none.
    """

    entry: Journaled
    account: str


def history(
    ledger: Ledger,
    dataset: str | None = None,
    *,
    kind: str | None = "dataset",
    limit: int = 50,
) -> list[AccountLine]:
    """Return the newest lines of the journals, newest first.

    Those of one dataset come in the order of its journal. Between datasets there is no
    other order than that of the labels that their writers' clocks gave; where these
    agree, one dataset's come after another's, by its name.

    Args:
        ledger: The ledger to read.
        dataset: Only of this dataset or population.
        kind: Only accounts of this kind; each charge posts to several. None: all.
        limit: At most so many.
    """
    with ledger.storage.read() as reading:
        books = _books(reading, dataset)
        state = reading.load(Keys(whole=tuple(books)))
        every = (_lines(reading.newest(book), state, book) for book in books)
        lines = (
            line
            for line in merge(*every, key=_when, reverse=True)
            if kind in (None, split(line.account)[2])
        )
        return list(_written(reading, state, list(islice(lines, limit))))


def decisions(ledger: Ledger, dataset: str | None = None) -> list[AccountLine]:
    """Return what people decided, newest first: no charge and no refusal of a step.

    A decision that moves several accounts is returned once, as the whole dataset's; one
    that several journals tell of, as a dataset's.

    Args:
        ledger: The ledger to read.
        dataset: Only about this dataset or population.
    """
    with ledger.storage.read() as reading:
        books = _books(reading, dataset)
        state = reading.load(Keys(whole=tuple(books)))
        every = (
            _lines(reading.rare(book, *_DECIDED), state, book, once=True)
            for book in books
        )
        lines = _once(merge(*every, key=_when, reverse=True))
        return list(_written(reading, state, lines))


def _once(lines: Iterable[_Line]) -> list[_Line]:
    """Leave out what a population's journal repeats of a dataset's."""
    found: dict[tuple[object, ...], _Line] = {}
    for line in lines:
        entry = line.entry
        why = (entry.body.get(name) for name in ("who", "reason", "evidence_sha256"))
        same = (entry.kind, entry.charge, entry.at, *why)
        if entry.kind not in _SPREAD:
            same = (*same, entry.book)
        if same not in found or not entry.book.startswith(PREFIX):
            found[same] = line
    return list(found.values())


def _books(reading: Reading, dataset: str | None) -> list[str]:
    return reading.books() if dataset is None else [dataset]


def _when(line: _Line) -> tuple[str, str, int]:
    # Between journals there is no other order than that of their labels.
    return line.entry.at, line.entry.book, line.entry.number


def _lines(
    entries: Iterable[Journaled], state: State, book: str, *, once: bool = False
) -> Iterator[_Line]:
    """Yield the lines of a book's entries.

    Args:
        entries: Newest first; all that opened a term are among them.
        state: With the book.
        book: Its name.
        once: Yield one for each entry: the whole's.
    """
    term = state.book(book).terms
    for entry in entries:
        whole = f"{book}#{term}"
        moved = sorted(entry.postings, reverse=True) or [whole]
        for account in moved[-1:] if once else moved:
            yield _Line(entry, account)
        if entry.kind == "open":
            # What is older was written under the term before.
            term = int(entry.body["term"]["number"]) - 1


def _written(
    reading: Reading, state: State, lines: Sequence[_Line]
) -> Iterator[AccountLine]:
    bodies = told(reading, (line.entry for line in lines))
    for line, (_, body) in zip(lines, bodies, strict=True):
        yield _entry(reading, line, gate_of(state, line.account, 1).rule, body)


def _entry(
    reading: Reading, line: _Line, rule: Rule, body: dict[str, Any]
) -> AccountLine:
    journaled, account = line
    zero = rule.zero().amounts
    posting = journaled.postings.get(account)
    amount, settled, held = posting or (zero, *_sums_before(reading, line, zero))
    return AccountLine(
        account=account,
        seq=journaled.number,
        kind=journaled.kind,
        reservation=journaled.charge,
        amount=rule.named(Tally(amount)),
        settled_after=rule.named(Tally(settled)),
        held_after=rule.named(Tally(held)),
        run=body.get("flow_run"),
        body=body,
        at=journaled.at,
        writer=journaled.writer,
    )


def _sums_before(
    reading: Reading, line: _Line, zero: Amounts
) -> tuple[Amounts, Amounts]:
    """Return what an account has settled and held when an entry does not move it."""
    journaled, account = line
    if journaled.kind == "open":
        return zero, zero
    for entry in reading.newest(journaled.book, before=journaled.number):
        posting = entry.postings.get(account)
        if posting is not None:
            return posting.settled, posting.held
        if entry.kind == "open":
            break
    return zero, zero
