"""One account: its tallies, its gate, and the entries that move it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.costs import Cost
from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import (
    Filter,
    Odometer,
    Rule,
    lower_thresholds,
    solved_thresholds,
)
from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.chain import entry_hash
from dpflow.ledger.checkpoints import sign_opening
from dpflow.ledger.database import Row, Session
from dpflow.ledger.records import canonical
from dpflow.rounding import float_up, number_from_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account as the ledger holds it.

    Attributes:
        rule: The theorem, made from the numbers pinned when the account was opened.
        halt: For an odometer, the reading above which it refuses.
        settled: What was spent.
        held: What is reserved and not settled.
    """

    id: str
    dataset: str
    term: int
    kind: str
    name: str
    rule: Rule
    halt: Fraction | None
    settled: Tally
    held: Tally
    seq: int
    head: str
    state: str

    @property
    def partition(self) -> str:
        """The partition that this account belongs to; empty if to none."""
        return partition_of(self.id)

    def price(self, cost: Cost) -> Tally:
        """Return what a step asks of this account, rounded up.

        Raises:
            UnsupportedCost: If the gate would have to guess. An odometer that halts
                nothing counts the step as uncovered instead.
        """
        if isinstance(self.rule, Odometer) and self.halt is None:
            return self.rule.charge(cost)
        return self.rule.price(cost)

    def admits(self, asked: Tally) -> bool:
        """Say whether the gate lets a step run that asks for so much."""
        if self.state != "open":
            return False
        total = self.settled + self.held + asked
        if isinstance(self.rule, Filter):
            return self.rule.admits(total)
        if self.halt is None or not isinstance(self.rule, Odometer):
            return True
        reading = self.rule.read(total)
        # inf is no fraction; an undefined reading is above every halt.
        return reading != float("inf") and Fraction(reading) <= self.halt

    def used_share(self, used: Tally) -> float | None:
        """Return which share of what the gate allows a tally uses, rounded up.

        Of an odometer it is how far the reading has gone from where it idles to where
        it halts. None if the gate refuses nothing.
        """
        if isinstance(self.rule, Filter):
            return self.rule.used_fraction(used)
        if self.halt is None or not isinstance(self.rule, Odometer):
            return None
        reading, idle = self.rule.read(used), idle_reading(self.rule)
        # An undefined reading is above every halt.
        if reading == float("inf") or Fraction(idle) >= self.halt:
            return float("inf")
        gone = Fraction(reading) - Fraction(idle)
        return float_up(max(gone, Fraction(0)) / (self.halt - Fraction(idle)))

    def left(self) -> Tally | None:
        """Return what the threshold has left, or None if the theorem has no box."""
        if not isinstance(self.rule, Filter) or self.rule.limit is None:
            return None
        return remainder(self.rule.limit, self.settled + self.held)


@lru_cache(maxsize=512)
def idle_reading(rule: Odometer) -> float:
    """Return what an odometer reads before any charge."""
    return rule.read(rule.zero())


def partition_of(account_id: str) -> str:
    """Return the partition that an account's id speaks of; empty if of none."""
    _, _, place = account_id.partition("#")
    _, kind, rest = (*place.split("/", 2), "", "")[:3]
    # Neither terms nor partitions have a slash in their name.
    return rest.partition("/")[0] if kind == "partition" else ""


def remainder(limit: Tally, used: Tally) -> Tally:
    """Return limit minus used, component-wise, at least zero."""
    pairs = zip(limit.amounts, used.amounts, strict=True)
    return Tally(tuple(max(a - b, 0) for a, b in pairs))


@lru_cache(maxsize=512)
def rule_from_text(text: str) -> Rule:
    """Make the rule of an account from the numbers pinned for it.

    A threshold is the pinned or the newly solved one, whichever is lower: a later
    solver cannot raise what an account was opened with.
    """
    pinned = json.loads(text)
    thresholds = pinned.pop("thresholds", None)
    if pinned.pop("role") != "filter":
        return make_odometer(**pinned)
    rule = make_filter(**pinned)
    if thresholds is not None:
        lower_thresholds(rule, thresholds)
    return rule


