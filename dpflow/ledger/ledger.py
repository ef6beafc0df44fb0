"""The shell around every decision: load, decide, store.

Every operation is a command in one transaction. A step may run only after `reserve`
answered `Granted`; a charge that nobody settles stays in full, for ever.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from dpflow.accounting.theorem import Outcome
from dpflow.exceptions import DpflowError, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.again import surely
from dpflow.ledger.decision.decide import decide
from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.identity import check_environment
from dpflow.ledger.model import Command, End, Reserve, Seal, State
from dpflow.ledger.owner import Liveness
from dpflow.ledger.provenance import provenance
from dpflow.ledger.records import Answer, Conditions, Request, digest
from dpflow.ledger.rows import Changes, Charge
from dpflow.ledger.storage.base import Storage
from dpflow.ledger.writer import writer


class Ledger:
    """The operations on one ledger.

    Args:
        storage: Where it is kept.
        owners: Who holds what.
        environment: What this process runs in; a ledger of another one is refused.
        conditions: How requests are decided.
    """

    def __init__(
        self,
        storage: Storage,
        owners: Liveness,
        *,
        environment: str | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        self.storage = storage
        self.owners = owners
        self.conditions = conditions or Conditions(facts=provenance())
        self.id, self.environment, _ = storage.identity
        check_environment(storage.place, self.environment, environment)
        self._secret: bytes | None = None

    @property
    def place(self) -> str:
        """Where the ledger is, for messages."""
        return self.storage.place

    def label(self) -> dict[str, Any]:
        """Return what every command says of who sends it, and when."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        return {"at": at, "writer": writer(), "facts": self.conditions.facts}

    def release_key(self, *parts: object) -> str:
        """Return the keyed digest of what identifies a release.

        The key is the ledger's own secret, so that a digest does not tell what it
        was made of to anyone who lacks the ledger. Who only reads may not have it.
        """
        if self._secret is None:
            with self.storage.read() as reading:
                self._secret = reading.secret()
        text = canonical(list(parts)).encode()
        return hmac.new(self._secret, text, "sha256").hexdigest()

    # What every operation is

    def ask(self, command: Command) -> Any:
        """Answer one command; an answer that is an error is raised.

        Raises:
            DpflowError: If it was refused, or could not be decided.
            LedgerUnavailable: If the ledger did not answer; nothing is known then.
        """
        (answer,) = self.ask_all([command])
        if isinstance(answer, DpflowError):
            raise answer
        return answer

    def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """Answer several commands one after another in one transaction.

        Returns:
            An answer for each; one that failed contributes nothing.
        """

        def once(again: bool) -> tuple[list[Any], list[Entry]]:  # noqa: FBT001
            return self._decided([_sent(each, again=again) for each in commands])

        answers, _ = surely(once)
        return answers

    def would_answer(self, request: Request) -> Answer | DpflowError:
        """Say how a request would be decided now; nothing is kept of it."""
        command = self._reserving(request)
        with self.storage.read() as reading:
            state = self._alive(reading.load(command.keys))
        return _one(state, command)[0]

    def _decided(self, commands: Sequence[Command]) -> tuple[list[Any], list[Entry]]:
        keys = commands[0].keys
        for command in commands[1:]:
            keys = keys.and_of(command.keys)
        answers: list[Any] = []
        entries: list[Entry] = []
        changes: Changes = {}
        values: dict[str, str] = {}
        with self.storage.write() as transaction:
            state = self._alive(transaction.load(keys))
            for command in commands:
                answer, state, made, changed = _one(state, command)
                answers.append(answer)
                entries += made
                changes |= changed
                if made:
                    values |= _values_of(state, command)
            if entries:
                transaction.store(changes, entries, values)
        return answers, entries

    def _alive(self, state: State) -> State:
        """Add which owners of open charges still run."""
        mine = self.owners.mine()
        others = {
            row.owner
            for row in state.rows.values()
            if isinstance(row, Charge) and row.state == "open" and row.owner != mine
        }
        living: Collection[str] = {each for each in others if self.owners.alive(each)}
        return replace(state, alive={*living, mine})

    def _reserving(self, request: Request) -> Reserve:
        applies = self.conditions.applies_policies
        return Reserve(request=request, applies=applies, **self.label())

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
        found: Answer = self.ask(self._reserving(request))
        return found

    def reserve_many(self, requests: Sequence[Request]) -> list[Answer | DpflowError]:
        """Decide several requests one after another in one transaction."""
        return self.ask_all([self._reserving(request) for request in requests])

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
        told = {**(body or {}), "outcome": outcome, "digest": kept}
        self._end(reservation, "settle", told, value=value, reported=reported)

    def void(self, reservation: str, *, reason: str) -> None:
        """Give a charge back whose body certainly never started.

        Only the process that reserved knows that, so only it may void.

        Raises:
            ReservationConflict: If another process reserved it, or it has ended.
            LedgerUnavailable: If the ledger did not answer; it may stay held.
        """
        self._end(reservation, "void", {"reason": reason})

    def forfeit(self, reservation: str, *, because: str) -> None:
        """Close a charge that nobody will settle; it is posted in full.

        Raises:
            ReservationConflict: If its process still runs, or it has ended.
        """
        self._end(reservation, "forfeit", {"because": because})

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
        found: bool = self.ask(
            Seal(run=run, owner=mine, outcome=outcome, **self.label())
        )
        return found

    def _end(
        self,
        reservation: str,
        kind: str,
        body: Mapping[str, Any],
        *,
        value: str | None = None,
        reported: Outcome | None = None,
    ) -> None:
        self.ask(
            End(
                charge=reservation,
                kind=kind,
                owner=self.owners.mine(),
                body=body,
                value=value,
                reported=reported,
                **self.label(),
            )
        )

    def close(self) -> None:
        """Close the ledger's files; open reservations of this process are forfeited."""
        self.owners.close()
        self.storage.close()


_Found = tuple[Any, State, Sequence[Entry], Changes]


def _one(state: State, command: Command) -> _Found:
    """Decide one command; one that fails contributes nothing."""
    try:
        decision = decide(state, command)
    except (LedgerUnavailable, LedgerCorrupt):
        raise
    except DpflowError as error:
        return error, state, (), {}
    return decision.answer, decision.state, decision.entries, decision.changes


def _sent(command: Command, *, again: bool) -> Command:
    """Say that a command was sent before, where that matters."""
    if again and isinstance(command, End | Seal):
        return replace(command, again=True)
    return command


def _values_of(state: State, command: Command) -> dict[str, str]:
    """Return the value that a command keeps, by its release key."""
    if not isinstance(command, End) or command.value is None:
        return {}
    charge = state.charge(command.charge)
    return {} if charge is None or charge.key is None else {charge.key: command.value}
