"""The journals as people read them: a line for each account that an entry moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import attrgetter

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.settlement import gate_of
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, State
from dpflow.ledger.records import AccountLine
from dpflow.ledger.rows import split
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.views.charges import told
from dpflow.policy.population import PREFIX

#: Entries that a person decided on: no charge and no refusal of a step.
_DECIDED = ("forfeit", *(n for n, k in KINDS.items() if k.decides or k.by_hand))
#: Those of them that may stand in several journals: they charge a step's accounts.
_SPREAD = ("forfeit", "amend", "prior")
#: An entry, and an account that it moves; its term's whole if it moves none.
_Line = tuple[Entry, str]


def history(
    ledger: Ledger,
    dataset: str | None = None,
    *,
    kind: str | None = "dataset",
    limit: int = 50,
    keep: Callable[[Entry, str], bool] = lambda *_: True,
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
        keep: Only lines of such an entry and account. Default: all.
    """
    with ledger.storage.read() as reading:
        books, state = _books(reading, dataset)
        lines = (
            line
            for line in _lines(newest_first(map(reading.newest, books)), state)
            if kind in (None, split(line[1])[2]) and keep(*line)
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
    found: dict[tuple[object, ...], _Line] = {}
    with ledger.storage.read() as reading:
        books, state = _books(reading, dataset)
        entries = newest_first(reading.rare(book, *_DECIDED) for book in books)
        for entry, account in _lines(entries, state):
            why = map(entry.body.get, ("who", "reason", "evidence_sha256"))
            place = "" if entry.kind in _SPREAD else entry.book
            same = (entry.kind, entry.charge, entry.at, place, *why)
            before = found.get(same, (entry, account))[0]
            # The whole comes last; a population's journal repeats a dataset's.
            if before.book == entry.book or not entry.book.startswith(PREFIX):
                found[same] = entry, account
        return list(_written(reading, state, list(found.values())))


def newest_first(books: Iterable[Iterable[Entry]]) -> Iterator[Entry]:
    """Merge the entries of several books, newest first.

    Between journals there is no other order than that of their labels.
    """
    return merge(*books, key=attrgetter("at", "book", "number"), reverse=True)


def _books(reading: Reading, dataset: str | None) -> tuple[list[str], State]:
    books = reading.books() if dataset is None else [dataset]
    return books, reading.load(Keys(whole=tuple(books)))


def _lines(entries: Iterable[Entry], state: State) -> Iterator[_Line]:
    """Yield the lines of entries, newest first; all that opened a term are there."""
    terms: dict[str, int] = {}
    for entry in entries:
        term = terms.get(entry.book, state.book(entry.book).terms)
        for account in sorted(entry.postings, reverse=True) or [f"{entry.book}#{term}"]:
            yield entry, account
        if entry.kind == "open":
            # What is older was written under the term before.
            terms[entry.book] = int(entry.body["term"]["number"]) - 1


def _written(
    reading: Reading, state: State, lines: list[_Line]
) -> Iterator[AccountLine]:
    bodies = told(reading, [entry for entry, _ in lines])
    for (entry, account), (_, body) in zip(lines, bodies, strict=True):
        rule = gate_of(state, account, 1).rule
        moved = [rule.named(Tally(each)) for each in entry.postings.get(account, ())]
        amount, settled, held = moved or ({}, {}, {})
        yield AccountLine(
            account=account,
            seq=entry.number,
            kind=entry.kind,
            reservation=entry.charge,
            amount=amount,
            settled_after=settled,
            held_after=held,
            run=body.get("flow_run"),
            body=body,
            at=entry.at,
            writer=entry.writer,
        )