def rule_to_text(rule: Rule) -> str:
    """Write a rule's numbers in canonical form, with derived ones and thresholds."""
    if not isinstance(rule, Filter):
        return canonical({"role": "odometer", **rule.parameters()})
    thresholds = solved_thresholds(rule)
    solved = {} if thresholds is None else {"thresholds": thresholds}
    return canonical({"role": "filter", **rule.parameters(), **solved})


def read_account(session: Session, account_id: str) -> Account | None:
    """Read an account and check its newest entry against it.

    Raises:
        LedgerCorrupt: If the row and the journal's newest entry disagree, or that
            entry is not what was hashed when it was written.
    """
    known: Account | None = session.kept.get(account_id)
    if known is not None:
        return known
    rows = session.rows("read_account", id=account_id)
    if not rows:
        return None
    row = rows[0]
    entries = session.rows("newest_entries", account=account_id)
    numbers = [row["seq"], row["seq"] - 1][: row["seq"]]
    kept = (numbers, row["head"], row["settled"], row["held"])
    told = None
    if entries:
        newest, previous = entries[0], entries[1]["hash"] if entries[1:] else ""
        told = (
            [entry["seq"] for entry in entries],
            entry_hash(previous, newest),
            newest["settled_after"],
            newest["held_after"],
        )
    if told != kept:
        msg = (
            f"account {account_id!r} does not agree with its newest journal entry "
            f"(number {row['seq']}). Someone edited the ledger, or it is damaged: "
            "restore a backup before any further step."
        )
        raise LedgerCorrupt(msg)
    account = session.kept[account_id] = account_from_row(row)
    return account


def announce_account(session: Session, account_id: str) -> None:
    """Say that an account will be read."""
    if account_id not in session.kept:
        session.soon("read_account", id=account_id)
        session.soon("newest_entries", account=account_id)


def held_for(
    session: Session, reservation: str, accounts: Sequence[str], place: str
) -> list[tuple[Account, Row]]:
    """Return the accounts of a charge, each with the entry that holds it, checked.

    Raises:
        LedgerCorrupt: If one is not there, or not what was written.
    """
    for account_id in accounts:
        announce_account(session, account_id)
        session.soon("reserved_amount", account=account_id, reservation=reservation)
    found = []
    for account_id in accounts:
        account = read_account(session, account_id)
        rows = session.rows(
            "reserved_amount", account=account_id, reservation=reservation
        )
        if account is None or len(rows) != 1:
            msg = f"account {account_id!r} lacks reservation {reservation}"
            raise LedgerCorrupt(msg, ledger=place)
        check_kept(rows[0], "reserve")
        found.append((account, rows[0]))
    return found


def check_kept(row: Row, kind: str) -> None:
    """Check an entry of a charge by its hash, for its amount is given back by others.

    Args:
        row: The entry, and the hash of the one before it as `previous`.
        kind: What it must be.

    Raises:
        LedgerCorrupt: If the entry is not what was hashed when it was written.
    """
    whole = entry_hash(row["previous"] or "", row) == row["hash"]
    if not whole or row["kind"] != kind:
        msg = (
            f"the journal entry {row['seq']} of account {row['account']!r} is not what "
            "was written. Someone edited the ledger, or it is damaged: restore a "
            "backup before any further step."
        )
        raise LedgerCorrupt(msg)


def account_from_row(row: Row) -> Account:
    """Build an account from its row."""
    return Account(
        id=row["id"],
        dataset=row["dataset"],
        term=row["term"],
        kind=row["kind"],
        name=row["name"],
        rule=rule_from_text(row["rule"]),
        halt=None if row["halt"] is None else number_from_text(row["halt"]),
        settled=Tally.from_text(row["settled"]),
        held=Tally.from_text(row["held"]),
        seq=row["seq"],
        head=row["head"],
        state=row["state"],
    )


