"""The whole ledger, followed again from its journal.

Every hash is computed again, every entry followed, every grant asked of its gate, and
what comes of it is compared with every row that is stored, with the releases, with the
signed checkpoints and with the witness. Entries and rows are read in pages, each in a
transaction of its own, so that steps go on running meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

from dpflow.exceptions import LedgerCorrupt, LedgerError
from dpflow.ledger.audit.admissions import Admissions, first_beyond, hidden_overdraft
from dpflow.ledger.audit.fold import Fold
from dpflow.ledger.audit.stored_rows import (
    COLUMNS,
    Comparing,
    Finding,
    Fits,
    Verification,
)
from dpflow.ledger.checkpoint import (
    forged,
    miscounted,
    points_of,
)
from dpflow.ledger.checkpoint import signed as signed_now
from dpflow.ledger.decision.office import Checkpoint
from dpflow.ledger.decision.settlement import (
    TOO_LITTLE,
    is_too_little,
    lesser_keys,
)
from dpflow.ledger.entry import Entry, parsed
from dpflow.ledger.keys import LedgerKey, Sign
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.rows import (
    Account,
    JournalError,
    Key,
    Row,
    Term,
    epoch_of,
    name_of_term,
)
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.witness.rollback_check import missing

_NONE: Mapping[int, str] = {}
_REWRITTEN = "it was signed with another content: the history was rewritten"
#: What reading garbage raises.
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def first_problem(ledger: Ledger) -> str | None:
    """Say what is the first thing wrong with a ledger; None if it verifies."""
    try:
        found = verify(ledger).bad
    except LedgerError as error:
        return error.message
    except UNREADABLE as error:
        return f"it holds something that cannot be read ({error!r:.80})"
    return str(found[0]) if found else None


def verify(
    ledger: Ledger,
    *,
    key: LedgerKey | None = None,
    sign: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Follow a ledger's journal again and compare it with what the ledger says.

    Args:
        ledger: The ledger; other processes may go on using it.
        key: Checks the signed checkpoints.
        sign: With a private key: sign every journal if all is fine, also one without
            a checkpoint, which is bad otherwise.
        progress: Called with how many entries were just read, and how many are to be.
    """
    checked, collects = _Verification(ledger, key, progress), gc.isenabled()
    # Looking for garbage among rows that stay to the end takes an eighth of the time.
    gc.disable()
    try:
        return _checked(checked, sign=sign)
    finally:
        if collects:
            gc.enable()


def _checked(checked: _Verification, *, sign: bool) -> Verification:
    report, key = checked.report, checked.key
    checked.checkpoints(sign_new=sign)
    checked.journals()
    if not report.bad:
        checked.rows()
    checked.witness()
    if sign and report.fine and key is not None and key.sign is not None:
        checked.sign(key.sign)
    return report


