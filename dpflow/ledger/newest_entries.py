"""What is checked of books besides their rows: the entries before their ends.

Loading checks each row and the ends of the books. A process's first decision about a
book reads some entries before its end as well, so that damage done while no process
ran is noticed by the next step. `verify` reads all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from operator import add, le, sub

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.decision.settlement import Lesser
from dpflow.ledger.entry import Entry, Posting
from dpflow.ledger.journal import KINDS
from dpflow.ledger.model import State
from dpflow.ledger.rows import Account
from dpflow.ledger.storage.transaction import Reading

#: How many entries of a book are read.
TAIL = 500


def check_tail(reading: Reading, state: State, book: str, place: str) -> list[Lesser]:
    """Check the newest entries of a book.

    Args:
        reading: Of the ledger; it checks that each entry hashes to the next.
        state: Loaded from it, with the book.
        book: Its name.
        place: The ledger, for messages.

    Returns:
        The settlements among them for less than was held, or perhaps so: their prices
        are checked outside of a transaction (`settlement.is_too_little`).

    Raises:
        LedgerCorrupt: If one does not follow from the one before it, or an account
            that was loaded stands elsewhere than its newest entry left it.
    """
    tail = list(islice(reading.newest(book), TAIL))
    problem = _broken(tail, state.book(book).number) or _misplaced(tail, state)
    if problem is not None:
        raise disagreement(problem, place)
    return _lesser(tail)


def disagreement(problem: str, place: str) -> LedgerCorrupt:
    """Return the error for a ledger whose newest entries cannot be right."""
    msg = (
        f"the ledger {place} does not agree with its journal. {problem}. Someone "
        "edited the ledger, or it is damaged: `dpflow ledger verify` shows all of "
        "it; restore a backup before any further step."
    )
    return LedgerCorrupt(msg, ledger=place)


def _lesser(tail: list[Entry]) -> list[Lesser]:
    """Return the settlements that post less than they free, or may do so."""
    newest: dict[str, tuple[int, Posting]] = {}
    made: dict[str, int] = {}
    found = []
    for entry in reversed(tail):
        charge, number = entry.charge or "", entry.number
        if entry.kind == "reserve":
            made[charge] = number
        elif entry.kind == "settle":
            before = {name: newest.get(name) for name in entry.postings}
            late = [n for n, b in before.items() if b and b[0] != made.get(charge)]
            if any(
                known is None
                or tuple(map(sub, known[1].held, posting.held)) != posting.amount
                for known, posting in zip(
                    before.values(), entry.postings.values(), strict=True
                )
            ):
                found.append(Lesser(charge, (entry.book, number), late))
        newest.update((name, (number, p)) for name, p in entry.postings.items())
    return found


def _broken(tail: Iterable[Entry], number: int) -> str | None:
    """Say which entry of a book, newest first, does not follow from the one before."""
    after: dict[str, tuple[Entry, Posting]] = {}
    for entry in tail:
        if entry.number != number:
            return f"Book {entry.book!r} has no entry {number}"
        number -= 1
        for name, posting in entry.postings.items():
            later = after.get(name)
            if later is not None and not _follows(posting, *later, name):
                return (
                    f"Account {name!r}, entry {later[0].number}: its sums do not "
                    "follow from those before it"
                )
            after[name] = entry, posting
    return None


def _follows(before: Posting, entry: Entry, posting: Posting, name: str) -> bool:
    """Say whether an entry's sums may come after those of the one before it."""
    rule, amount = KINDS.get(entry.kind), entry.postings[name].amount
    if rule is None:
        return False
    settled, held = before.settled, before.held
    if rule.settles:
        settled = tuple(map(add, settled, amount))
    if entry.kind == "settle":
        # What it held is not in the entry.
        fits = all(map(le, posting.held, held))
    else:
        if rule.ends:
            held = tuple(map(sub, held, amount))
        elif entry.kind == "reserve" and "preflight" not in entry.body:
            held = tuple(map(add, held, amount))
        fits = posting.held == held
    return fits and posting.settled == settled


def _misplaced(tail: Iterable[Entry], state: State) -> str | None:
    """Say which account that was loaded stands before its newest entry."""
    newest: dict[str, int] = {}
    for entry in tail:
        for name in entry.postings:
            newest.setdefault(name, entry.number)
    for row in state.rows.values():
        if isinstance(row, Account) and newest.get(row.id, row.entry) != row.entry:
            return (
                f"Account {row.id!r} is as entry {row.entry} left it, and entry "
                f"{newest[row.id]} moved it since"
            )
    return None
