"""The whole ledger, followed again from its journal.

Every hash is computed again, every entry followed, every grant asked of its gate, and
what comes of it is compared with every row that is stored, with the releases, with the
signed checkpoints and with the witness. Entries and rows are read in pages, each in a
transaction of its own, so that steps go on running meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpflow.exceptions import LedgerCorrupt, LedgerError
from dpflow.ledger.audit.admissions import Admissions, Beyond, first_beyond
from dpflow.ledger.audit.findings import Finding, Verification
from dpflow.ledger.audit.fold import Fold
from dpflow.ledger.audit.stored_rows import MISSING, NAMES, Fits, finding, problem_of
from dpflow.ledger.checkpoint import points_of, signed
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.decision.office import Checkpoint
from dpflow.ledger.decision.settlement import TOO_LITTLE, is_too_little, lesser_keys
from dpflow.ledger.entry import Entry, parsed
from dpflow.ledger.keys import LedgerKey, Sign
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.rows import JournalError, Key, Row, epoch_of
from dpflow.ledger.storage.row_texts import key_of_text
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.witness.rollback_check import missing

_NONE: Mapping[int, str] = {}
_REWRITTEN = "it was signed with another content: the history was rewritten"
_MOST_BOOKS = 2**31
_PAGE = 2000


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
    checked = _Verification(ledger, progress)
    checked.checkpoints(key, sign_new=sign)
    checked.journals()
    if checked.report.fine:
        checked.rows()
    checked.witness()
    if sign and checked.report.fine and key is not None and key.sign is not None:
        checked.sign(key.sign)
    return checked.report


class _Verification:
    """One verification, step by step."""

    def __init__(
        self, ledger: Ledger, progress: Callable[[int, int], None] | None
    ) -> None:
        self.ledger = ledger
        secret = ledger.digests.is_readable()
        self.fits: Fits = lambda row, value: (
            not secret or ledger.digests.of_value(row.charge, value) == row.digest
        )
        self.report = Verification(values=secret)
        self._progress = progress
        self._gates = Admissions()
        self._fold = Fold(seen=self._seen)
        self._points: dict[str, list[Mapping[str, Any]]] = {}
        self._signed: dict[str, dict[int, str]] = {}
        self._whole = 0

    # Checkpoints

    def checkpoints(self, key: LedgerKey | None, *, sign_new: bool) -> None:
        """Read the signed checkpoints, and check who signed them."""
        self.report.signed = key is not None
        with self.ledger.storage.read() as reading:
            books = reading.kept("book", limit=_MOST_BOOKS)
            for book, number, *_ in (parsed(row[1]) for row in books):
                self._whole += number
                points = self._points[book] = _points(reading, book)
                self._signed[book] = {each["number"]: each["hash"] for each in points}
                if points or not sign_new:
                    self.report.check_points(self.ledger.id, book, points, key)

    # Journals

    def journals(self) -> None:
        """Follow every entry up to the newest."""
        more = True
        while more:
            with self.ledger.storage.read() as reading:
                more = self._next_pages(reading)
            self._fold.advance()
            self._check_lesser()
        self._end_journals()

    def _next_pages(self, reading: Reading) -> bool:
        """Read the next page of each journal; return whether there was any."""
        books = [book for book in reading.books() if book not in self._fold.bad]
        # Others wait for entries that stand in the next page of another.
        ready = [book for book in books if not self._fold.is_waiting(book)]
        read = [self._next_page(reading, book) for book in ready]
        return any(read) or any(self._next_page(reading, book) for book in books)

    def _next_page(self, reading: Reading, book: str) -> bool:
        page = reading.page(book, self._fold.heads.get(book, (0, ""))[0])
        read = self._fold.read(book, page)
        self.report.entries += read
        if page and self._progress is not None and book not in self._fold.bad:
            self._progress(read, max(self._whole, self.report.entries))
        return bool(page)

    def _end_journals(self) -> None:
        self._fold.end()
        self._gates.end()
        self._check_lesser()
        bad = self._fold.bad
        for book, (number, problem) in bad.items():
            self.report.add(problem, book, number)
        for book, points in self._signed.items():
            number, newest = (
                self._fold.heads.get(book, (0, ""))[0],
                max(points, default=0),
            )
            if newest > number and book not in bad:
                what = f"it was signed, and the journal ends at {number}"
                self.report.add(what, book, newest)
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
                self.report.add(TOO_LITTLE, book, number)

    def _add_beyond(self, where: Beyond) -> None:
        book = where.account.partition("#")[0]
        with self.ledger.storage.read() as reading:
            number = first_beyond(reading.after(book, where.since), where)
        if number is not None:
            what = "a step was granted that its gate does not admit"
            self.report.bad.append(
                Finding(problem=what, account=where.account, book=book, entry=number)
            )

    def _seen(self, rows: Mapping[Key, Row], entry: Entry) -> None:
        points = self._signed.get(entry.book, _NONE)
        if points.get(entry.number, entry.hash) != entry.hash:
            raise JournalError(_REWRITTEN)
        self.report.postings += len(entry.postings)
        self._gates.see(rows, entry)

    # Rows

    def rows(self) -> None:
        """Compare what is stored with what the journals come to."""
        for name in self._gates.hidden_overdrafts(self._fold.rows):
            what = "more was charged than its filter admits, but it is not overdrawn"
            self.report.bad.append(Finding(problem=what, account=name))
        numbers = {kind: self._compare(kind) for kind in NAMES}
        self.report.accounts = numbers["account"]
        self.report.reservations = numbers["charge"]
        self.report.releases = numbers["release"]
        with self.ledger.storage.read() as reading:
            self._catch_up(reading)
            told, made = epoch_of(reading.load(Keys()).rows), epoch_of(self._fold.rows)
        if told != made:
            what = f"its row says that it was repaired {told} times, its journal {made}"
            self.report.bad.append(Finding(problem=what))
        self._end_journals()

    def _compare(self, kind: str) -> int:
        """Compare the rows of a kind, page by page, and return how many there are.

        Rows may change between two pages, as long as each page is of one time.
        """
        rows, bad, number, above = self._fold.rows, self.report.bad, 0, ""
        left = {key for key in rows if key[0] == kind}
        more = True
        while more:
            with self.ledger.storage.read() as reading:
                self._catch_up(reading)
                page = reading.kept(kind, above, _PAGE)
                for above, value, output in page:
                    key = key_of_text(above)
                    left.discard(key)
                    if problem := problem_of(rows.get(key), value, output, self.fits):
                        bad.append(finding(key, problem))
            number, more = number + len(page), len(page) == _PAGE
        bad += [finding(key, MISSING) for key in sorted(left & rows.keys())]
        return number

    def _catch_up(self, reading: Reading) -> None:
        """Follow what was written since, so that rows and journals are of one time."""
        while self._next_pages(reading):
            self._fold.advance()

    # The witness, and signatures

    def witness(self) -> None:
        """Compare with the witness, which remembers what a rollback would hide."""
        witness, report = self.ledger.watch.witness, self.report
        if witness is None:
            return
        if not witness.exists():
            report.witness = "missing"
            return
        report.witness = "contradicts"
        try:
            with self.ledger.storage.read() as reading:
                gone = missing(reading, witness.all_lines())
        except LedgerCorrupt as error:
            if report.fine:
                report.bad.append(Finding(problem=error.message))
            return
        if gone:
            what = (
                f"the witness {witness.place} saw {len(gone)} charges or signed "
                "checkpoints that are not here, this one first; `dpflow ledger "
                "reconcile` charges them again"
            )
            report.add(what, gone[0].book, gone[0].number)
        else:
            report.witness = "agrees"

    def sign(self, sign: Sign) -> None:
        """Sign each journal up to where it was verified, all in one transaction.

        Nothing is signed if nothing came after each journal's newest checkpoint.
        """
        commands, new = [], False
        for book, (number, head) in self._fold.heads.items():
            last = next(reversed(self._points.get(book, ())), None)
            new = new or last is None or last["number"] + 1 != number
            told = signed(sign, self.ledger.id, book, (number, head), last=last)
            commands.append(
                Checkpoint(book=book, number=number, hash=head, signed=told)
            )
        if new:
            self.ledger.ask_all(commands)


def _points(reading: Reading, book: str) -> list[Mapping[str, Any]]:
    try:
        return points_of([*reading.rare(book)][::-1])
    except (LedgerCorrupt, *UNREADABLE):
        return []  # it is found again where its journal is followed
