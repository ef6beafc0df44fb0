"""One account, compared with its journal, its checkpoints and its term."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Filter
from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.account import rule_from_text
from dpflow.ledger.database import Database, Row
from dpflow.ledger.records import canonical
from dpflow.ledger.replay import Replay, held_at, replay_from
from dpflow.ledger.terms import pinned_gate, taken_off
from dpflow.rounding import number_from_text

_PAGE = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that does not agree.

    Attributes:
        account: The account, where it is one's.
        entry: Number of the bad entry, where it is one.
    """

    problem: str
    account: str | None = None
    entry: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the ledger said when the verification began.

    Attributes:
        posts: As `Replay.posts`, over all accounts, from the table of reservations.
    """

    accounts: list[Row]
    terms: Mapping[tuple[str, int], Row]
    checkpoints: Mapping[str, list[Row]]
    entries: int
    reservations: int
    posts: int


class AccountCheck:
    """Reads one account's journal, page by page.

    Args:
        database: Where it is; each page is a transaction of its own.
        snapshot: What is to be found.
        row: The account's row.
        start: An entry from which to read on, because it is signed; 0 for all.
    """

    def __init__(
        self, database: Database, snapshot: Snapshot, row: Row, start: int
    ) -> None:
        self._database, self._snapshot = database, snapshot
        self._row, self._start = row, start
        self._signed = {
            point["seq"]: point["hash"]
            for point in snapshot.checkpoints.get(row["id"], [])
        }
        self.posts = 0

    def read(self, tell: Callable[[int], None]) -> Iterator[Finding]:
        """Yield the first thing that is wrong, if anything."""
        account = self._row["id"]
        try:
            with self._database.read() as session:
                replay = replay_from(session, account, max(self._start - 1, 0))
        except LedgerCorrupt as error:
            yield Finding(problem=error.message, account=account)
            return
        bad = None
        if replay.seq:
            replay.lookup = self._reserved
            bad = self._recall(replay)
        bad = bad or self._read_pages(replay, tell)
        self.posts = replay.posts
        if bad is not None:
            yield Finding(problem=bad[1], account=account, entry=bad[0])
            return
        wrong = replay.end(self._row) or _gate_problem(
            self._row, replay, self._snapshot
        )
        if wrong:
            yield Finding(problem=wrong, account=account)

    def _read_pages(
        self, replay: Replay, tell: Callable[[int], None]
    ) -> tuple[int, str] | None:
        account, last = self._row["id"], self._row["seq"]
        while replay.seq < last:
            size = min(_PAGE, last - replay.seq)
            with self._database.read() as session:
                rows = session.rows(
                    "journal_after", account=account, above=replay.seq, limit=size
                )
            if not rows:
                return replay.seq + 1, "it is missing"
            bad = self._forgery(rows) or replay.feed(rows)
            if bad is not None:
                return bad
            tell(len(rows))
        return None

    def _recall(self, replay: Replay) -> tuple[int, str] | None:
        """Read what was decided of the gate before the start: no sum tells of it."""
        with self._database.read() as session:
            marks = session.rows(
                "marks_before", account=self._row["id"], upto=replay.seq
            )
        return self._forgery(marks) or replay.recall(marks)

    def _forgery(self, rows: Sequence[Row]) -> tuple[int, str] | None:
        """Return the first entry that is not what was signed."""
        for row in rows if self._signed else ():
            if self._signed.get(row["seq"], row["hash"]) != row["hash"]:
                what = "it was signed with another content: the history was rewritten"
                return int(row["seq"]), what
        return None

    def _reserved(self, reservation: str) -> str | None:
        """Look up a reservation that is older than the start."""
        begun = max(self._start - 1, 0)
        with self._database.read() as session:
            return held_at(session, self._row["id"], reservation, begun)


def _gate_problem(row: Row, replay: Replay, snapshot: Snapshot) -> str | None:
    """Compare an account's gate with its journal and with its term."""
    said = replay.opening
    if said is not None:
        names = ("halt", "dataset", "term", "kind", "name")
        if canonical(said.get("rule")) != row["rule"] or any(
            said.get(name) != row[name] for name in names
        ):
            return "its gate or name is not the one that its journal tells of"
    rule = rule_from_text(row["rule"])
    used = Tally.from_text(row["settled"]) + Tally.from_text(row["held"])
    # A tightened filter may be below what was charged before, and be open; none may
    # be open above the first one.
    first = rule
    if replay.tightened and replay.first_rule is not None:
        first = rule_from_text(canonical(replay.first_rule))
    whole = said is not None and row["state"] == "open"
    if whole and isinstance(first, Filter) and not first.admits(used):
        return "more was charged than its filter admits, but it is not overdrawn"
    term = snapshot.terms.get((row["dataset"], row["term"]))
    if term is None:
        return f"there is no term {row['term']} of dataset {row['dataset']!r}"
    # Each change of a term is told there; later gates are made by its copy.
    told = said.get("policy") if said is not None and row["kind"] == "dataset" else None
    if told not in (None, term["policy_hash"]):
        return f"the policy of term {row['term']} is not the one that was applied"
    pinned = json.loads(term["pinned"])
    if taken_off(pinned, row["kind"], row["name"]):
        return None
    wanted = pinned_gate(pinned, row["kind"], row["name"])
    halt = None if row["halt"] is None else number_from_text(row["halt"])
    if wanted is None or (rule_from_text(canonical(wanted[0])), wanted[1]) != (
        rule,
        halt,
    ):
        return f"its gate is not the one that term {row['term']} pinned"
    return None
