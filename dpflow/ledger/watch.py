"""The ledger against its witness: before each decision, and after each grant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from dpflow.accounting.tally import Tally
from dpflow.exceptions import LedgerError, LedgerRolledBack, LedgerUnwitnessed
from dpflow.ledger.account import Account, reserve_key
from dpflow.ledger.checkpoints import WITNESSED, checkpoint_line
from dpflow.ledger.database import Database, Row, Session
from dpflow.ledger.records import Granted
from dpflow.ledger.witness_base import WitnessBase
from dpflow.ledger.witness_lines import HEAD, Line

#: Ask for entries one by one if between them lie so many times more than are asked for.
_SPARSE = 50


class Watch:
    """Keeps a ledger from deciding anything after it forgot a charge.

    Args:
        place: The ledger, for messages.
        witness: What remembers its charges; None if that was waived.
    """

    def __init__(self, place: str, witness: WitnessBase | None) -> None:
        self.place = place
        self.witness = witness

    def check(self, session: Session, epoch: int) -> None:
        """Check that the ledger holds what was witnessed since the last check.

        Also the newest lines again, for a file can be overwritten while it is open.

        Raises:
            LedgerRolledBack: If a witnessed charge is not there.
            LedgerUnwitnessed: If there is no witness.
            LedgerCorrupt: If the witness is damaged.
            LedgerUnavailable: If it cannot be read.
        """
        witness = self.witness
        if witness is None:
            return
        unseen = witness.unseen()
        if epoch < witness.epoch:
            raise self._older(epoch, witness)
        self._compare(session, unseen.lines)
        witness.accept(unseen)
        self.check_accounts(session, witness.latest)

    def compact(self) -> None:
        """Let the witness drop lines that are not needed; all were just compared.

        Only who may write does: to look must not need the right to.

        Raises:
            LedgerUnavailable: If it cannot be written.
        """
        if self.witness is not None:
            self.witness.compact()

    def problem(self, session: Session, epoch: int) -> str | None:
        """Say why no step would run, for those who only look at the ledger."""
        try:
            self.check(session, epoch)
        except LedgerError as error:
            return error.message
        return None

    def check_accounts(self, session: Session, accounts: Iterable[str]) -> None:
        """Check the newest witnessed entry of some accounts."""
        if self.witness is not None:
            newest = self.witness.newest
            self._compare(session, [newest[a] for a in accounts if a in newest])

    def check_granted(self, session: Session, answers: Iterable[object]) -> None:
        """Check the accounts that were charged, if `check` did not compare them."""
        accounts = {
            account
            for answer in answers
            if isinstance(answer, Granted)
            for account in answer.accounts
        }
        latest = () if self.witness is None else self.witness.latest
        self.check_accounts(session, accounts.difference(latest))

    def lines_of(self, session: Session, answers: Iterable[object]) -> list[Line]:
        """Return what the witness is to be told of these answers."""
        if self.witness is None:
            return []
        return [
            _reserved(session, answer.reservation, account)
            for answer in answers
            if isinstance(answer, Granted)
            for account in answer.accounts
        ]

    def forgotten(self, session: Session) -> set[str]:
        """Return the accounts that lack a charge which was witnessed.

        Raises:
            LedgerCorrupt: If the witness is damaged.
            LedgerUnavailable: If it cannot be read.
        """
        lines: Iterable[Line] = ()
        if self.witness is not None:
            with suppress(LedgerUnwitnessed):
                lines = self.witness.all_lines()
        charges = [line for line in lines if line.reservation or not line.unused]
        return {line.account for line in missing(session, charges)}

    def tell(self, lines: Sequence[Line]) -> None:
        """Tell the witness, durably, of charges that are committed.

        Raises:
            LedgerUnwitnessed: If there is no witness.
            LedgerUnavailable: If it cannot be written.
        """
        if self.witness is not None and lines:
            self.witness.append(lines)

    def tell_of_gates(self, accounts: Iterable[Account]) -> None:
        """Tell the witness of entries that froze, tightened or opened accounts.

        They charge nothing, but a backup that forgot one would open the gate again, or
        bring the term before back.
        Where the witness is missing no step runs anyway, and who enrols it anew tells
        it of them.

        Raises:
            LedgerUnavailable: If it cannot be written.
        """
        with suppress(LedgerUnwitnessed):
            self.tell([line_of(account, account.rule.zero()) for account in accounts])

    def _compare(self, session: Session, lines: Sequence[Line]) -> None:
        gone = missing(session, lines)
        if gone and self.witness is not None:
            raise self._rolled_back(session, gone, self.witness)

    def _rolled_back(
        self, session: Session, gone: Sequence[Line], witness: WitnessBase
    ) -> LedgerRolledBack:
        first, entries = gone[0], {(line.account, line.seq) for line in gone}
        rows = session.rows("read_account", id=first.account)
        held = f"ends at entry {rows[0]['seq']}" if rows else "has no such account"
        if rows and rows[0]["seq"] >= first.seq:
            held = "has another entry there"
        charging = not all(line.decides for line in gone)
        what, kind = "charges" if charging else "freezes or applied policies", "entry"
        if first.account.startswith(WITNESSED):
            what, kind, held = "signed checkpoints", "number", "has another or none"
        msg = (
            f"the ledger {self.place} lacks {len(entries)} {what} that its witness "
            f"{witness.place} has seen: the first is {kind} {first.seq} of account "
            f"{first.account.removeprefix(WITNESSED)!r}, and the ledger {held}. A "
            "backup was restored, its -wal was lost, it is a copy, or a copy of it is "
            "in use. Stop that, and bring the right ledger back; if none has it all, "
            "`dpflow ledger reconcile` shows what is missing and makes it good. "
            "No step runs until then."
        )
        details = {"account": first.account, "seq": first.seq}
        return LedgerRolledBack(
            msg, ledger=self.place, witness=witness.place, **details
        )

    def _older(self, epoch: int, witness: WitnessBase) -> LedgerRolledBack:
        msg = (
            f"the ledger {self.place} was repaired {epoch} times, but its witness "
            f"{witness.place} knows of {witness.epoch} repairs: this is a copy from "
            "before one. Bring the repaired ledger back, or run `dpflow ledger "
            "reconcile`. No step runs until then."
        )
        return LedgerRolledBack(msg, ledger=self.place, witness=witness.place)


def missing(session: Session, lines: Iterable[Line]) -> list[Line]:
    """Return the lines whose entry the ledger does not hold with the same hash.

    Those about checkpoints: whose signature it does not hold under the same count.
    """
    by_account: dict[str, list[Line]] = {}
    for line in lines:
        by_account.setdefault(line.account, []).append(line)
    gone = []
    for account, found in by_account.items():
        numbers = {line.seq for line in found}
        if account.startswith(WITNESSED):
            name = account.removeprefix(WITNESSED)
            hashes = _hashes(session, name, numbers, "checkpoints_between")
        else:
            hashes = _hashes(session, account, numbers, "hashes_between")
        gone += [line for line in found if hashes.get(line.seq) != line.hash]
    return gone


def _hashes(
    session: Session, account: str, numbers: set[int], statement: str
) -> dict[int, str]:
    low, high = min(numbers), max(numbers)
    if high - low < _SPARSE * len(numbers):
        rows = session.rows(statement, account=account, low=low, high=high)
    else:
        rows = [
            row
            for number in numbers
            for row in session.rows(statement, account=account, low=number, high=number)
        ]
    return {row["seq"]: row["hash"] for row in rows}


def _reserved(session: Session, reservation: str, account: str) -> Line:
    kept = session.kept.get(reserve_key(reservation, account))
    if kept is not None:
        moved, asked, run = kept
        return replace(line_of(moved, asked), reservation=reservation, run=run)
    rows = session.rows("witnessed_entry", account=account, reservation=reservation)
    row = rows[0]
    used = Tally.from_text(row["settled_after"]) + Tally.from_text(row["held_after"])
    return Line(
        account=account,
        seq=row["seq"],
        hash=row["hash"],
        used=used.to_text(),
        asked=row["amount"],
        reservation=reservation,
        run=row["run"],
    )


def line_of(account: Account, asked: Tally) -> Line:
    """Return the line of an account's newest entry, which charged so much."""
    return Line(
        account=account.id,
        seq=account.seq,
        hash=account.head,
        used=(account.settled + account.held).to_text(),
        asked=asked.to_text(),
    )


