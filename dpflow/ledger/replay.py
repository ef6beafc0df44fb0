"""One account's journal, read from its beginning or from a trusted entry.

What each kind of entry does to (settled, held):

    open, refuse, tighten, freeze, thaw   nothing
    reserve                               held + amount
    settle                                held - reserved, settled + amount
    forfeit                               held - reserved, settled + reserved
    void                                  held - reserved
    draw                                  held - amount; a reserve of it follows
    seal                                  held - what was not drawn
    amend, prior, repair                  settled + amount
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from hashlib import sha256
from json.encoder import encode_basestring_ascii as quoted
from operator import add, itemgetter, sub
from typing import Any

from dpflow.accounting.tally import Tally
from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.chain import entry_hash
from dpflow.ledger.database import Row, Session

#: How many of the newest entries are checked when a process opens a ledger.
TAIL = 1000
_LEAST = 10
#: Amounts repeat; those that were read are kept.
_KEPT = 10_000

_ENDING = frozenset({"settle", "forfeit", "void", "seal"})
#: Of those, the ones that post nothing.
_RETURNING = frozenset({"void", "seal"})
_RAISING = frozenset({"amend", "prior", "repair"})
_MARKS = frozenset({"tighten", "freeze", "thaw"})

_Amounts = tuple[int, ...]


#: An entry's columns in the order of their names, as its hash has them; then the hash.
_columns = itemgetter(
    "account",
    "amount",
    "at",
    "body",
    "held_after",
    "kind",
    "reservation",
    "run",
    "seq",
    "settled_after",
    "writer",
    "hash",
)


class _BadEntry(Exception):
    """An entry that does not follow from those before it."""


class Replay:
    """The state of one account after each entry.

    Args:
        account: Its id.
        start: A trusted entry to go on from; None begins before the first.
        reserved: Finds the amount of a reservation that was made before the start.

    Attributes:
        hash: Of the newest entry that was read.
        opening: What the journal says of the account's gate.
        first_rule: The rule that the account was opened with.
        frozen: Whether an operator froze it; None if none did anything.
        posts: Sum of a keyed hash of (account, reservation, kind) over the entries that
            reserve or end: equal sums, equal sets.
    """

    def __init__(
        self,
        account: str,
        start: Row | None = None,
        reserved: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self.account = account
        self._from_start = start is not None
        self.seq = 0 if start is None else int(start["seq"])
        self.hash = "" if start is None else str(start["hash"])
        self.settled_text = "" if start is None else str(start["settled_after"])
        self.held_text = "" if start is None else str(start["held_after"])
        self.opening: dict[str, Any] | None = None
        self.first_rule: object = None
        self.frozen: bool | None = None
        self.tightened = False
        self.posts = 0
        self._amounts: dict[str, _Amounts] = {}
        self._open: dict[str, _Amounts] = {}
        #: What a draw took and for which step, whose reserve is the next entry.
        self._drawn: tuple[_Amounts, str] | None = None
        # Only needed where `lookup` may find what has ended since the start.
        self._ended: set[str] = set()
        self.lookup = reserved
        self._settled = self._read(self.settled_text) if start is not None else ()
        self._held = self._read(self.held_text) if start is not None else ()

    def feed(self, rows: Iterable[Row]) -> tuple[int, str] | None:
        """Read the next entries; return the first that is bad, and what is wrong."""
        for row in rows:
            try:
                self._step(row)
            except _BadEntry as problem:
                return int(row["seq"]), str(problem)
        return None

    def end(self, row: Row) -> str | None:
        """Compare the account's row with its last entry; return what is wrong."""
        if self._drawn is not None:
            return f"its last entry draws {list(self._drawn[0])}, which no step holds"
        told = (row["seq"], row["head"], row["settled"], row["held"])
        kept = (self.seq, self.hash, self.settled_text, self.held_text)
        names = ("seq", "head", "settled", "held")
        for name, ours, theirs in zip(names, kept, told, strict=True):
            if ours != theirs:
                return f"the account's row says {name} {theirs}, its journal {ours}"
        if self.frozen is not None and self.frozen != (row["state"] == "frozen"):
            said = "froze" if self.frozen else "thawed"
            return f"the journal {said} the account, its row says {row['state']}"
        return None

    def _step(self, row: Row) -> None:
        (
            account,
            asked,
            at,
            body,
            held,
            kind,
            reservation,
            run,
            seq,
            settled,
            writer,
            kept,
        ) = _columns(row)
        if seq != self.seq + 1:
            what = f"entry {self.seq + 1} is missing; {seq} is the next"
            raise _BadEntry(what)
        if self.seq == 0 and kind != "open":
            what = f"the first entry is of kind {kind}, not open"
            raise _BadEntry(what)
        self._move(kind, reservation, self._read(asked), body)
        if settled != self.settled_text or held != self.held_text:
            what = (
                f"it says settled {settled} and held {held}; the entries give "
                f"{self.settled_text} and {self.held_text}"
            )
            raise _BadEntry(what)
        # As `canonical` writes it, which takes several times as long. The amounts and
        # the kind were read above and hold nothing that would have to be escaped.
        text = (
            f'{self.hash}{{"account":{quoted(account)},"amount":"{asked}",'
            f'"at":{quoted(at)},"body":{quoted(body)},"held_after":"{held}",'
            f'"kind":"{kind}",'
            f'"reservation":{"null" if reservation is None else quoted(reservation)},'
            f'"run":{"null" if run is None else quoted(run)},"seq":{seq},'
            f'"settled_after":"{settled}","writer":{quoted(writer)}}}'
        )
        found = sha256(text.encode()).hexdigest()
        if found != kept:
            what = "its content, or an entry before it, is not what was hashed"
            raise _BadEntry(what)
        self.seq, self.hash = seq, found

    def _move(self, kind: str, reservation: str, amount: _Amounts, body: str) -> None:
        drawn = self._drawn
        if drawn is not None and (kind, amount, reservation) != ("reserve", *drawn):
            what = f"the draw of {list(drawn[0])} before it is held by no step"
            raise _BadEntry(what)
        self._drawn = None
        if kind == "reserve":
            if reservation in self._open:
                what = f"reservation {reservation} was made before"
                raise _BadEntry(what)
            self._open[reservation] = amount
            self._hold(map(add, self._held, amount))
            self.posts += hash((self.account, reservation, kind))
        elif kind in _ENDING:
            whole = self._pop(reservation)
            if kind != "settle" and amount != whole:
                what = f"it ends a reservation of {list(whole)} with {list(amount)}"
                raise _BadEntry(what)
            self._hold(map(sub, self._held, whole))
            if kind not in _RETURNING:
                self._spend(amount)
            self.posts += hash((self.account, reservation, kind))
            if self._from_start:
                self._ended.add(reservation)
        elif kind in _RAISING:
            self._spend(amount)
        else:
            self._move_rarely(kind, reservation, amount, body)

    def _move_rarely(
        self, kind: str, reservation: str, amount: _Amounts, body: str
    ) -> None:
        if kind == "open":
            self._begin(amount, body)
        elif kind == "draw":
            rest = self._minus(self._pop(reservation), amount)
            self._open[reservation] = rest
            self._hold(map(sub, self._held, amount))
            self._drawn = amount, str(_object(body).get("for"))
        elif kind in _MARKS:
            self._note(kind, body)
        elif kind != "refuse":
            what = f"no entry is of kind {kind!r}"
            raise _BadEntry(what)

    def _note(self, kind: str, body: str) -> None:
        """Follow an entry that says what the account's gate is, or closes it."""
        if kind in {"freeze", "thaw"}:
            self.frozen = kind == "freeze"
            return
        self.opening = {**(self.opening or {}), **_rule_of(body)}
        if kind == "open":
            self.first_rule = self.opening.get("rule")
        else:
            self.tightened = True

    def recall(self, marks: Iterable[Row]) -> tuple[int, str] | None:
        """Learn of the gate from entries before the start; return the first bad one.

        Args:
            marks: What `marks_before` reads: these entries, in order, each with the
                hash of the one before it.
        """
        for row in marks:
            if entry_hash(row["previous"] or "", row) != row["hash"]:
                return int(row["seq"]), "its content is not what was hashed"
            try:
                self._note(row["kind"], row["body"])
            except _BadEntry as problem:
                return int(row["seq"]), str(problem)
        return None

    def _begin(self, amount: _Amounts, body: str) -> None:
        if self.seq != 0 or any(amount):
            what = "an account is opened once, with nothing in it"
            raise _BadEntry(what)
        self._settled = self._held = amount
        self._hold(amount)
        self._spend(amount)
        self._note("open", body)

    def _pop(self, reservation: str) -> _Amounts:
        """Return the amount of an open reservation, which is open no more."""
        known = self._open.pop(reservation, None)
        if known is not None:
            return known
        text = None if reservation in self._ended else self.lookup(reservation)
        if text is None:
            what = f"it ends or draws from reservation {reservation}, which is not open"
            raise _BadEntry(what)
        return self._read(text)

    def _hold(self, amounts: Iterable[int]) -> None:
        self._held = tuple(amounts)
        if min(self._held) < 0:
            what = f"less than nothing would be held: {list(self._held)}"
            raise _BadEntry(what)
        self.held_text = f"[{','.join(map(str, self._held))}]"

    def _spend(self, amount: _Amounts) -> None:
        self._settled = tuple(map(add, self._settled, amount))
        self.settled_text = f"[{','.join(map(str, self._settled))}]"

    def _minus(self, whole: _Amounts, part: _Amounts) -> _Amounts:
        rest = tuple(map(sub, whole, part))
        if min(rest) < 0:
            what = f"it draws {list(part)} of {list(whole)}"
            raise _BadEntry(what)
        return rest

    def _read(self, text: str) -> _Amounts:
        """Read a tally's text, which has one form only."""
        known = self._amounts.get(text)
        if known is None:
            try:
                known = Tally.from_text(text).amounts
            except (TypeError, ValueError):
                known = ()
            same_length = self.seq == 0 or not self._amounts
            same_length = same_length or len(known) == len(self._settled)
            if not known or not same_length or Tally(known).to_text() != text:
                what = f"{text[:80]!r} is no amount of this account"
                raise _BadEntry(what)
            if len(self._amounts) >= _KEPT:
                self._amounts.clear()
            self._amounts[text] = known
        return known


