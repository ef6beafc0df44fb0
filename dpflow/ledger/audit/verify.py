"""The whole ledger, followed again from its journal.

Every hash is computed again, every entry followed, every grant compared with its gate;
tags and stored values are compared with the journal, and the journal with its signed
checkpoints and the witness. Entries are read in pages, each in a transaction of its
own, so that steps go on running meanwhile. The memory in use does not grow with the
journal: an ended charge is dropped, and read again if it is corrected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add
from secrets import token_hex
from typing import Any, NamedTuple

from dpflow.exceptions import LedgerCorrupt, LedgerError, LedgerUnwitnessed
from dpflow.interrupts import without_interrupts
from dpflow.ledger.decision.checks import (
    check,
    check_grant,
    check_windows,
    is_admitted,
    totals,
)
from dpflow.ledger.decision.office import Checkpoint
from dpflow.ledger.entry import (
    ACCOUNT,
    Entry,
    JournalError,
    draft_of,
    entry_of,
)
from dpflow.ledger.journal import KINDS, follow
from dpflow.ledger.keys import SIGNED, LedgerKey, signed_point, signed_text
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import keys_followed
from dpflow.ledger.rows import split
from dpflow.ledger.state import State
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
        checkpoints: Number of signed checkpoints.
        signed: Whether their signatures were checked.
        values: Whether the values of releases were compared with their digests.
        head: Number and hash of the newest entry that was read.
        points: Signed parts of the checkpoints, oldest first.
    """

    accounts: int = 0
    entries: int = 0
    postings: int = 0
    reservations: int = 0
    releases: int = 0
    checkpoints: int = 0
    signed: bool = False
    values: bool = False
    witness: str = "waived"
    bad: list[Finding] = field(default_factory=list)
    head: tuple[int, str] = (0, "")
    points: list[Mapping[str, Any]] = field(default_factory=list, repr=False)

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
        hash_of: Callable[[int], str],
    ) -> bool:
        """Read the next entries; return False after a bad one, which is a finding.

        Args:
            page: Columns of the entries, as a database keeps them.
            reader: Checks the columns, with the hash of the entry before.
            hash_of: Returns the hash of an earlier entry.
        """
        number, previous = self.head
        try:
            for columns in page:
                if columns[0] != number + 1:
                    what = f"entry {number + 1} is missing or out of order"
                    raise JournalError(what)
                entry = reader((*columns, previous))
                if entry.kind == "checkpoint":
                    self._note(entry, hash_of)
                number, previous = self.head = entry.number, entry.hash
        except without_interrupts(*UNREADABLE, RecursionError) as error:
            what = str(error)
            if not isinstance(error, JournalError | LedgerError):
                what = f"it is no entry of its kind ({type(error).__name__})"
            self.add(what, number + 1)
        self.entries = number
        return self.fine

    def _note(self, entry: Entry, hash_of: Callable[[int], str]) -> None:
        """Compare a checkpoint with the journal before it."""
        point = {name: entry.body["signed"][name] for name in SIGNED}
        number = point["number"]
        if not 0 < number < entry.number or point["hash"] != hash_of(number):
            what = "it was signed with another content: the history was rewritten"
            self.add(what, number)
        self.points.append(point)

    def check_points(self, ledger: str, key: LedgerKey | None) -> None:
        """Check the signatures of the checkpoints, and that none is missing."""
        self.signed, self.checkpoints = key is not None, len(self.points)
        if not self.points and key is not None:
            self.add(
                "the journal has no signed checkpoint: it was never signed, or its "
                "checkpoints were removed. If you trust it, sign it with "
                "`dpflow ledger sign`"
            )
        previous = ""
        for count, point in enumerate(self.points, 1):
            placed = (point["count"], point["previous"]) == (count, previous)
            text, previous = signed_text(ledger, point), point["signature"]
            if not placed or (key and not key.verifies(text, previous)):
                what = "its checkpoint was forged, or signed with another key"
                self.add(what, point["number"])
                return


_PAGE = 500
#: Keys of charges and their outputs: no entry reads them after the end of the charge.
_OF_CHARGES = ("charge/", "release/", "held/")
#: Kinds of steps; they change no term, no freeze and no overdraft.
_STEPS = frozenset(name for name, kind in KINDS.items() if kind.often)
_TERMS = ("open", "tighten")
#: Kinds that change an ended charge, or its output.
_LATE = ("adjust", "withdraw")

#: Called with the number of entries read last, and of all entries.
Progress = Callable[[int, int], None]