class _Verification:
    """One verification, step by step."""

    def __init__(
        self,
        ledger: Ledger,
        key: LedgerKey | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.ledger, self.key = ledger, key
        secret = ledger.digests.is_readable()
        self.fits: Fits = lambda row, value: (
            not secret or ledger.digests.of_value(row.charge, value) == row.digest
        )
        self.report = Verification(signed=key is not None, values=secret)
        self._progress = progress
        self._gates = Admissions()
        self._fold = Fold(seen=self._seen)
        self._points: dict[str, list[Mapping[str, Any]]] = {}
        self._signed: dict[str, dict[int, str]] = {}
        self._opened: dict[tuple[str, int], Term] = {}
        self._whole = 0

    # Checkpoints

    def checkpoints(self, *, sign_new: bool) -> None:
        """Read the signed checkpoints, and check who signed them."""
        with self.ledger.storage.read() as reading:
            books = [parsed(row[1]) for row in reading.kept("book")]
            for name, *_ in books:
                self._points[name] = self._read_points(reading, name)
        self.report.checkpoints = sum(map(len, self._points.values()))
        self._whole = sum(row[1] for row in books)
        for book, points in self._points.items():
            self._signed[book] = {each["number"]: each["hash"] for each in points}
            if self.key is not None:
                self._check_points(book, points, self.key, sign_new=sign_new)

    def _read_points(self, reading: Reading, book: str) -> list[Mapping[str, Any]]:
        try:
            return points_of([*reading.rare(book)][::-1])
        except (LedgerCorrupt, *UNREADABLE):
            return []  # it is found again where its journal is followed

    def _check_points(
        self,
        book: str,
        points: list[Mapping[str, Any]],
        key: LedgerKey,
        *,
        sign_new: bool,
    ) -> None:
        if not points and not sign_new:
            what = (
                "it has no signed checkpoint: it was opened without the key, or its "
                "checkpoints were removed. If it is known to be right, sign it with "
                "`dpflow ledger sign`"
            )
            self._add(what, book)
        try:
            wrong = forged(key.verifies, self.ledger.id, book, points)
            wrong = miscounted(points) if wrong is None else wrong
        except UNREADABLE:
            wrong = 0
        if wrong is not None:
            what = "its checkpoint was forged, or signed with another key"
            self._add(what, book, wrong)

    # Journals

    def journals(self) -> None:
        """Follow every entry up to the newest."""
        while True:
            with self.ledger.storage.read() as reading:
                if not self._next_pages(reading):
                    break
            self._fold.advance()
            self._check_lesser()
        self._end_journals()

    def _next_pages(self, reading: Reading) -> bool:
        """Read the next page of each journal; return whether there was any."""
        more = False
        for book in reading.books():
            if book in self._fold.bad or self._fold.is_waiting(book):
                # It waits for entries that stand in the next page of another.
                continue
            more = self._next_page(reading, book) or more
        return more or self._read_waiting(reading)

    def _read_waiting(self, reading: Reading) -> bool:
        return any(
            self._next_page(reading, book)
            for book in reading.books()
            if book not in self._fold.bad
        )

    def _next_page(self, reading: Reading, book: str) -> bool:
        page = reading.page(book, self._fold.heads.get(book, (0, ""))[0])
        if not page:
            return False
        read = self._fold.read(book, page)
        self.report.entries += read
        if self._progress is not None and book not in self._fold.bad:
            whole = max(self._whole, self.report.entries)
            self._progress(read, whole)
        return True

    def _end_journals(self) -> None:
        self._fold.end()
        self._gates.end()
        self._check_lesser()
        for book, (number, problem) in self._fold.bad.items():
            self._add(problem, book, number)
        for book, signed in self._signed.items():
            number = self._fold.heads.get(book, (0, ""))[0]
            if signed and max(signed) > number and book not in self._fold.bad:
                what = f"it was signed, and the journal ends at {number}"
                self._add(what, book, max(signed))
        for where in self._gates.beyond:
            self._add_beyond(where)
        self.report.heads = dict(self._fold.heads)

    def _check_lesser(self) -> None:
        """Check settlements for less than was held beside their outcomes' prices."""
        found, self._gates.lesser = self._gates.lesser, []
        for settled in found:
            book, number = settled.place
            try:
                with self.ledger.storage.read() as reading:
                    state = reading.load(lesser_keys([settled]))
                wrong = is_too_little(state, settled)
            except (LedgerCorrupt, *UNREADABLE):
                wrong = True
            if wrong and book not in self._fold.bad:
                self._add(TOO_LITTLE, book, number)

    def _add_beyond(self, where: Any) -> None:
        book = where.account.partition("#")[0]
        with self.ledger.storage.read() as reading:
            number = first_beyond(reading.after(book, where.since), where)
        if number is not None:
            what = "a step was granted that its gate does not admit"
            self.report.bad.append(
                Finding(problem=what, account=where.account, book=book, entry=number)
            )

    def _seen(self, rows: Mapping[Key, Row], entry: Entry) -> None:
        signed = self._signed.get(entry.book, _NONE)
        if signed.get(entry.number, entry.hash) != entry.hash:
            raise JournalError(_REWRITTEN)
        self.report.postings += len(entry.postings)
        self._gates.see(rows, entry)
        if entry.kind in ("open", "tighten"):
            facts = entry.body["term"]
            term = Term(entry.book, facts["number"], entry.number, facts)
            self._opened.setdefault((entry.book, facts["number"]), term)

    # Rows

    def rows(self) -> None:
        """Compare what is stored with what the journals come to."""
        self._overdrafts()
        for kind in COLUMNS:
            found = Comparing(kind, self._fold.rows, self.fits)
            while not found.ended:
                with self.ledger.storage.read() as reading:
                    self._catch_up(reading)
                    self.report.bad += found.page(reading)
            self.report.bad += found.missing()
            self._count(kind, found.number)
        with self.ledger.storage.read() as reading:
            self._catch_up(reading)
            self._repairs(reading)
        self._end_journals()

    def _repairs(self, reading: Reading) -> None:
        """Compare the number of repairs."""
        told, made = (
            epoch_of(rows) for rows in (reading.load(Keys()).rows, self._fold.rows)
        )
        if told != made:
            what = (
                f"it says that it was repaired {told} times, its journal {made} times"
            )
            self.report.bad.append(Finding(problem=what))

    def _count(self, kind: str, number: int) -> None:
        if kind == "account":
            self.report.accounts = number
        elif kind == "charge":
            self.report.reservations = number
        elif kind == "release":
            self.report.releases = number

    def _catch_up(self, reading: Reading) -> None:
        """Follow what was written since, so that rows and journals are of one time."""
        while self._next_pages(reading):
            self._fold.advance()

    def _overdrafts(self) -> None:
        for row in self._fold.rows.values():
            if isinstance(row, Account):
                name = row.book, int(name_of_term(row.id))
                if hidden_overdraft(self._opened.get(name), row):
                    what = "more was charged than its filter admits, but it is not "
                    problem = f"{what}overdrawn"
                    self.report.bad.append(Finding(problem=problem, account=row.id))

    # The witness, and signatures

    def witness(self) -> None:
        """Compare with the witness, which remembers what a rollback would hide."""
        witness = self.ledger.watch.witness
        if witness is None:
            return
        if not witness.exists():
            self.report.witness = "missing"
            return
        self.report.witness = "agrees"
        try:
            with self.ledger.storage.read() as reading:
                gone = missing(reading, witness.all_lines())
        except LedgerCorrupt as error:
            self.report.witness = "contradicts"
            if not self.report.bad:
                self.report.bad.append(Finding(problem=error.message))
            return
        if gone:
            self.report.witness = "contradicts"
            what = (
                f"the witness {witness.place} saw {len(gone)} charges or signed "
                "checkpoints that are not here, this one first; `dpflow ledger "
                "reconcile` charges them again"
            )
            self._add(what, gone[0].book, gone[0].number)

    def sign(self, sign: Sign) -> None:
        """Sign each journal up to where it was verified, all in one transaction."""
        heads = self._fold.heads
        if all(map(self._is_signed, heads)):
            return
        commands = []
        for book, place in heads.items():
            points = self._points.get(book)
            last = points[-1] if points else None
            told = signed_now(sign, self.ledger.id, book, place, last=last)
            number, head = place
            commands.append(
                Checkpoint(book=book, number=number, hash=head, signed=told)
            )
        self.ledger.ask_all(commands)

    def _is_signed(self, book: str) -> bool:
        """Say whether nothing came after a journal's newest checkpoint."""
        points = self._points.get(book)
        if not points:
            return False
        after: int = points[-1]["number"] + 1
        return after == self._fold.heads[book][0]

    def _add(self, problem: str, book: str, entry: int | None = None) -> None:
        finding = Finding(problem=problem, book=book, entry=entry)
        if finding not in self.report.bad:
            self.report.bad.append(finding)
