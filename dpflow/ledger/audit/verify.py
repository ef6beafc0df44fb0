"""The whole ledger, followed again from its journal.

Every hash is computed again, every entry followed, every grant compared with its gate;
tags and kept values are compared with the journal, and the journal with its signed
checkpoints and the witness. Entries are read in pages, each in a transaction of its
own, so that steps go on running meanwhile. The memory in use does not grow with the
journal: an ended charge is dropped, and read again if it is corrected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from operator import add
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.audit.findings import Verification
from dpflow.ledger.checkpoint import signed
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.decision.checks import (
    check,
    check_grant,
    is_admitted,
    term_of_account,
)
from dpflow.ledger.decision.office import Checkpoint
from dpflow.ledger.entry import ACCOUNT, Entry, draft_of, entry_of
from dpflow.ledger.journal import KINDS, follow
from dpflow.ledger.keys import LedgerKey
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import keys_followed
from dpflow.ledger.rows import split
from dpflow.ledger.state import State
from dpflow.ledger.storage.tables import Reading, smaller
from dpflow.ledger.witness.rollback_check import missing

_PAGE = 500
#: Keys of charges and their outputs: no entry reads them after the end of the charge.
_OF_CHARGES = ("charge/", "release/", "held/")
#: Kinds without a further check if they post what their charge held; a void returns.
_STEPS = frozenset(k for k, kind in KINDS.items() if kind.often and k != "void")
#: Kinds that change an ended charge, or its output.
_LATE = ("adjust", "withdraw")


def verify(
    ledger: Ledger,
    *,
    key: LedgerKey | None = None,
    sign: bool = False,
    witness: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Follow a ledger's journal again and compare it with the ledger's tables.

    Args:
        ledger: The ledger; other processes may go on using it.
        key: Checks the signed checkpoints.
        sign: With a private key: sign the journal if all is fine, also one without a
            checkpoint, which is bad otherwise.
        witness: Compare with the witness as well.
        progress: Called with the number of entries read last, and of all entries.
    """
    run = _Verification(ledger, progress)
    report, points = run.report, run.points
    try:
        run.journal()
        if points or (report.fine and not sign):
            report.check_points(ledger.id, points, key)
        if report.fine:
            run.values()
    except (LedgerCorrupt, *UNREADABLE) as error:
        report.add(getattr(error, "message", f"it cannot be read ({error!r:.80})"))
    if witness:
        run.witness()
    makes = None if key is None or not sign else key.sign
    last, number = points[-1] if points else {"number": 0}, report.head[0]
    if makes is not None and report.fine and number not in (0, last["number"] + 1):
        told = signed(makes, ledger.id, report.head, points[-1] if points else None)
        ledger.ask(Checkpoint(signed=told))
    return report


