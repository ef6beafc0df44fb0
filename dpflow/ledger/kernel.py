"""Reserve, settle, void, forfeit: the life of a charge.

Every operation is one transaction. A step may run only after `reserve` answered
`Granted`; a charge that nobody settles stays in full, for ever.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dpflow.accounting.theorem import Outcome
from dpflow.exceptions import (
    DpflowError,
    LedgerCorrupt,
    LedgerError,
    LedgerUnavailable,
    ReservationConflict,
)
from dpflow.ledger.account import append, held_for
from dpflow.ledger.again import surely
from dpflow.ledger.answered import released
from dpflow.ledger.batch import Batch
from dpflow.ledger.combiner import Combiner
from dpflow.ledger.damage import Readable
from dpflow.ledger.database import Database, Row, Session
from dpflow.ledger.decide import announce, decide
from dpflow.ledger.hints import Hints
from dpflow.ledger.identity import check_environment, check_same, current_identity
from dpflow.ledger.owner import Liveness
from dpflow.ledger.part import Part
from dpflow.ledger.preflight import amount_to_end
from dpflow.ledger.provenance import provenance, told_anew
from dpflow.ledger.realised import realised
from dpflow.ledger.records import (
    Answer,
    Conditions,
    Granted,
    Request,
    canonical,
    digest,
    is_id,
)
from dpflow.ledger.replay import check_tail
from dpflow.ledger.sources import Sources
from dpflow.ledger.watch import Watch
from dpflow.ledger.witness_base import WitnessAt
from dpflow.ledger.witness_lines import Line
from dpflow.ledger.writer import writer

#: Answers, and what the witness is to be told of them.
_Decided = tuple[list[Answer | DpflowError], list[Line]]


class Ledger:
    """The operations on one ledger.

    Args:
        database: Where it is kept.
        owners: Who holds what.
        witness: Makes its witness; None if it was waived.
        environment: What this process runs in; a ledger of another one is refused.
        conditions: How requests are decided.
    """

    def __init__(
        self,
        database: Database,
        owners: Liveness,
        witness: WitnessAt | None = None,
        *,
        environment: str | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        self.database = database
        self.owners = owners
        self.conditions = conditions or Conditions(facts=provenance())
        with database.read() as session, Readable(database.place):
            row = current_identity(session, database.place)
            serves = session.rows("read_environment")[0]["environment"]
            self.environment: str | None = serves
        check_environment(database.place, serves, environment)
        self.id: str = row["ledger_id"]
        self._secret: bytes | None = None
        told = None if witness is None else witness(self.id)
        self.watch = Watch(database.place, told)
        self.sources = Sources(self.id, serves, told)
        self._tail_checked = False
        self._hints = Hints()
        self._combiner = Combiner(self.reserve_many)

    @property
    def place(self) -> str:
        """Where the ledger is, for messages."""
        return self.database.place

    def release_key(self, *parts: object) -> str:
        """Return the keyed digest of what identifies a release.

        The key is the ledger's own secret, so that a digest does not tell what it
        was made of to anyone who lacks the ledger. Who only reads may not have it.
        """
        if self._secret is None:
            with self.database.read() as session, Readable(self.place):
                (row,) = session.rows("read_secret")
                self._secret = bytes.fromhex(row["release_secret"])
        text = canonical(list(parts)).encode()
        return hmac.new(self._secret, text, "sha256").hexdigest()

    def reserve(self, request: Request) -> Answer:
        """Hold a step's worst case on every account, or replay, or refuse.

        Raises:
            BudgetRefused: If a gate does not admit the step; nothing is charged.
            PolicyChanged: If the policy file differs from what the ledger pinned.
            UnsupportedCost: If a theorem has no price for the cost.
            ReservationConflict: If the id or the release key means something else.
            LedgerUnavailable: If the ledger did not answer; the step may not run.
        """
        answer = self._combiner.ask(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def reserve_many(self, requests: Sequence[Request]) -> list[Answer | DpflowError]:
        """Decide several requests one after another in one transaction."""
        if self.database.unwritable is not None:
            return self._kept(requests)
        answers, lines = self._reserve_surely(requests)
        if self.database.dialect != "sqlite":
            # A file is at hand, and its questions are no trips.
            self._hints.note(requests, answers)
        self._tell(answers, lines)
        return answers

    def _kept(self, requests: Sequence[Request]) -> list[Answer | DpflowError]:
        """Answer with kept releases where nothing can be charged, else why not."""
        with self.database.read() as session, Readable(self.place):
            epoch = self._check_identity(session)
            if not self._tail_checked:
                check_tail(session, self.place)
            self.watch.check(session, epoch)
            self._tail_checked = True
            return [self._kept_or_error(session, request) for request in requests]

    def _kept_or_error(
        self, session: Session, request: Request
    ) -> Answer | DpflowError:
        try:
            found = released(session, request, self.owners)
        except ReservationConflict as error:
            return error
        if found is not None:
            return found
        again = f"the ledger {self.place} can be written again; start the step again"
        return self.database.unwritable or LedgerUnavailable(again, ledger=self.place)

    def _reserve_surely(self, requests: Sequence[Request]) -> _Decided:
        # The outcome of a failed commit is unknown. The ids were made before sending,
        # so asking again either finds the answer or decides anew.
        return surely(lambda _: self._reserve_once(requests))

    def _reserve_once(self, requests: Sequence[Request]) -> _Decided:
        locked = {name for request in requests for name in request.locked}
        with self.writing(locked, asked=requests, guarded=True) as session:
            batch = Batch(session)
            answers = [self._decide_or_error(batch, r) for r in requests]
            batch.flush()
            self.watch.check_granted(session, answers)
            return answers, self.watch.lines_of(session, answers)

    def _tell(
        self, answers: Sequence[Answer | DpflowError], lines: Sequence[Line]
    ) -> None:
        """Tell the witness of what was granted; a body may start only after that."""
        try:
            self.watch.tell(lines)
        except LedgerError:
            # No body has started, so what was reserved can be given back.
            for answer in answers:
                if isinstance(answer, Granted):
                    with suppress(DpflowError):
                        self.void(answer.reservation, reason="not witnessed")
            raise

    @contextmanager
    def writing(
        self,
        datasets: Iterable[str],
        *,
        asked: Sequence[Request] = (),
        guarded: bool = False,
    ) -> Iterator[Session]:
        """Run a block in one transaction that no other writer of these overlaps.

        Args:
            datasets: What nobody else may change meanwhile.
            asked: Requests that the block decides; what they need is read in one trip.
            guarded: Refuse if the ledger forgot a charge, or its journal's end is not
                what was written.

        Raises:
            LedgerCorrupt: If another ledger is in its place, or as above.
        """
        with self.database.write() as session, Readable(self.place):
            session.lock(sorted(set(datasets)))
            for request in asked:
                announce(session, request)
                self._hints.announce(session, request)
            epoch = self._check_identity(session)
            if guarded:
                if not self._tail_checked:
                    check_tail(session, self.place)
                self.watch.check(session, epoch)
                self.watch.compact()
                self._tail_checked = True
            yield session

    def _decide_or_error(
        self, session: Session, request: Request
    ) -> Answer | DpflowError:
        """Decide one request; an error leaves no trace of it in the transaction."""
        part = Part(session)
        try:
            # Before anything is written: what it raises concerns this request alone.
            self.sources.check(session, request.policies)
            answer = decide(part, request, self.owners, self.conditions)
        except (LedgerUnavailable, LedgerCorrupt):
            raise
        except DpflowError as error:
            if not part.undo():
                raise
            return error
        part.keep()
        return answer

    def would_answer(self, request: Request) -> Answer | DpflowError:
        """Say how a request would be decided now; nothing is kept of it."""
        if self.database.unwritable is not None:
            return self._kept([request])[0]
        with self.writing(request.locked) as session:
            session.change("savepoint")
            answer = self._decide_or_error(session, request)
            session.change("rollback_to_savepoint")
            session.change("release_savepoint")
        return answer

    def settle(
        self,
        reservation: str,
        *,
        outcome: str = "completed",
        value: str | None = None,
        body: Mapping[str, Any] | None = None,
        reported: Outcome | None = None,
    ) -> None:
        """Post a charge and, in the same transaction, keep the step's release.

        A step that reports how it came out is charged what its accounts' theorems
        allow for that, and never more than was reserved; any other, in full.

        Args:
            reservation: The id that was granted.
            outcome: "completed", or "failed": an error is an output and costs as much.
            value: The encoded output; None keeps nothing to replay.
            body: Further facts for the journal.
            reported: Number of sub-steps that ran, or cell of the mechanism's output.

        Raises:
            ReservationConflict: If the charge was voided or forfeited.
            LedgerUnavailable: If the ledger did not answer; the charge stays held.
        """
        kept = None if value is None else digest(value)
        facts = dict(body or {}, outcome=outcome, digest=kept, reported=reported)
        # Should the first have come through after all, the second changes nothing.
        surely(lambda _: self._settle_once(reservation, facts, value))

    def _settle_once(
        self, reservation: str, facts: Mapping[str, Any], value: str | None
    ) -> None:
        with self.database.write() as session, Readable(self.place):
            row = self.locked_row(session, reservation)
            if row["state"] == "settled":
                return
            self._end(session, row, "settle", "settled", facts)
            key = row["release_key"]
            if key is None:
                return
            if facts["outcome"] != "completed":
                session.change("drop_claim", release_key=key, reservation=reservation)
                return
            session.change(
                "settle_release",
                release_key=key,
                reservation=reservation,
                value=value,
                digest=facts["digest"],
            )

    def void(self, reservation: str, *, reason: str) -> None:
        """Give a charge back whose body certainly never started.

        Only the process that reserved knows that, so only it may void.

        Raises:
            ReservationConflict: If another process reserved it, or it has ended.
            LedgerUnavailable: If the ledger did not answer; it may stay held.
        """
        surely(lambda again: self._void_once(reservation, reason, again=again))

    def _void_once(self, reservation: str, reason: str, *, again: bool) -> None:
        with self.database.write() as session, Readable(self.place):
            row = self.locked_row(session, reservation)
            if row["owner"] != self.owners.mine():
                msg = f"reservation {reservation} belongs to another process"
                raise ReservationConflict(msg, reservation=reservation)
            if again and row["state"] == "void":
                return
            self._end(session, row, "void", "void", {"reason": reason})
            if row["release_key"] is not None:
                session.change(
                    "drop_claim",
                    release_key=row["release_key"],
                    reservation=reservation,
                )

    def forfeit(self, reservation: str, *, because: str) -> None:
        """Close a charge that nobody will settle; it is posted in full.

        Raises:
            ReservationConflict: If its process still runs, or it has ended.
        """
        with self.database.write() as session, Readable(self.place):
            row = self.locked_row(session, reservation)
            if row["state"] == "open" and self.owners.alive(row["owner"]):
                msg = f"the process that holds reservation {reservation} still runs"
                raise ReservationConflict(msg, reservation=reservation)
            self._end(session, row, "forfeit", "forfeited", {"because": because})

    def _check_identity(self, session: Session) -> int:
        """Check that this is still the ledger that was opened; return its epoch."""
        return check_same(session, self.place, self.id)

    def locked_row(self, session: Session, reservation: str) -> Row:
        """Read a reservation, with its datasets kept from other writers.

        Raises:
            ReservationConflict: If the ledger does not know it.
        """
        rows: list[Row] = []
        # What no id may be is known to no ledger, and some drivers choke on it.
        locked: list[str] = []
        if is_id(reservation):
            if not session.exclusive:
                locked = self._hints.announce_end(session, reservation)
            session.soon("read_reservation", id=reservation)
            self._check_identity(session)
            rows = session.rows("read_reservation", id=reservation)
        if not rows:
            msg = (
                f"the ledger {self.place} knows no reservation {reservation!s:.60}. "
                "`dpflow ledger reservations` lists those that nobody settled, and "
                "`dpflow history` all."
            )
            raise ReservationConflict(msg, reservation=reservation)
        # Written once; what else the row says may change until the lock is held.
        datasets = json.loads(rows[0]["datasets"] or "[]")
        if session.exclusive or (locked and locked == datasets):
            return rows[0]
        session.lock(datasets)
        return session.rows("read_reservation", id=reservation)[0]

    def _end(
        self,
        session: Session,
        row: Row,
        kind: str,
        state: str,
        facts: Mapping[str, Any],
    ) -> None:
        """End a charge on all its accounts."""
        reservation, accounts = row["id"], json.loads(row["accounts"])
        if row["state"] != "open":
            msg = f"reservation {reservation} is {row['state']} already"
            raise ReservationConflict(msg, reservation=reservation)
        body = told_anew(json.loads(row["body"]), self.conditions.facts)
        text = canonical({**body, **facts})
        charges = held_for(session, reservation, accounts, self.place)
        reported = facts.get("reported")
        if reported is not None and _is_amended(session, reservation, accounts):
            # It is a part of a cost that was declared too small.
            reported = None
        session.post("close_reservation", id=reservation, state=state)
        for account, entry in charges:
            amount = amount_to_end(session, row, account, entry, kind)
            posted = amount
            if kind == "settle":
                posted = realised(account, row, amount, reported)
            gain = account.rule.zero() if kind == "void" else posted
            append(
                session,
                account,
                kind,
                posted,
                settled=account.settled + gain,
                held=account.held - amount,
                reservation=reservation,
                run=entry["run"],
                body=text,
                writer=writer(),
            )

    def close(self) -> None:
        """Close the ledger's files; open reservations of this process are forfeited."""
        self.owners.close()
        self.database.close()


def _is_amended(session: Session, reservation: str, accounts: Sequence[str]) -> bool:
    """Say whether an operator has charged more for a step."""
    asked = ({"account": each, "reservation": reservation} for each in accounts)
    return any(session.rows("amendments_of_reservation", **each) for each in asked)