def verify(
    ledger: Ledger,
    *,
    key: LedgerKey | None = None,
    sign: bool = False,
    witness: bool = True,
    progress: Progress | None = None,
) -> Verification:
    """Follow a ledger's journal again and compare it with the ledger's tables.

    Args:
        ledger: The ledger; other processes may go on using it.
        key: Checks the signed checkpoints.
        sign: With a private key: sign the journal if all is fine, also one without a
            checkpoint, which is bad otherwise.
        witness: Compare with the witness as well.
        progress: Called after each page.
    """
    report = Verification(values=ledger.digests.is_readable())
    report.head = 0, ledger.storage.identity.first
    try:
        _Journal(ledger, report, progress).follow()
        if report.points or (report.fine and not sign):
            report.check_points(ledger.id, key)
        if report.fine:
            _check_values(ledger, report)
    except without_interrupts(LedgerCorrupt, *UNREADABLE) as error:
        report.add(getattr(error, "message", f"it cannot be read ({error!r:.80})"))
    if witness:
        _check_witness(ledger, report)
    last = report.points[-1] if report.points else None
    is_new = report.head[0] > (last["number"] + 1 if last else 0)
    if sign and key and key.sign and report.fine and is_new:
        point = signed_point(key.sign, ledger.id, report.head, last)
        ledger.ask(Checkpoint(signed=point))
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
        #: Flows and accounts of grants, checked since the last entry of no step.
        self._checked = set[tuple[Any, ...]]()

    def follow(self) -> None:
        """Follow every entry up to the newest, and compare the tags with them."""
        report, limit, more = self._report, _PAGE, True
        while more:
            with self._storage.read() as reading:
                page = reading.page(report.head[0], limit)
                reader = partial(self._followed, reading)
                more = report.read(page, reader, reading.hash_of) and bool(page)
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
        state, report = self._state, self._report
        draft = (draft_of if columns[1] in _STEPS else entry_of)(columns)
        made = state.made.get(draft.charge or "")
        if draft.kind == "reserve":
            grant = draft.body.get("flow"), *draft.amounts
            if grant not in self._checked:
                check_grant(state, draft)
                self._checked.add(grant)
        elif draft.kind != "settle" or made is None or made.amounts != draft.amounts:
            # Sums fall, or rise without a grant, or gates change.
            book = f"{draft.body['book']}#" if draft.kind in _TERMS else ""
            self._check_gates(reading, self._accounts(book) if book else draft.amounts)
            if draft.kind not in _STEPS:
                self._checked.clear()
            if draft.kind in _LATE:
                self._recall(reading, draft)
            check(state, draft)
        entry = follow(state, draft)
        check_windows(state, entry)
        start = f"{self._secret}{entry.number}/"
        self._named += sum([hash(start + key) for key in entry.rows])
        report.reservations += entry.kind == "reserve"
        report.postings += len(entry.amounts)
        self._forget(entry)
        return entry

    def _accounts(self, start: str = "") -> list[str]:
        """Return the accounts whose ids begin so."""
        keys = (key for key in self._state.rows if key.startswith(ACCOUNT + start))
        return [key.removeprefix(ACCOUNT) for key in keys]

    def _recall(self, reading: Reading, entry: Entry) -> None:
        """Load what was dropped and is changed late."""
        needs = partial(keys_followed, entry=entry)
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

    def _check_gates(self, reading: Reading, accounts: Iterable[str]) -> None:
        """Check that the gates of accounts admit the sums, to which grants raised them.

        An account that was overdrawn by hand was checked before that, and no step is
        granted on it. A gate may be tightened to less than the sums.
        """
        state = self._state
        for account in accounts:
            row, term = state.account(account), state.term(*split(account)[:2])
            if row is None or row.overdrawn:
                continue
            if is_admitted(term, account, tuple(map(add, row.settled, row.held))):
                continue
            since = term.entry if term else 0
            drafts = reading.naming_after([ACCOUNT + account], since)
            for entry in reading.whole(drafts):
                if entry.number > state.head[0]:
                    break
                total = dict(totals(entry))[account]
                if entry.kind == "reserve" and not is_admitted(term, account, total):
                    what = f"account {account!r}: a grant is beyond its gate"
                    self._report.add(what, entry.number)
                    break

    def _check_end(self, reading: Reading) -> None:
        """Compare what was counted with the tables, where the journal ends."""
        report, accounts = self._report, self._accounts()
        report.accounts = len(accounts)
        self._check_gates(reading, accounts)
        for number, charge in reading.ask("made_twice"):
            report.add(f"its charge {charge} was made before", number)

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
                f"the witness {witness.place} saw {len(lost)} charges or signed "
                "checkpoints that are not here, this one first; `dpflow ledger "
                "reconcile` charges them again"
            )
            report.add(what, lost[0].number)
        else:
            report.witness = "agrees"