def _rule_of(body: str) -> dict[str, Any]:
    """Return what an opening or tightening entry says of the account's gate."""
    data = _object(body)
    names = ("rule", "halt", "dataset", "term", "kind", "name", "policy")
    return {name: data[name] for name in names if name in data}


def _object(body: str) -> dict[str, Any]:
    """Read an entry's body."""
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        what = "its body is no JSON object"
        raise _BadEntry(what)
    return data


def replay_from(session: Session, account: str, seq: int) -> Replay:
    """Return the state of an account at an entry, whose content is not checked.

    Raises:
        LedgerCorrupt: If there is no such entry, or its sums cannot be read.
    """
    rows = session.rows("read_entry", account=account, seq=seq) if seq else [None]
    if not rows:
        msg = f"account {account!r} has no entry {seq}"
        raise LedgerCorrupt(msg)
    start = rows[0]

    def reserved(reservation: str) -> str | None:
        return held_at(session, account, reservation, seq)

    try:
        return Replay(account, start, reserved) if start else Replay(account)
    except _BadEntry as problem:
        msg = f"entry {seq} of account {account!r}: {problem}"
        raise LedgerCorrupt(msg) from None


def held_at(session: Session, account: str, reservation: str, seq: int) -> str | None:
    """Return what a reservation held on an account after an entry, as text.

    None if it was not made, or had ended by then.
    """
    where = {"account": account, "reservation": reservation}
    ended = [row["seq"] for row in session.rows("ends_of_reservation", **where)]
    made = session.rows("reserved_amount", **where)
    if not made or min(ended, default=seq + 1) <= seq:
        return None
    rest = Tally.from_text(made[0]["amount"])
    for draw in session.rows("draws_of_reservation", **where):
        amount = Tally.from_text(draw["amount"])
        if draw["seq"] > seq or not amount.fits_within(rest):
            break
        rest = rest - amount
    return rest.to_text()


