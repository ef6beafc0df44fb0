"""The whole ledger, computed again from its journal.

Every hash is computed again and every entry followed, so that each sum and each state
is that of the journal. Terms, accounts and windows are compared with their gates, tags
and stored values with the journal, and the journal with the witness. Entries are read
in pages, each in a transaction of its own, so that steps go on running meanwhile. The
memory in use does not grow with the journal: an ended charge is dropped, and read
again if it is corrected. Prices of grants and of settlements are not decided again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add
from secrets import token_hex
from typing import Any, NamedTuple

from dpflow.exceptions import LedgerCorrupt, LedgerError, LedgerUnwitnessed
from dpflow.interrupts import without_interrupts
from dpflow.ledger.decision.gates import is_admitted
from dpflow.ledger.decision.lifetime import lifetime_error, term_views, view_of
from dpflow.ledger.decision.terms import BY_ITSELF, other_claimant
from dpflow.ledger.decision.windows import (
    charged_near,
    used_of,
    window_of,
    window_total,
)
from dpflow.ledger.entry import (
    ACCOUNT,
    Entry,
    JournalError,
    canonical,
    draft_of,
)
from dpflow.ledger.journal import KINDS, follow
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import digest
from dpflow.ledger.rows import Account, Term, split
from dpflow.ledger.state import State, charge_keys
from dpflow.ledger.storage.base import UNREADABLE
from dpflow.ledger.storage.tables import Reading, smaller
from dpflow.ledger.witness.rollback_check import missing


class Finding(NamedTuple):
    """A disagreement, with the number of the bad entry where there is one."""

    problem: str
    entry: int | None = None

    def __str__(self) -> str:
        """Return the place and the problem."""
        place = "" if self.entry is None else f"entry {self.entry}: "
        return f"{place}{self.problem}"


@dataclass(slots=True, kw_only=True)
class Verification:
    """Counts and findings of a verification.

    Attributes:
        bad: The first bad entry of the journal, then all else; empty if all agrees.
        values: Whether the values of releases were compared with their digests.
        head: Number and hash of the newest entry that was read.
    """

    accounts: int = 0
    entries: int = 0
    postings: int = 0
    reservations: int = 0
    releases: int = 0
    values: bool = False
    witness: str = "waived"
    bad: list[Finding] = field(default_factory=list)
    head: tuple[int, str] = (0, "")

    @property
    def fine(self) -> bool:
        """Whether nothing is bad."""
        return not self.bad

    def add(self, problem: str, entry: int | None = None) -> None:
        """Add a finding, once."""
        finding = Finding(problem, entry)
        if finding not in self.bad:
            self.bad.append(finding)

    def read(
        self,
        page: Iterable[Sequence[Any]],
        reader: Callable[[tuple[Any, ...]], Entry],
    ) -> bool:
        """Read the next entries; return False after a bad one, which is a finding.

        Args:
            page: Columns of the entries, as a database keeps them.
            reader: Checks the columns, with the hash of the entry before.
        """
        number, previous = self.head
        try:
            for columns in page:
                if columns[0] != number + 1:
                    what = f"entry {number + 1} is missing or out of order"
                    raise JournalError(what)
                entry = reader((*columns, previous))
                number, previous = self.head = entry.number, entry.hash
        except without_interrupts(*UNREADABLE, RecursionError) as error:
            what = str(error)
            if not isinstance(error, JournalError | LedgerError):
                what = f"it is no entry of its kind ({type(error).__name__})"
            self.add(what, number + 1)
        self.entries = number
        return self.fine


_PAGE = 500
#: Keys of charges and their outputs: no entry reads them after the end of the charge.
_OF_CHARGES = ("charge/", "release/")
_TERMS = ("open", "tighten")
#: Kinds that change an ended charge, or its output.
_LATE = ("adjust", "withdraw")

#: Called with the number of entries read last, and of all entries.
Progress = Callable[[int, int], None]


def verify(
    ledger: Ledger,
    *,
    witness: bool = True,
    progress: Progress | None = None,
) -> Verification:
    """Follow a ledger's journal again and compare it with the ledger's tables.

    Args:
        ledger: The ledger; other processes may go on using it.
        witness: Compare with the witness as well.
        progress: Called after each page.
    """
    report = Verification(values=ledger.digests.is_readable())
    report.head = 0, ledger.storage.identity.first
    try:
        _Journal(ledger, report, progress).follow()
        if report.fine:
            _check_values(ledger, report)
    except without_interrupts(LedgerCorrupt, *UNREADABLE) as error:
        report.add(getattr(error, "message", f"it cannot be read ({error!r:.80})"))
    if witness:
        _check_witness(ledger, report)
    return report


def verified(ledger: Ledger) -> Verification:
    """Verify a ledger without its witness.

    Raises:
        LedgerCorrupt: If anything is wrong.
    """
    report = verify(ledger, witness=False)
    if report.bad:
        msg = (
            f"the ledger {ledger.place} does not verify: {report.bad[0]}. Nothing was "
            "changed. Put a good backup in its place (docs/operations.md)."
        )
        raise LedgerCorrupt(msg, ledger=ledger.place)
    return report


class _Journal:
    """The journal of a ledger, followed entry by entry.

    Args:
        ledger: The ledger.
        report: Takes counts and findings.
        progress: Called after each page.
    """

    def __init__(
        self, ledger: Ledger, report: Verification, progress: Progress | None
    ) -> None:
        self._storage, self._report, self._progress = ledger.storage, report, progress
        self._state = State(whole=True)
        #: A sum over the keys that the entries name, and how each summand begins.
        self._named, self._secret = 0, token_hex(8)
        #: By book and number, each term with the gates of its first revision.
        self._opened = defaultdict[str, dict[int, Term]](dict)

    def follow(self) -> None:
        """Follow every entry up to the newest, and compare the tags with them."""
        report, limit, more = self._report, _PAGE, True
        while more:
            with self._storage.read() as reading:
                page = reading.page(report.head[0], limit)
                reader = partial(self._followed, reading)
                more = report.read(page, reader) and bool(page)
                if more:
                    limit = smaller(limit, page)
                elif report.fine:
                    self._check_end(reading)
                if more and self._progress is not None:
                    total = max(reading.head()[0], report.entries)
                    self._progress(len(page), total)
        self._check_tags()

    def _followed(self, reading: Reading, columns: tuple[Any, ...]) -> Entry:
        """Check an entry and add it to the state."""
        state, report, draft = self._state, self._report, draft_of(columns)
        if draft.kind in _LATE and draft.charge is not None:
            self._recall(reading, draft, draft.charge)
        if draft.kind in _TERMS:
            self._check_term(draft)
        entry = follow(state, draft)
        if entry.kind in _TERMS:
            self._note_term(entry.body["book"])
        start = f"{self._secret}{entry.number}/"
        self._named += sum([hash(start + key) for key in entry.rows])
        report.reservations += entry.kind == "reserve"
        report.postings += len(entry.amounts)
        self._forget(entry)
        return entry

    def _check_term(self, draft: Entry) -> None:
        """Check a term's copy, its source and the lifetime, on the state before it.

        Raises:
            JournalError: If something is wrong.
        """
        state, facts, book = self._state, draft.body["term"], str(draft.body["book"])
        pinned, number = facts["pinned"], facts["number"]
        if digest(canonical(pinned)) != facts["policy_hash"]:
            what = f"the pinned policy of term {number} was edited"
            raise JournalError(what)
        population = pinned.get("population", "")
        other = other_claimant(state, pinned.get("source"), book, population)
        if other is not None:
            what = f"it names the source of dataset {other!r}"
            raise JournalError(what)
        opens = draft.kind == "open"
        if opens and facts["reason"] in BY_ITSELF:
            return
        terms = term_views(state, book, draft.body.get("forgotten", ()))
        raises = bool(draft.body.get("raises"))
        error = lifetime_error(book, terms, view_of(facts), opens=opens, raises=raises)
        if error is not None:
            raise JournalError(error.message)

    def _note_term(self, book: str) -> None:
        """Keep the first gates of a term; the rest of reserved shares may grow."""
        term = self._state.newest(book)
        if term is None:
            return
        gates, before = term.facts["gates"], self._opened[book].get(term.number)
        first = {} if before is None else before.facts["gates"]
        kept = {k: v for k, v in first.items() if k != "others" and v is not None}
        opened = term._replace(facts={**term.facts, "gates": {**gates, **kept}})
        self._opened[book][term.number] = opened

    def _recall(self, reading: Reading, entry: Entry, charge: str) -> None:
        """Load a charge that was dropped and is changed late."""
        needs = partial(charge_keys, name=charge)
        past = reading.load(needs, before=entry.number)
        state = self._state
        state.rows, state.numbers = past.rows | state.rows, past.numbers | state.numbers
        state.made |= past.made

    def _forget(self, entry: Entry) -> None:
        """Drop what no later entry can change, but for those that load it again."""
        state = self._state
        if entry.kind not in _TERMS:
            del state.entries[entry.number]
        if KINDS[entry.kind].ends is None and entry.kind not in _LATE:
            return
        if entry.rows.get(f"charge/{entry.charge}", {}).get("state") == "open":
            return  # it was corrected before its end
        state.made.pop(entry.charge or "", None)
        state.ends.pop(entry.charge or "", None)
        for key in entry.rows:
            if key.startswith(_OF_CHARGES):
                del state.rows[key], state.numbers[key]

    def _check_end(self, reading: Reading) -> None:
        """Compare what was counted with the gates and the tables."""
        report, state = self._report, self._state
        keys = [key for key in state.rows if key.startswith(ACCOUNT)]
        report.accounts = len(keys)
        for row in (state.account(key.removeprefix(ACCOUNT)) for key in keys):
            if row is not None and not row.overdrawn:
                self._check_gate(reading, row)
        for number, charge in reading.ask("made_twice"):
            report.add(f"its charge {charge} was made before", number)

    def _check_gate(self, reading: Reading, row: Account) -> None:
        """Compare an account, or its fullest window, with its gate.

        Usage may be above a gate that was tightened since, and not above the gate with
        which its term was opened. No step raises it above the newest gate.
        """
        state, (book, number, *_, part) = self._state, split(row.id)
        term, total = state.term(book, number), window_total(state, row.id)
        window = window_of(term.facts["pinned"], part) if term and total else None
        if window and charged_near(state, row.id, window).overdrawn:
            return
        amounts = (total or used_of(row)).amounts
        terms = self._opened[book]
        opened = terms.values() if number == 0 else [terms.get(number)]
        if term is None or not any(is_admitted(o, row.id, amounts) for o in opened):
            what = "account" if total is None else "a window of account"
            self._report.add(f"{what} {row.id!r} is above its gate")
            return
        if is_admitted(term, row.id, amounts):
            return
        drafts = reading.naming_after([ACCOUNT + row.id], term.entry)
        for entry in reading.whole(drafts):
            _, settled, held = entry.postings[row.id]
            used = tuple(map(add, settled, held))
            if entry.number > state.head[0]:
                break
            if entry.kind == "reserve" and not is_admitted(term, row.id, used):
                what = f"account {row.id!r}: a grant is beyond its gate"
                self._report.add(what, entry.number)
                break

    def _check_tags(self) -> None:
        """Compare the tags with the keys that the followed entries name.

        The sums of hashes (SipHash, 64 bits) of two different sets agree by a chance
        of 2**-64, because each hashed text begins with a secret.
        """
        key, number, tagged, page = "", 0, 0, [("", 0)]
        while page:
            place = {"key": key, "number": number, "last": self._report.entries}
            with self._storage.read() as reading:
                page = reading.ask("tags", **place)
            for key, number in page:
                tagged += hash(f"{self._secret}{number}/{key}")
        if tagged != self._named:
            self._report.add("a tag was removed, or there is one that no entry names")


def _check_values(ledger: Ledger, report: Verification) -> None:
    """Compare the stored values with their digests."""
    above, more = "", True
    while more:
        with ledger.storage.read() as reading:
            page = reading.kept(above)
        more = bool(page)
        for above, value, text in page:
            report.releases += 1
            row = json.loads(text or "{}").get(f"release/{above}", {"state": ""})
            fits = row["state"] == "settled"
            if fits and report.values and value is not None:
                digest = ledger.digests.of_value(row["charge"], value)
                fits = digest == row["digest"]
            if not fits:
                what = "its value is not the one that was settled"
                report.add(f"release {above[:12]}: {what}")


def _check_witness(ledger: Ledger, report: Verification) -> None:
    """Compare with the witness, which remembers what a rollback would hide."""
    witness = ledger.watch.witness
    if witness is None:
        return
    report.witness = "contradicts"
    try:
        with ledger.storage.read() as reading:
            lost = missing(reading, witness.all_lines())
    except LedgerUnwitnessed:
        report.witness = "missing"
    except LedgerCorrupt as error:
        if report.fine:
            report.add(error.message)
    else:
        if lost:
            what = (
                f"the witness {witness.place} saw {len(lost)} charges that are "
                "not here, this one first; `dpflow ledger reconcile` charges them again"
            )
            report.add(what, lost[0].number)
        else:
            report.witness = "agrees"
