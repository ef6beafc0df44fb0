"""Decisions made again: each grant in a journal against the gates of its term.

A gate that admits an amount admits every smaller one. So the highest sums that a step
was granted at stand for all of them, until the term is tightened; only where they are
not admitted is it asked which step was the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from operator import add, le
from typing import Any, NamedTuple

from dpflow.accounting.rules.rule import Filter, Odometer, Rule, ThresholdFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.tightening import admits_less
from dpflow.exceptions import DpflowError
from dpflow.ledger.decision.announced import gates_text
from dpflow.ledger.decision.gates import covers_flow, gate_rule
from dpflow.ledger.decision.settlement import Lesser
from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.model import rule_of
from dpflow.ledger.records import digest
from dpflow.ledger.rows import (
    Account,
    Amounts,
    Book,
    Charge,
    JournalError,
    Key,
    Row,
    Term,
    gate_in,
    split,
)
from dpflow.policy.reserved import charges_others


class Beyond(NamedTuple):
    """Grants on an account of which one was above its gate.

    Attributes:
        account: Its id.
        since: The entry after which they came.
        term: The term under which they were granted.
    """

    account: str
    since: int
    term: Term


class Admissions:
    """Checks the grants of a journal as it is followed.

    Attributes:
        beyond: Where something was granted above a gate.
        lesser: Settlements for less than was held that are not checked yet.
    """

    def __init__(self) -> None:
        self.beyond: list[Beyond] = []
        self.lesser: list[Lesser] = []
        #: The highest sums after a grant, component by component.
        self._granted: dict[str, dict[str, Amounts]] = {}
        self._since: dict[str, int] = {}
        self._terms: dict[str, Term] = {}
        self._opened: dict[tuple[str, int], Term] = {}
        self._drawn: set[str] = set()

    def see(self, rows: Mapping[Key, Row], entry: Entry) -> None:
        """Check an entry that comes next.

        Raises:
            JournalError: If it is a decision that is never made.
        """
        if entry.kind == "reserve":
            self._grant(rows, entry)
        elif entry.kind == "settle":
            self._note_lesser(rows, entry)
        elif entry.kind == "void" and entry.charge in self._drawn:
            what = "it voids a run reservation of which something was drawn"
            raise JournalError(what)
        elif entry.kind in ("open", "tighten"):
            facts = entry.body["term"]
            after = Term(entry.book, facts["number"], entry.number, facts)
            self._opened.setdefault((entry.book, after.number), after)
            before = self._terms.get(entry.book)
            _check_pins(after)
            if entry.kind == "tighten":
                _check_tighter(before, after)
            self.settle(entry.book, entry.number)
            self._terms[entry.book] = after

    def _note_lesser(self, rows: Mapping[Key, Row], entry: Entry) -> None:
        """Note a settlement for less than was held: its price is checked later."""
        charge = rows.get(("charge", entry.charge or ""))
        if not isinstance(charge, Charge):
            return
        postings, held = entry.postings, charge.held
        if all(p.amount == held.get(name) for name, p in postings.items()):
            return
        made, _ = charge.places.get(entry.book, (0, 0))
        accounts = {name: rows.get(("account", name)) for name in postings}
        late = [
            name
            for name, row in accounts.items()
            if isinstance(row, Account) and row.entry != made
        ]
        self.lesser.append(Lesser(charge.id, (entry.book, entry.number), late))

    def settle(self, book: str, number: int) -> None:
        """Ask the gates of a book's term about the highest sums so far."""
        term = self._terms.get(book)
        for account, highest in self._granted.pop(book, {}).items():
            if term is None or not _admits(term, account, highest):
                known = term or Term(book, 0, 0, {})
                self.beyond.append(Beyond(account, self._since.get(book, 0), known))
        self._since[book] = number

    def end(self) -> None:
        """Ask the gates about all that was not asked."""
        for book in list(self._granted):
            self.settle(book, 0)

    def hidden_overdrafts(self, rows: Mapping[Key, Row]) -> Iterator[str]:
        """Yield the accounts that are above their filter, and not overdrawn.

        A tightened filter may be below what was charged before, so that this asks the
        one that the term was opened with. That of `others` may grow instead.
        """
        for row in rows.values():
            if not isinstance(row, Account) or row.overdrawn:
                continue
            book, number, kind, name, _ = split(row.id)
            opened = self._opened.get((book, number))
            found = None if opened is None else gate_rule(opened, kind, name)
            if opened is None or found is None or kind == "others":
                continue
            total = tuple(map(add, row.settled, row.held))
            if isinstance(found[0], Filter) and not _admits(opened, row.id, total):
                yield row.id

    def _grant(self, rows: Mapping[Key, Row], entry: Entry) -> None:
        book = rows.get(("book", entry.book))
        if not isinstance(book, Book) or book.frozen is not None:
            what = "a step was granted while its dataset was frozen, or had no policy"
            raise JournalError(what)
        if "preflight" in entry.body:
            self._drawn.add(entry.body["preflight"]["id"])
        granted = self._granted.setdefault(entry.book, {})
        term = f"{entry.book}#{book.terms}"
        of_term = f"{term}/"
        governs = self._terms.get(entry.book)
        unpaid = governs is not None and charges_others(
            governs.facts["pinned"], entry.body.get("flow")
        )
        if unpaid and f"{term}/others" not in entry.postings:
            what = "a step was granted that no reserved share pays, nor the rest"
            raise JournalError(what)
        for name, (_, settled, held) in entry.postings.items():
            account = rows.get(("account", name))
            if isinstance(account, Account) and account.overdrawn:
                what = f"a step was granted on account {name!r}, which is overdrawn"
                raise JournalError(what)
            if name != term and not name.startswith(of_term):
                what = f"a step was granted on account {name!r} of another term"
                raise JournalError(what)
            total = tuple(map(add, settled, held))
            granted[name] = tuple(map(max, granted.get(name, total), total))


def first_beyond(entries: Iterator[Entry], where: Beyond) -> int | None:
    """Return the first entry that granted a step above its gate; None if none did.

    Args:
        entries: Of the account's book, after `where.since`.
        where: Where one is looked for.
    """
    for entry in entries:
        if entry.kind in ("open", "tighten") and entry.number > where.term.entry:
            return None
        posting = entry.postings.get(where.account)
        if entry.kind == "reserve" and posting is not None:
            total = tuple(map(add, posting.settled, posting.held))
            if not _admits(where.term, where.account, total):
                return entry.number
    return None


def _admits(term: Term, account: str, total: Amounts) -> bool:
    _, _, kind, name, _ = split(account)
    found = gate_rule(term, kind, name) if term.facts else None
    if found is None:
        return False
    rule, halt = found
    if isinstance(rule, Filter):
        # A later version may have solved a lower threshold than the one at that time.
        return rule.admits(Tally(total)) or _fits_pinned(term, kind, name, total)
    if halt is None or not isinstance(rule, Odometer):
        return True
    reading = rule.read(Tally(total))
    return reading != float("inf") and Fraction(reading) <= halt


def _fits_pinned(term: Term, kind: str, name: str, total: Amounts) -> bool:
    """Say whether sums are below the thresholds that a term pinned, if it did."""
    gate = gate_in(term.facts["gates"], kind, name)
    limits = None if gate is None else json.loads(gate["rule"]).get("thresholds")
    if not isinstance(limits, list) or len(limits) != len(total):
        return False
    return all(map(le, total, limits))


def _check_pins(term: Term) -> None:
    """Compare the gates of a term with the copy of the policy that it pinned."""
    facts = term.facts
    if digest(canonical(facts["pinned"])) != facts["policy_hash"]:
        what = f"the pinned policy of term {term.number} was edited"
        raise JournalError(what)
    try:
        wanted = gates_text(facts["pinned"])
    except DpflowError as error:
        what = f"the pinned policy of term {term.number} cannot be read: {error}"
        raise JournalError(what) from error
    for place, told in facts["gates"].items():
        made = wanted.get(place)
        # A flow that was taken off keeps the gate under which it was charged.
        if not (place in wanted or _took_off(facts["pinned"], place)) or (
            place in wanted and not _is_pinned(told, made)
        ):
            what = f"a gate is not the one that term {term.number} pinned: {place!r}"
            raise JournalError(what)
    if wanted.keys() - facts["gates"].keys():
        what = f"a gate that term {term.number} pinned is not there"
        raise JournalError(what)


def _took_off(pinned: Mapping[str, Any], place: str) -> bool:
    # Accounts stay when the last reserved share is dropped.
    dropped = place == "others" and "others" not in pinned
    flow = place.partition("/")[2]
    return dropped or (bool(flow) and not covers_flow(pinned, flow))


def _is_pinned(told: Mapping[str, Any] | None, made: Mapping[str, Any] | None) -> bool:
    """Say whether a gate is the one that a copy makes; its thresholds may be lower."""
    if told is None or made is None:
        return told is made
    old, new = rule_of(told["rule"]), rule_of(made["rule"])
    if isinstance(old, ThresholdFilter) and isinstance(new, ThresholdFilter):
        lower = old.limit.fits_within(new.limit)
    else:
        lower = True
    return lower and (old, told["halt"]) == (new, made["halt"])


def _check_tighter(before: Term | None, after: Term) -> None:
    if before is None or before.number != after.number:
        what = f"term {after.number} is tightened, which does not govern"
        raise JournalError(what)
    pinned = after.facts["pinned"]
    for place in before.facts["gates"]:
        kind, _, name = place.partition("/")
        if place == "others" or _took_off(pinned, place):
            continue  # it may grow with a reserved share's end, or no step asks it
        old, new = gate_rule(before, kind, name), gate_rule(after, kind, name)
        if old is not None and (new is None or not _is_tighter(old, new)):
            what = f"gate {place!r} of term {after.number} was loosened in place"
            raise JournalError(what)


def _is_tighter(
    old: tuple[Rule, Fraction | None], new: tuple[Rule, Fraction | None]
) -> bool:
    if isinstance(old[0], Filter) and isinstance(new[0], Filter):
        return old[0] == new[0] or admits_less(new[0], old[0])
    lower = old[1] is None or (new[1] is not None and new[1] <= old[1])
    return old[0] == new[0] and lower
