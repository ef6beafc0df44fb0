"""The shell around every decision: load, decide, store, witness.

Every operation is a command in one transaction. A step may run only after `reserve`
answered `Granted`, which is after the witness has the charge. A charge that is never
settled stays in full, permanently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any

from dpflow.accounting.costs.base import Outcome
from dpflow.accounting.solving import NotSolved, only_solved
from dpflow.exceptions import (
    DpflowError,
    LedgerCorrupt,
    LedgerError,
    LedgerUnavailable,
)
from dpflow.interrupts import suppress
from dpflow.ledger.continuity import NewestEntry
from dpflow.ledger.decision.admit import Reserve, released
from dpflow.ledger.decision.settlement import End, Forfeit
from dpflow.ledger.entry import JournalError
from dpflow.ledger.keys import Digests
from dpflow.ledger.model import Command, Decision
from dpflow.ledger.provenance import provenance, writer
from dpflow.ledger.records import (
    Answer,
    Conditions,
    Granted,
    Replayed,
    Request,
    Settled,
)
from dpflow.ledger.state import State
from dpflow.ledger.storage.base import readable
from dpflow.ledger.storage.owners import Liveness
from dpflow.ledger.storage.storage import Storage
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.witness.base import WitnessAt
from dpflow.ledger.witness.rollback_check import Watch, is_witnessed

#: After this many transactions that ended to solve a number, the next solves inside.
_LOOKUPS = 3


class Ledger:
    """The operations on one ledger.

    Args:
        storage: Its storage.
        owners: Liveness of the processes that hold charges.
        witness: Makes its witness; None if it was waived.
        conditions: How requests are decided.
    """

    def __init__(
        self,
        storage: Storage,
        owners: Liveness,
        witness: WitnessAt | None = None,
        *,
        conditions: Conditions | None = None,
    ) -> None:
        self.storage = storage
        #: Where the ledger is, for messages.
        self.place = storage.place
        self.owners = owners
        self.conditions = conditions or Conditions(facts=provenance())
        self.id, self.environment, _ = storage.identity
        self.watch = Watch(storage.place, witness and witness(self.id))
        self.digests = Digests(storage)
        self._newest = NewestEntry(storage.place)

    def label(self) -> dict[str, Any]:
        """Return who sends a command, when, and how it is decided."""
        return {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "writer": self.storage.writer or writer(),
            "facts": self.conditions.facts,
            "applies": self.conditions.applies_policies,
        }

    # Every operation

    def ask(self, command: Command) -> Any:
        """Answer a command; an answer that is an error is raised.

        Raises:
            DpflowError: If it was refused, or could not be decided.
            LedgerUnavailable: If the ledger did not answer. Whether it decided is
                unknown.
        """
        if not command.at:
            command = replace(command, **self.label())
        if (why := self.storage.unwritable) is not None:
            answer = self._replayed(command, why)
        else:
            decision = self._sent(command)
            answer = decision.answer
            try:
                # The answer is for the time when the witness has the entries.
                self.watch.record((*decision.earlier, *decision.entries))
            except LedgerError:
                if not self._is_answered_unwitnessed(decision):
                    raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def would_answer(self, request: Request) -> Answer | DpflowError:
        """Decide a request without writing the decision."""
        command = Reserve(request=request, **self.label())
        try:
            if (why := self.storage.unwritable) is not None:
                answer: Answer | DpflowError = self._replayed(command, why)
                return answer
            with self.storage.read() as reading, readable(self.place):
                state = self._with_living(reading.load(command.keys), command)
                answer = command.decide(state).answer
        except (LedgerUnavailable, LedgerCorrupt):
            raise
        except DpflowError as error:
            return error
        return answer

    def _sent(self, command: Command) -> Decision:
        """Have a command decided, and again if the outcome is unknown.

        The ids exist before sending, so that the second attempt, on a fresh
        connection, either finds the answer or decides anew. It does not happen where
        the ledger was busy: the wait would be twice as long.
        """
        solve: Callable[[], object] | None = None
        may_resend = command.resent
        for attempt in count():
            try:
                if solve is not None:
                    # No transaction is open, but perhaps that of a caller that a
                    # signal has interrupted.
                    with only_solved(active=False):
                        solve()
                with only_solved(active=attempt < _LOOKUPS):
                    return self._transacted(command)
            except NotSolved as missing:
                solve = missing.solve
            except LedgerUnavailable as error:
                if "waited" in error.details or not may_resend:
                    raise
                solve, may_resend = None, False
                command = replace(command, again=True)
        raise AssertionError

    def _transacted(self, command: Command) -> Decision:
        """Decide a command in one transaction.

        Raises:
            NotSolved: If a number is not solved yet; then nothing was decided.
        """
        with self.storage.write() as transaction, readable(self.place):
            state = self._loaded(transaction, command)
            try:
                decision = command.decide(state)
            except NotSolved:

                def solve() -> None:
                    # The same decision solves all that it needs. One whose keys could
                    # not all be tried without a number has not loaded the others yet.
                    with suppress(JournalError):
                        command.decide(state)

                raise NotSolved(solve) from None
            if decision.entries:
                transaction.append(decision.entries, decision.kept)
        self._newest.note(decision.state)
        return decision

    def _loaded(self, reading: Reading, command: Command) -> State:
        """Load the keys of a command, checked against the witness if it is guarded."""

        def needs(state: State) -> Iterator[str]:
            return chain(self._newest.keys, command.keys(state))

        state = self.watch.load(reading, needs, guarded=command.guarded)
        if command.continues:
            self._newest.check(reading, state)
        return self._with_living(state, command)

    def _with_living(self, state: State, command: Command) -> State:
        """Add the living owners of those open charges that matter to a command."""
        charges = map(state.charge, filter(None, command.charges_met(state)))
        owners = {c.owner for c in charges if c is not None and c.state == "open"}
        asking = {command.request.owner} if isinstance(command, Reserve) else set()
        living = {owner for owner in owners - asking if self.owners.alive(owner)}
        state.alive = asking | living
        return state

    def _is_answered_unwitnessed(self, decision: Decision) -> bool:
        """Return whether a decision stands that the witness does not have.

        A charge is given back: no body has started. The witness gets every other
        decision when it is enrolled anew.
        """
        if isinstance(decision.answer, Granted):
            with suppress(DpflowError):
                self.void(decision.answer.reservation, reason="not witnessed")
            return False
        return not any(map(is_witnessed, decision.entries))

    def _replayed(self, command: Command, why: LedgerUnavailable) -> Any:
        """Answer with a stored release where nothing can be charged.

        Raises:
            LedgerUnavailable: If it does not exist.
        """
        if not isinstance(command, Reserve):
            raise why
        with self.storage.read() as reading, readable(self.place):
            return released(self._loaded(reading, command), command.request) or why

    # The life of a charge

    def reserve(self, request: Request) -> Answer:
        """Hold a step's worst case on every account, or replay, or refuse.

        Raises:
            BudgetRefused: If a gate does not admit the step; nothing is charged.
            PolicyChanged: If the policy file differs from the ledger's pinned copy.
            UnsupportedCost: If a theorem has no price for the cost.
            ReservationConflict: If the id or the release key means something else.
            LedgerUnavailable: If the ledger did not answer; the step may not run.
        """
        command = Reserve(request=request, **self.label())
        answer: Answer = self.ask(command)
        if isinstance(answer, Replayed):
            name = request.key_text or request.step
            value, digest = answer.value, answer.digest
            self.digests.check_value(value, answer.reservation, digest, name)
        return answer

    def settle(
        self,
        reservation: str,
        *,
        outcome: str = "completed",
        value: str | None = None,
        body: Mapping[str, Any] | None = None,
        reported: Outcome | None = None,
    ) -> Settled:
        """Post a charge and, in the same transaction, keep the step's release.

        A step that reports its outcome is charged what its accounts' theorems allow
        for that, and never more than was reserved; any other, in full.

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
        digest = None if value is None else self.digests.of_value(reservation, value)
        facts = {**(body or {}), "outcome": outcome, "digest": digest}
        end = self._end("settle", reservation, facts, value=value, reported=reported)
        return Settled(digest=digest, alerts=self.ask(end))

    def void(self, reservation: str, *, reason: str) -> None:
        """Give a charge back whose body certainly never started.

        Only the process that reserved knows that, so only it may void.

        Raises:
            ReservationConflict: If another process reserved it, or it has ended.
            LedgerUnavailable: If the ledger did not answer; it may stay held.
        """
        self.ask(self._end("void", reservation, {"reason": reason}))

    def forfeit(self, reservation: str, *, reason: str) -> Settled:
        """Post a charge in full whose process has ended.

        Raises:
            ReservationConflict: If its process still runs, or it has ended.
        """
        alerts = self.ask(self._end("forfeit", reservation, {"reason": reason}))
        return Settled(digest=None, alerts=alerts)

    def _end(self, kind: str, charge: str, body: Mapping[str, Any], **more: Any) -> End:
        facts = {"owner": self.owners.mine(), **self.label(), **more}
        command = Forfeit if kind == "forfeit" else End
        return command(kind=kind, charge=charge, body=body, **facts)

    def close(self) -> None:
        """Close the ledger's files; open reservations of this process are forfeited."""
        self.owners.close()
        self.storage.close()
