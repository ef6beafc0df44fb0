"""The whole ledger, followed again from its journal.

Every hash is computed again, every entry followed, every grant asked of its gate; tags
and kept values are compared with the journal, and the journal with its signed
checkpoints and the witness. Entries are read in pages, each in a transaction of its
own, so that steps go on running meanwhile, and what has ended is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any

from dpflow.exceptions import LedgerCorrupt, LedgerError
from dpflow.ledger.audit.findings import Verification
from dpflow.ledger.checkpoint import signed
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.decision.checks import (
    check,
    check_grant,
    check_roots,
    is_admitted,
    term_of_account,
)
from dpflow.ledger.decision.office import Checkpoint
from dpflow.ledger.entry import Amounts, Entry, JournalError, entry_of
from dpflow.ledger.journal import KINDS, follow
from dpflow.ledger.keys import LedgerKey, Sign
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.rows import Term, held_key, split
from dpflow.ledger.state import State, charge_keys
from dpflow.ledger.storage.tables import Reading, smaller
from dpflow.ledger.witness.rollback_check import missing

_REWRITTEN = "it was signed with another content: the history was rewritten"
_BEYOND = "a step was granted that its gate does not admit"
#: What following garbage raises, where its hashes fit.
_GARBAGE = (*UNREADABLE, RecursionError)


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
    witness: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Follow a ledger's journal again and compare it with what the ledger says.

    Args:
        ledger: The ledger; other processes may go on using it.
        key: Checks the signed checkpoints.
        sign: With a private key: sign the journal if all is fine, also one without a
            checkpoint, which is bad otherwise.
        witness: Compare with the witness as well.
        progress: Called with how many entries were just read, and how many are to be.
    """
    checked = _Verification(ledger, progress)
    checked.checkpoints(key, sign_new=sign)
    checked.journal()
    if checked.report.fine:
        checked.values()
    if witness:
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
        self.report = Verification(values=ledger.digests.is_readable())
        self._progress = progress
        self._state = State(whole=True)
        self._points: list[Any] = []
        self._signed: dict[int, str] = {}
        self._limit = 500
        #: Charges that have ended: nobody may make them again.
        self._ended: set[int] = set()
        self._releases = self._tags = 0
        #: The highest sums after a grant, component by component. A gate that admits
        #: an amount admits every smaller one.
        self._granted: dict[str, dict[str, Amounts]] = {}
        self._since: dict[str, int] = {}

    def checkpoints(self, key: LedgerKey | None, *, sign_new: bool) -> None:
        """Read the signed checkpoints, and check who signed them."""
        self.report.signed = key is not None
        with self.ledger.storage.read() as reading:
            self.report.head = 0, reading.identity.first
            try:
                entries = [*reading.rare("checkpoint")][::-1]
                self._points = [entry.body["signed"] for entry in entries]
                self._signed = {each["number"]: each["hash"] for each in self._points}
            except (LedgerCorrupt, *UNREADABLE):
                return  # it is found again where the journal is followed
        if self._points or not sign_new:
            self.report.check_points(self.ledger.id, self._points, key)

    # The journal

    def journal(self) -> None:
        """Follow every entry up to the newest."""
        more = True
        while more and self.report.fine:
            with self.ledger.storage.read() as reading:
                more = self._next_page(reading)
        if self.report.fine:
            with self.ledger.storage.read() as reading:
                while self._next_page(reading):
                    pass
                for book in list(self._granted):
                    self._ask_gates(reading, book)
                self._check_end(reading)

    def _next_page(self, reading: Reading) -> bool:
        page = reading.page(self.report.head[0], self._limit)
        self._limit = smaller(self._limit, page) if page else self._limit
        names: list[str] = []
        for columns in page:
            number, previous = self.report.head
            try:
                if columns[0] != number + 1:
                    what = f"entry {number + 1} is missing or out of order"
                    raise JournalError(what)
                entry = entry_of((*columns, previous))
                self._follow(reading, entry)
            except _GARBAGE as error:
                what = str(error)
                if not isinstance(error, JournalError | LedgerError):
                    what = f"it is no entry of its kind ({type(error).__name__})"
                self.report.add(what, number + 1)
                return False
            self.report.head = entry.number, entry.hash
            names += [f"{entry.number} {key}" for key in entry.rows]
        self._check_tags(reading, names)
        self.report.entries += len(page)
        if page and self._progress is not None:
            self._progress(len(page), max(reading.head()[0], self.report.entries))
        return bool(page)

    def _follow(self, reading: Reading, entry: Entry) -> None:
        state = self._state
        if self._signed.get(entry.number, entry.hash) != entry.hash:
            raise JournalError(_REWRITTEN)
        if entry.kind == "reserve":
            if hash(entry.charge) in self._ended:
                what = f"it reserves for charge {entry.charge}, which was made before"
                raise JournalError(what)
            check_roots(state, entry)
            check_grant(state, entry)
            self._note_grant(entry)
            self.report.reservations += 1
        else:
            if entry.kind in ("open", "tighten"):
                self._ask_gates(reading, str(entry.body["book"]), entry.number)
            elif entry.kind == "adjust" and entry.charge is not None:
                self._recall(reading, entry)
            check(state, entry)
        follow(state, entry)
        self.report.postings += len(entry.amounts)
        self._forget(entry)

    def _recall(self, reading: Reading, entry: Entry) -> None:
        """Load a charge that has ended, and is corrected now."""
        name = entry.charge or ""
        found = reading.load(lambda s: charge_keys(s, name), before=entry.number)
        for key, row in found.rows.items():
            self._state.rows.setdefault(key, row)
        self._state.made |= found.made

    def _forget(self, entry: Entry) -> None:
        """Forget what no later entry can change."""
        state, charge = self._state, entry.charge
        if entry.kind not in ("open", "tighten"):
            state.entries.pop(entry.number)
        for key, row in entry.rows.items():
            if key.startswith("release/") and row["state"] == "free":
                state.rows.pop(key)
                state.numbers.pop(key)
        kind = KINDS[entry.kind]
        corrected = entry.kind == "adjust" and hash(charge) in self._ended
        if charge is not None and (kind.ends is not None or corrected):
            self._ended.add(hash(charge))
            made = state.made.pop(charge, None)
            state.ends.pop(charge, None)
            covers = made is not None and made.body.get("covers") is not None
            names = made.amounts if made is not None and covers else ()
            for key in (f"charge/{charge}", *(held_key(charge, n) for n in names)):
                state.rows.pop(key, None)
                state.numbers.pop(key, None)

    # Gates

    def _note_grant(self, entry: Entry) -> None:
        for name, (_, settled, held) in entry.postings.items():
            granted = self._granted.setdefault(split(name)[0], {})
            total = tuple(map(add, settled, held))
            known = granted.get(name, total)
            granted[name] = total if known == total else tuple(map(max, known, total))

    def _ask_gates(self, reading: Reading, book: str, number: int = 0) -> None:
        """Ask the gates of a book's term about the highest sums so far."""
        for account, highest in self._granted.pop(book, {}).items():
            term = term_of_account(self._state, account)
            if not is_admitted(term, account, highest):
                since = self._since.get(book, 0)
                # Sums of several times may be beyond where each of them was not.
                first = _first_beyond(reading, account, term, since)
                if first is not None:
                    self.report.add(_BEYOND, first, account)
        self._since[book] = number

    # Tags, values, the witness

    def _check_tags(self, reading: Reading, names: Sequence[str]) -> None:
        """Check that each key of a page is tagged."""
        self._tags += len(names)
        if names and reading.ask("tagged", names=[*names]) != [(len(names),)]:
            for name in names:
                number, _, key = name.partition(" ")
                if reading.ask("tagged", names=[name]) == [(0,)]:
                    self.report.add(f"its tag {key!r} was taken away", int(number))

    def _check_end(self, reading: Reading) -> None:
        number, newest = self.report.head[0], max(self._signed, default=0)
        if newest > number:
            what = f"it was signed, and the journal ends at {number}"
            self.report.add(what, newest)
        ((tags,),) = reading.ask("tags")
        if tags > self._tags and self.report.fine:
            self.report.add("there are tags that no entry of the journal names")
        rows = self._state.rows
        self.report.accounts = sum(key.startswith("account/") for key in rows)

    def values(self) -> None:
        """Compare the kept values with their digests."""
        above, more = "", True
        while more:
            with self.ledger.storage.read() as reading:
                while self._next_page(reading):
                    pass
                page = reading.kept(above)
            more = bool(page)
            for above, value in page:
                self.report.releases += 1
                row = self._state.rows.get(f"release/{above}") or {"state": ""}
                fits = row["state"] == "settled"
                if fits and self.report.values and value is not None:
                    made = self.ledger.digests.of_value(row["charge"], value)
                    fits = made == row["digest"]
                if not fits:
                    what = "its value is not the one that was settled"
                    self.report.add(f"release {above[:12]}: {what}")

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
                report.add(error.message)
            return
        if gone:
            what = (
                f"the witness {witness.place} saw {len(gone)} charges or signed "
                "checkpoints that are not here, this one first; `dpflow ledger "
                "reconcile` charges them again"
            )
            report.add(what, gone[0].number)
        else:
            report.witness = "agrees"

    def sign(self, sign: Sign) -> None:
        """Sign the journal up to where it was verified, if it went on since."""
        number, head = self.report.head
        last = self._points[-1] if self._points else None
        if number and (last is None or last["number"] + 1 != number):
            told = signed(sign, self.ledger.id, (number, head), last)
            self.ledger.ask(Checkpoint(number=number, hash=head, signed=told))


def _first_beyond(reading: Reading, account: str, term: Term, since: int) -> int | None:
    """Return the first entry that granted a step above an account's gate."""
    for entry in reading.naming_after([f"account/{account}"], since):
        posting = entry.postings[account]
        total = tuple(map(add, posting.settled, posting.held))
        if entry.kind == "reserve" and not is_admitted(term, account, total):
            return entry.number
    return None