def verified(ledger: Ledger) -> Verification:
    """Verify what a ledger holds, without its witness.

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


class _Verification:
    """One verification, step by step.

    Attributes:
        points: Signed checkpoints of the journal, oldest first.
    """

    def __init__(
        self, ledger: Ledger, progress: Callable[[int, int], None] | None
    ) -> None:
        self.ledger = ledger
        self.report = Verification(values=ledger.digests.is_readable())
        self.report.head = 0, ledger.storage.identity.first
        self.points: list[Any] = []
        self._progress = progress
        self._state = State(whole=True)
        self._limit, self._tags = _PAGE, 0
        #: The highest sums after a grant, component by component. A gate that admits
        #: an amount admits every smaller one.
        self._granted: dict[str, list[int]] = {}

    def journal(self) -> None:
        """Follow every entry up to the newest."""
        more = True
        while more and self.report.fine:
            with self.ledger.storage.read() as reading:
                more = self._next_page(reading)
                if not more and self.report.fine:
                    self._check_end(reading)

    def _next_page(self, reading: Reading) -> bool:
        """Follow some entries; return whether there were any."""
        report, start = self.report, self.report.head[0]
        page = reading.page(start, self._limit)
        for columns in page:
            entry = report.read(columns, partial(self._followed, reading))
            if entry is None:
                return False
            self._tags += len(entry.rows)
        if page:
            self._limit = smaller(self._limit, page)
            span = {"after": start, "until": report.entries}
            for number, key in reading.ask("untagged", **span):
                report.add(f"its tag {key!r} was taken away", number)
            if self._progress is not None:
                total = max(reading.head()[0], report.entries)
                self._progress(len(page), total)
        return bool(page)

    def _followed(self, reading: Reading, columns: tuple[Any, ...]) -> Entry:
        """Check an entry and add it to the state."""
        draft = (draft_of if columns[1] in _STEPS else entry_of)(columns)
        state, made = self._state, self._state.made.get(draft.charge or "")
        if draft.kind == "reserve":
            check_grant(state, draft)
        elif draft.kind not in _STEPS or made is None or made.amounts != draft.amounts:
            if draft.kind in ("open", "tighten"):
                self._ask_gates(reading, str(draft.body["book"]))
            elif draft.kind in _LATE:
                self._recall(reading, draft)
            elif draft.kind == "checkpoint":
                self.points.append(self.report.checkpoint(draft, reading.hash_of))
            check(state, draft)
        entry = follow(state, draft)
        for name in entry.amounts if entry.kind == "reserve" else ():
            _, settled, held, *_ = entry.rows[ACCOUNT + name]
            total = [*map(add, settled, held)]
            most = self._granted.get(name, total)
            self._granted[name] = [*map(max, most, total)]
        self.report.reservations += entry.kind == "reserve"
        self.report.postings += len(entry.amounts)
        self._forget(entry)
        return entry

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
        if entry.kind not in ("open", "tighten"):
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

    def _ask_gates(self, reading: Reading, book: str | None = None) -> None:
        """Compare the highest sums of a book's accounts with their gates, or of all."""
        for account in [a for a in self._granted if book in (None, split(a)[0])]:
            term = term_of_account(self._state, account)
            if is_admitted(term, account, tuple(self._granted.pop(account))):
                continue
            # Sums of several times may be beyond where each of them was not.
            for entry in reading.naming_after([ACCOUNT + account], term.entry):
                _, settled, held = entry.postings[account]
                total = tuple(map(add, settled, held))
                if entry.kind == "reserve" and not is_admitted(term, account, total):
                    what = f"account {account!r}: a grant is beyond its gate"
                    self.report.add(what, entry.number)
                    break

    def _check_end(self, reading: Reading) -> None:
        """Compare what was counted with the tables, where the journal ends."""
        self._ask_gates(reading)
        for number, charge in reading.ask("made_twice"):
            what = f"it reserves for charge {charge}, which was made before"
            self.report.add(what, number)
        if reading.ask("tags") != [(self._tags,)] and self.report.fine:
            self.report.add("there are tags that no entry of the journal names")
        self.report.accounts = sum(k.startswith(ACCOUNT) for k in self._state.rows)

    def values(self) -> None:
        """Compare the kept values with their digests."""
        report, more, above = self.report, True, ""
        while more:
            with self.ledger.storage.read() as reading:
                page = reading.kept(above)
            more = bool(page)
            for above, value, text in page:
                report.releases += 1
                row = json.loads(text or "{}").get(f"release/{above}", {"state": ""})
                fits = row["state"] == "settled"
                if fits and report.values and value is not None:
                    digest = self.ledger.digests.of_value(row["charge"], value)
                    fits = digest == row["digest"]
                if not fits:
                    what = "its value is not the one that was settled"
                    report.add(f"release {above[:12]}: {what}")

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
                lost = missing(reading, witness.all_lines())
        except LedgerCorrupt as error:
            if report.fine:
                report.add(error.message)
            return
        if lost:
            what = (
                f"the witness {witness.place} saw {len(lost)} charges or signed "
                "checkpoints that are not here, this one first; `dpflow ledger "
                "reconcile` charges them again"
            )
            report.add(what, lost[0].number)
        else:
            report.witness = "agrees"