def check_tail(session: Session, place: str) -> None:
    """Check the newest entries of a ledger, some of each account.

    Raises:
        LedgerCorrupt: If one does not follow from the one before it.
    """
    rows = session.rows("list_accounts", dataset=None)
    share = max(TAIL // max(len(rows), 1), _LEAST)
    for row in rows:
        account, last = row["id"], row["seq"]
        replay = replay_from(session, account, max(last - share, 0))
        tail = session.rows(
            "journal_after", account=account, above=replay.seq, limit=share + 1
        )
        bad = replay.feed(entry for entry in tail if entry["seq"] <= last)
        problem = f"entry {bad[0]}: {bad[1]}" if bad else replay.end(row)
        if not problem and tail and tail[-1]["seq"] > last:
            # Where others may charge datasets that this step has not locked, both have
            # grown since the row was read.
            (grown,) = session.rows("read_account", id=account)
            if grown["seq"] < tail[-1]["seq"]:
                problem = f"the account's row ends before entry {tail[-1]['seq']}"
        if problem:
            msg = (
                f"the ledger {place} does not agree with its journal. Account "
                f"{account!r}, {problem}. Someone edited the ledger, or it is damaged: "
                "`dpflow ledger verify` shows all of it; restore a backup before any "
                "further step."
            )
            raise LedgerCorrupt(msg, ledger=place)