def open_account(
    session: Session,
    account_id: str,
    *,
    rule: Rule,
    halt: str | None,
    writer: str,
    facts: Mapping[str, Any],
    **names: Any,
) -> Account:
    """Open an account with its first entry, in the caller's transaction."""
    zero = rule.zero().to_text()
    rule_text = rule_to_text(rule)
    body = canonical({**facts, "rule": json.loads(rule_text), "halt": halt, **names})
    entry = journal_entry(
        account_id,
        1,
        "open",
        amount=zero,
        settled_after=zero,
        held_after=zero,
        body=body,
        writer=writer,
    )
    head = entry_hash("", entry)
    session.post(
        "open_account",
        id=account_id,
        rule=rule_text,
        halt=halt,
        settled=zero,
        held=zero,
        head=head,
        **names,
    )
    session.post("append_entry", **entry, hash=head)
    sign_opening(session, account_id, head, entry["at"])
    opened = read_account(session, account_id)
    if opened is None:
        msg = f"account {account_id!r} was opened and is not there"
        raise LedgerCorrupt(msg)
    return opened


def append(
    session: Session,
    account: Account,
    kind: str,
    amount: Tally,
    *,
    settled: Tally,
    held: Tally,
    reservation: str | None,
    run: str | None,
    body: Mapping[str, Any] | str,
    writer: str,
) -> Account:
    """Append an entry and move the account's row to it.

    Its body may come as canonical JSON, made once for several entries.

    Raises:
        LedgerCorrupt: If someone else moved the account within this transaction.
    """
    seq = account.seq + 1
    settled_text, held_text = settled.to_text(), held.to_text()
    entry = journal_entry(
        account.id,
        seq,
        kind,
        amount=amount.to_text(),
        settled_after=settled_text,
        held_after=held_text,
        reservation=reservation,
        run=run,
        body=body if isinstance(body, str) else canonical(dict(body)),
        writer=writer,
    )
    head = entry_hash(account.head, entry)
    session.post("append_entry", **entry, hash=head)
    state = account.state
    if state == "open" and overdraws(account, settled + held):
        # A settlement above its reservation is recorded truthfully.
        state = "overdrawn"
    session.post(
        "move_account",
        id=account.id,
        settled=settled_text,
        held=held_text,
        seq=seq,
        before=account.seq,
        head=head,
        state=state,
    )
    moved = Account(
        id=account.id,
        dataset=account.dataset,
        term=account.term,
        kind=account.kind,
        name=account.name,
        rule=account.rule,
        halt=account.halt,
        settled=settled,
        held=held,
        seq=seq,
        head=head,
        state=state,
    )
    session.kept[account.id] = moved
    if kind == "reserve" and reservation is not None:
        session.kept[reserve_key(reservation, account.id)] = moved, amount, run
    return moved


def reserve_key(reservation: str, account: str) -> str:
    """Return the name by which a transaction remembers what it reserved where."""
    # Neither has this sign, so that it is no account's id.
    return f"{reservation}\0{account}"


def overdraws(account: Account, total: Tally) -> bool:
    """Say whether a new total breaks what the account's filter promised.

    Not where a tightened limit is below what was charged before: that was admitted,
    and the account only admits nothing more.
    """
    grew = not total.fits_within(account.settled + account.held)
    rule = account.rule
    return grew and isinstance(rule, Filter) and not rule.admits(total)


def journal_entry(account: str, seq: int, kind: str, **fields: Any) -> dict[str, Any]:
    """Return an entry with its time, ready to be hashed."""
    empty = {"reservation": None, "run": None}
    return {"account": account, "seq": seq, "kind": kind, **empty, "at": now()} | fields


def now() -> str:
    """Return the time as a label; nothing is ever decided by it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