def checkpoint_heads(session: Session) -> list[Line]:
    """Return the lines about the newest signed checkpoint of each account."""
    found = []
    for row in session.rows("list_accounts", dataset=None):
        points = session.rows("checkpoints_of_account", account=row["id"])
        if points and points[-1]["number"] is not None:
            found.append(checkpoint_line(row["id"], points[-1]))
    return found


def closings(session: Session) -> list[Line]:
    """Return lines about the newest entries that froze accounts or lowered gates.

    The newest entry of an account does not tell whether one of them was before it.
    """
    found = []
    for row in session.rows("list_accounts", dataset=None):
        kinds = ["tighten", *(["freeze"] if row["state"] == "frozen" else [])]
        for kind in kinds:
            told = session.rows("newest_of_kind", account=row["id"], kind=kind)
            found += [_closing(row["id"], entry) for entry in told]
    return found


def _closing(account: str, entry: Row) -> Line:
    settled, held = entry["settled_after"], entry["held_after"]
    return Line(
        account=account,
        seq=entry["seq"],
        hash=entry["hash"],
        used=(Tally.from_text(settled) + Tally.from_text(held)).to_text(),
        asked=entry["amount"],
    )


def heads(session: Session) -> list[Line]:
    """Return the lines that begin a witness: the newest entry of each account."""
    return [
        Line(
            account=row["id"],
            seq=row["seq"],
            hash=row["head"],
            used=(
                Tally.from_text(row["settled"]) + Tally.from_text(row["held"])
            ).to_text(),
            asked=HEAD,
        )
        for row in session.rows("list_accounts", dataset=None)
    ]


def beginning(session: Session) -> list[Line]:
    """Return all the lines that begin a witness."""
    return [*heads(session), *closings(session), *checkpoint_heads(session)]


def begin_anew(
    database: Database, witness: WitnessBase, epoch: int, begun: Sequence[Line]
) -> None:
    """Begin a witness after an older one.

    Args:
        database: Of the ledger.
        witness: Its witness.
        epoch: The ledger's count of repairs.
        begun: The `beginning`, as it was when the repair was committed.
    """
    witness.enrol(epoch, begun, anew=True)
    known = set(begun)
    # What was charged since that commit may have been told to the old one.
    with database.read() as session:
        since = [line for line in beginning(session) if line not in known]
    if since:
        witness.append(since)
