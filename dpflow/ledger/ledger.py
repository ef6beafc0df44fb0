"""The shell around every decision: load, decide, store, witness.

Every operation is a command in one transaction. A step may run only after `reserve`
answered `Granted`, which is after the witness has the charge. A charge that is never
settled stays in full, permanently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from dpflow.ledger.combiner import Combiner
from dpflow.ledger.decision.admit import Reserve, kept_or_error
from dpflow.ledger.decision.settlement import End, Forfeit
from dpflow.ledger.entry import JournalError
from dpflow.ledger.following import TooFar, Trail
from dpflow.ledger.keys import Digests
from dpflow.ledger.model import Command, Decision
from dpflow.ledger.provenance import provenance, writer
from dpflow.ledger.records import Answer, Conditions, Granted, Replayed, Request
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
        self._trail = Trail(storage, self.watch)
        self._combiner = Combiner(self.ask_all)

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
        """Answer one command; an answer that is an error is raised.

        Raises:
            DpflowError: If it was refused, or could not be decided.
            LedgerUnavailable: If the ledger did not answer. Whether it decided is
                unknown.
        """
        return _raised(self.ask_all([command])[0])

    def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """Answer several commands one after another in one transaction.

        Returns:
            An answer for each; one that failed contributes nothing.
        """
        commands = [c if c.at else replace(c, **self.label()) for c in commands]
        if (why := self.storage.unwritable) is not None:
            return self._replayed(commands, why)
        decisions = self._sent(commands)
        try:
            # The answers are for the time when the witness has the entries.
            self.watch.record(e for d in decisions for e in (*d.earlier, *d.entries))
        except LedgerError as error:
            return [self._unwitnessed(each, error) for each in decisions]
        return [each.answer for each in decisions]

    def would_answer(self, request: Request) -> Answer | DpflowError:
        """Decide a request without writing the decision."""
        command = Reserve(request=request, **self.label())
        if (why := self.storage.unwritable) is not None:
            replayed: Answer | DpflowError = self._replayed([command], why)[0]
            return replayed
        with self.storage.read() as reading, readable(self.place):
            state = self._alive(reading.load(command.keys), [command])
            answer: Answer | DpflowError = self._each(state, [command])[0].answer
        return answer

    def _sent(self, commands: Sequence[Command]) -> list[Decision]:
        """Have commands decided, and again if the outcome is unknown.

        The ids exist before sending, so that the second attempt, on a fresh
        connection, either finds the answer or decides anew. It does not happen where
        the ledger was busy: the wait would be twice as long.
        """
        prepare: Callable[[], object] | None = None
        may_resend = all(command.resent for command in commands)
        for attempt in count():
            try:
                if prepare is not None:
                    # No transaction is open, but perhaps that of a caller that a
                    # signal has interrupted.
                    with only_solved(active=False):
                        prepare()
                with only_solved(active=attempt < _LOOKUPS):
                    return self._transacted(commands)
            except TooFar:
                prepare = self._trail.catch_up
            except NotSolved as missing:
                prepare = missing.solve
            except LedgerUnavailable as error:
                if "waited" in error.details or not may_resend:
                    raise
                prepare, may_resend = None, False
                commands = [replace(command, again=True) for command in commands]
        raise AssertionError

    def _transacted(self, commands: Sequence[Command]) -> list[Decision]:
        """Decide commands in one transaction.

        Raises:
            NotSolved: If a number is not solved yet; then nothing was decided.
            TooFar: If more entries are new than are followed within a transaction.
        """
        with self.storage.write() as transaction, readable(self.place):
            state = self._loaded(transaction, commands)
            head = state.head
            try:
                decisions = self._each(state, commands)
            except NotSolved:

                def solve() -> None:
                    # The same decisions solve all that they need. One whose keys could
                    # not all be tried without a number has not loaded the others yet.
                    with suppress(JournalError):
                        self._each(state, commands)

                raise NotSolved(solve) from None
            if entries := [e for d in decisions for e in d.entries]:
                values = [item for d in decisions for item in d.kept.items()]
                transaction.append(entries, dict(values))
        self._trail.went_on(head, entries)
        return decisions

    def _each(self, state: State, commands: Iterable[Command]) -> list[Decision]:
        """Decide commands one after another; one that fails contributes nothing."""
        decisions: list[Decision] = []
        for command in commands:
            try:
                self.watch.check_sources(command.reads)
                decision = command.decide(state)
            except (LedgerUnavailable, LedgerCorrupt):
                raise
            except DpflowError as error:
                decision = Decision(state, command, error)
            decisions.append(decision)
            state = decision.state
        return decisions

    def _loaded(self, reading: Reading, commands: Sequence[Command]) -> State:
        """Load the keys of commands, checked against the witness if one is guarded."""
        guarded = any(command.guarded for command in commands)

        def needs(state: State) -> Iterator[str]:
            keys = (each.keys(state) for each in commands)
            return chain(("repairs", *self._trail.keys), *keys)

        state = self.watch.load(reading, needs, guarded=guarded)
        if not self._trail.is_complete or any(command.follows for command in commands):
            # Without a witness nothing tells a repaired ledger from an older copy.
            witnessed = self.watch.witness is not None
            self._trail.follow(reading, replaced=witnessed and not guarded)
            self._trail.check(reading, reading.tagged)
        elif self._trail.goes_on(state):
            self._trail.check(reading, reading.tagged)
        return self._alive(state, commands)

    def _alive(self, state: State, commands: Sequence[Command]) -> State:
        """Add the living owners of those open charges that matter to commands."""
        asking = {c.request.owner for c in commands if isinstance(c, Reserve)}
        names = [name for c in commands for name in c.charges_met(state) if name]
        others = {c.owner for c in map(state.charge, names) if c and c.state == "open"}
        living = {owner for owner in others - asking if self.owners.alive(owner)}
        state.alive = asking | living
        return state

    def _unwitnessed(self, decision: Decision, error: LedgerError) -> Any:
        """Give a charge back that the witness does not have.

        No body has started. The witness gets every other decision when it is enrolled
        anew.
        """
        if isinstance(decision.answer, Granted):
            with suppress(DpflowError):
                self.void(decision.answer.reservation, reason="not witnessed")
        elif not any(map(is_witnessed, decision.entries)):
            return decision.answer
        # One for each: a traceback belongs to the thread that raises it.
        return type(error)(error.message, **error.details)

    def _replayed(
        self, commands: Sequence[Command], why: LedgerUnavailable
    ) -> list[Any]:
        """Answer with stored releases where nothing can be charged, or an error."""
        if not any(isinstance(command, Reserve) for command in commands):
            raise why
        while True:
            self._trail.catch_up()
            with suppress(TooFar), self.storage.read() as reading, readable(self.place):
                state = self._loaded(reading, commands)
                return [kept_or_error(state, command, why) for command in commands]

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
        answer: Answer = _raised(self._combiner.ask(command))
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
    ) -> str | None:
        """Post a charge and, in the same transaction, keep the step's release.

        A step that reports its outcome is charged what its accounts' theorems allow
        for that, and never more than was reserved; any other, in full.

        Args:
            reservation: The id that was granted.
            outcome: "completed", or "failed": an error is an output and costs as much.
            value: The encoded output; None keeps nothing to replay.
            body: Further facts for the journal.
            reported: Number of sub-steps that ran, or cell of the mechanism's output.

        Returns:
            The digest of the stored value.

        Raises:
            ReservationConflict: If the charge was voided or forfeited.
            LedgerUnavailable: If the ledger did not answer; the charge stays held.
        """
        digest = None if value is None else self.digests.of_value(reservation, value)
        facts = {**(body or {}), "outcome": outcome, "digest": digest}
        end = self._end("settle", reservation, facts, value=value, reported=reported)
        _raised(self._combiner.ask(end))
        return digest

    def void(self, reservation: str, *, reason: str) -> None:
        """Give a charge back whose body certainly never started.

        Only the process that reserved knows that, so only it may void.

        Raises:
            ReservationConflict: If another process reserved it, or it has ended.
            LedgerUnavailable: If the ledger did not answer; it may stay held.
        """
        self.ask(self._end("void", reservation, {"reason": reason}))

    def forfeit(self, reservation: str, *, reason: str) -> None:
        """Post a charge in full whose process has ended.

        Raises:
            ReservationConflict: If its process still runs, or it has ended.
        """
        self.ask(self._end("forfeit", reservation, {"reason": reason}))

    def seal(self, run: str, *, outcome: str) -> bool:
        """End a flow run's preflight: no step draws after it, and the rest is returned.

        Args:
            run: The run that the preflight holds.
            outcome: How the run ended, "completed" or "failed", for the journal.

        Returns:
            Whether there was one to seal: it was refused, sealed or closed before, if
            not.

        Raises:
            ReservationConflict: If another process runs the flow, or the ledger lost
                charges since: then nothing is returned.
            LedgerUnavailable: If the ledger did not answer; the rest stays held.
        """
        return bool(self.ask(self._end("seal", "", {"outcome": outcome}, run=run)))

    def _end(self, kind: str, charge: str, body: Mapping[str, Any], **more: Any) -> End:
        facts = {"owner": self.owners.mine(), **self.label(), **more}
        command = Forfeit if kind == "forfeit" else End
        return command(kind=kind, charge=charge, body=body, **facts)

    def close(self) -> None:
        """Close the ledger's files; open reservations of this process are forfeited."""
        self.owners.close()
        self.storage.close()


def _raised(answer: Any) -> Any:
    """Return an answer, or raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer
