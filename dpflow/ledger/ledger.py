"""The shell around every decision: load, decide, store.

Every operation is a command in one transaction. A step may run only after `reserve`
answered `Granted`, of which the witness was told; a charge that nobody settles stays in
full, for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from traceback import clear_frames
from typing import Any

from dpflow.accounting.costs.base import Outcome
from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    LedgerCorrupt,
    LedgerError,
    LedgerUnavailable,
)
from dpflow.ledger.combiner import Combiner
from dpflow.ledger.damage import Readable
from dpflow.ledger.decision.admit import Reserve, kept_or_error
from dpflow.ledger.decision.settlement import End, Seal
from dpflow.ledger.digests import Digests
from dpflow.ledger.entry import Entry
from dpflow.ledger.following import TooFar, Trail
from dpflow.ledger.model import Command, Decision
from dpflow.ledger.provenance import provenance, writer
from dpflow.ledger.records import Answer, Conditions, Granted, Replayed, Request
from dpflow.ledger.state import State
from dpflow.ledger.storage.owners import Liveness
from dpflow.ledger.storage.storage import Storage
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.witness.base import WitnessAt
from dpflow.ledger.witness.rollback_check import Watch, is_told
from dpflow.solving import NotSolved, only_solved

#: So often a transaction ends to solve a number; the next one solves it inside.
_LOOKUPS = 3


class Ledger:
    """The operations on one ledger.

    Args:
        storage: Where it is kept.
        owners: Who holds what.
        witness: Makes its witness; None if it was waived.
        environment: What this process runs in; a ledger of another one is refused.
        conditions: How requests are decided.
    """

    def __init__(
        self,
        storage: Storage,
        owners: Liveness,
        witness: WitnessAt | None = None,
        *,
        environment: str | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        self.storage = storage
        #: Where the ledger is, for messages.
        self.place = storage.place
        self.owners = owners
        self.conditions = conditions or Conditions(facts=provenance())
        self.id, self.environment, _ = storage.identity
        check_environment(storage.place, self.environment, environment)
        told = None if witness is None else witness(self.id)
        self.watch = Watch(storage.place, told)
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

    # What every operation is

    def ask(self, command: Command) -> Any:
        """Answer one command; an answer that is an error is raised.

        Raises:
            DpflowError: If it was refused, or could not be decided.
            LedgerUnavailable: If the ledger did not answer; nothing is known then.
        """
        return _raised(self.ask_all([command])[0])

    def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """Answer several commands one after another in one transaction.

        Returns:
            An answer for each; one that failed contributes nothing.
        """
        if not commands:
            return []
        why = self.storage.unwritable
        if why is not None:
            return self._kept(commands, why)
        labelled = [c if c.at else replace(c, **self.label()) for c in commands]
        return self._told(self._sent(labelled))[: len(commands)]

    def _sent(self, commands: Sequence[Command]) -> list[Decision]:
        """Have commands decided, and again if the outcome is unknown.

        The ids were made before sending, so that asking again, on a fresh connection,
        either finds the answer or decides anew. Where the ledger was busy, to wait
        twice as long helps nobody.
        """
        try:
            try:
                return self._decided(commands, again=False)
            except LedgerUnavailable as error:
                resent = all(command.resent for command in commands)
                if "waited" in error.details or not resent:
                    raise
            return self._decided(commands, again=True)
        except Exception:
            raise
        except BaseException as stopped:
            # An interrupt may have kept a transaction from its end: it ends when
            # nothing refers to it, and who keeps the interrupt would keep it as well.
            clear_frames(stopped.__traceback__)
            raise

    def would_answer(self, request: Request) -> Answer | DpflowError:
        """Say how a request would be decided now; nothing is kept of it."""
        command, why = Reserve(request=request, **self.label()), self.storage.unwritable
        if why is not None:
            kept: Answer | DpflowError = self._kept([command], why)[0]
            return kept
        others = self.watch.governors(request.policies)
        with self.storage.read() as reading, Readable(self.place):
            state = self._alive(reading.load(command.keys), [command])
        with Readable(self.place):
            found: Answer | DpflowError = self._one(state, command, others).answer
        return found

    def _decided(self, commands: Sequence[Command], *, again: bool) -> list[Decision]:
        if again:
            commands = [replace(command, again=True) for command in commands]
        others = self.watch.governors([p for c in commands for p in c.reads])
        for attempt in count():
            try:
                with only_solved(active=attempt < _LOOKUPS):
                    return self._transacted(commands, others)
            except TooFar:
                self._trail.catch_up()
            except NotSolved as missing:
                # Nobody waits for this: no transaction is open, but perhaps of a
                # caller that a signal has interrupted.
                with only_solved(active=False):
                    missing.solve()
        raise AssertionError

    def _transacted(
        self, commands: Sequence[Command], others: Mapping[str, str]
    ) -> list[Decision]:
        """Decide commands in one transaction.

        Raises:
            NotSolved: If a number is not solved yet; then nothing was decided.
            TooFar: If more entries are new than are followed within a transaction.
        """
        with self.storage.write() as transaction, Readable(self.place):
            state = self._loaded(transaction, commands)
            try:
                found = self._each(state, commands, others)
            except NotSolved:
                # The same decisions solve all that they need.
                raise NotSolved(lambda: self._each(state, commands, others)) from None
            columns = [each.columns for one in found for each in one.entries]
            kept: dict[str, str | None] = {}
            for decision in found:
                kept |= decision.kept
            if columns:
                transaction.append(columns, kept)
        self._trail.went_on(state.head, [each for one in found for each in one.entries])
        return found

    def _each(
        self, state: State, commands: Iterable[Command], others: Mapping[str, str]
    ) -> list[Decision]:
        """Decide commands one after another."""
        found: list[Decision] = []
        for command in commands:
            found.append(self._one(state, command, others))
            state = found[-1].state
        return found

    def _loaded(self, reading: Reading, commands: Sequence[Command]) -> State:
        """Load what commands need, checked against the witness where one is guarded."""

        def needs(state: State) -> Iterator[str]:
            yield "repairs"
            for command in commands:
                yield from command.keys(state)

        guarded = any(command.guarded for command in commands)
        look = self.watch.look() if guarded else None
        state = reading.load(needs, numbers=() if look is None else look.numbers)
        self.watch.check(look, reading, state)
        if any(command.follows for command in commands):
            # Without a witness nothing tells a repaired ledger from an older copy.
            witnessed = self.watch.witness is not None
            self._trail.follow(reading, replaced=witnessed and not guarded)
            self._trail.check(reading, state)
        return self._alive(state, commands)

    def _alive(self, state: State, commands: Sequence[Command]) -> State:
        """Add which owners of open charges still run, of those that matter here."""
        names = (name for c in commands for name in c.charges_met(state) if name)
        met = [state.charge(name) for name in names]
        others = {c.owner for c in met if c is not None and c.state == "open"}
        if not others and len(commands) == 1:
            return state
        asking = {c.request.owner for c in commands if isinstance(c, Reserve)}
        living = {each for each in others - asking if self.owners.alive(each)}
        state.alive = asking | living
        return state

    def _one(
        self, state: State, command: Command, others: Mapping[str, str]
    ) -> Decision:
        """Decide one command; one that fails contributes nothing."""
        try:
            if others:
                self.watch.check_sources(command.reads, others)
            return command.decide(state)
        except (LedgerUnavailable, LedgerCorrupt):
            raise
        except DpflowError as error:
            return Decision(state, command, error)

    def _told(self, found: Sequence[Decision]) -> list[Any]:
        """Tell the witness what was decided; a body may start only after that."""
        try:
            self.watch.tell([entry for each in found for entry in _news(each)])
        except LedgerError as error:
            return [self._untold(each, error) for each in found]
        return [each.answer for each in found]

    def _untold(self, found: Decision, error: LedgerError) -> Any:
        """Give a charge back of which the witness could not be told.

        No body has started. Of anything else that was decided the witness hears when
        it is enrolled anew.
        """
        if isinstance(found.answer, Granted):
            with suppress(DpflowError):
                self.void(found.answer.reservation, reason="not witnessed")
        elif not any(map(is_told, _news(found))):
            return found.answer
        # One for each: a traceback belongs to who raises it.
        return type(error)(error.message, **error.details)

    def _kept(self, commands: Sequence[Command], why: LedgerUnavailable) -> list[Any]:
        """Answer with kept releases where nothing can be charged, else say why not."""
        if not any(isinstance(command, Reserve) for command in commands):
            raise why
        while True:
            self._trail.catch_up()
            with (
                suppress(TooFar),
                self.storage.read() as reading,
                Readable(self.place),
            ):
                state = self._loaded(reading, commands)
                return [kept_or_error(state, command, why) for command in commands]

    # The life of a charge

    def reserve(self, request: Request) -> Answer:
        """Hold a step's worst case on every account, or replay, or refuse.

        Raises:
            BudgetRefused: If a gate does not admit the step; nothing is charged.
            PolicyChanged: If the policy file differs from what the ledger pinned.
            UnsupportedCost: If a theorem has no price for the cost.
            ReservationConflict: If the id or the release key means something else.
            LedgerUnavailable: If the ledger did not answer; the step may not run.
        """
        found = _raised(self._combiner.ask(Reserve(request=request)))
        if isinstance(found, Replayed):
            told = request.key_text or request.step
            self.digests.check_value(found.value, found.reservation, found.digest, told)
        answer: Answer = found
        return answer

    def reserve_many(self, requests: Sequence[Request]) -> list[Answer | DpflowError]:
        """Decide several requests one after another in one transaction."""
        return self.ask_all([Reserve(request=request) for request in requests])

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

        A step that reports how it came out is charged what its accounts' theorems
        allow for that, and never more than was reserved; any other, in full.

        Args:
            reservation: The id that was granted.
            outcome: "completed", or "failed": an error is an output and costs as much.
            value: The encoded output; None keeps nothing to replay.
            body: Further facts for the journal.
            reported: Number of sub-steps that ran, or cell of the mechanism's output.

        Returns:
            The digest of the value that is kept.

        Raises:
            ReservationConflict: If the charge was voided or forfeited.
            LedgerUnavailable: If the ledger did not answer; the charge stays held.
        """
        kept = None if value is None else self.digests.of_value(reservation, value)
        told = {**(body or {}), "outcome": outcome, "digest": kept}
        command = self._ending(reservation, "settle", told, value, reported)
        _raised(self._combiner.ask(command))
        return kept

    def void(self, reservation: str, *, reason: str) -> None:
        """Give a charge back whose body certainly never started.

        Only the process that reserved knows that, so only it may void.

        Raises:
            ReservationConflict: If another process reserved it, or it has ended.
            LedgerUnavailable: If the ledger did not answer; it may stay held.
        """
        self.ask(self._ending(reservation, "void", {"reason": reason}))

    def forfeit(self, reservation: str, *, reason: str) -> None:
        """Close a charge that nobody will settle; it is posted in full.

        Raises:
            ReservationConflict: If its process still runs, or it has ended.
        """
        self.ask(self._ending(reservation, "forfeit", {"reason": reason}))

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
        mine = self.owners.mine()
        found: bool = self.ask(Seal(run=run, owner=mine, outcome=outcome))
        return found

    def _ending(
        self,
        reservation: str,
        kind: str,
        body: Mapping[str, Any],
        value: str | None = None,
        reported: Outcome | None = None,
    ) -> End:
        return End(
            charge=reservation,
            kind=kind,
            owner=self.owners.mine(),
            body=body,
            value=value,
            reported=reported,
        )

    def close(self) -> None:
        """Close the ledger's files; open reservations of this process are forfeited."""
        self.owners.close()
        self.storage.close()


def check_environment(place: str, serves: str | None, runs: str | None) -> None:
    """Refuse a ledger that was made for another environment than this one."""
    if serves is not None and serves != runs:
        this = "says none" if runs is None else f"says {runs!r}"
        msg = (
            f"the ledger {place} serves the environment {serves!r}, and this run "
            f"{this}. Set DPFLOW_ENVIRONMENT={serves} if that is what it is, or "
            "DPFLOW_LEDGER_URL to the ledger of its own environment."
        )
        raise ConfigurationError(msg)


def _news(decision: Decision) -> Iterable[Entry]:
    """Return the entries of which the witness may not have heard."""
    return (*decision.earlier, *decision.entries)


def _raised(answer: Any) -> Any:
    """Return an answer, or raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer
