"""What the shell reads off commands, states and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dpflow.exceptions import LedgerUnavailable, ReservationConflict
from dpflow.ledger.decision.admit import released
from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Command, End, Keys, Reserve, Seal, State
from dpflow.ledger.records import Granted
from dpflow.policy import Policy


def keys_of(commands: Sequence[Command]) -> Keys:
    """Return the rows that several commands need."""
    keys = commands[0].keys
    for command in commands[1:]:
        keys = keys.and_of(command.keys)
    return keys


def policies(commands: Iterable[Command]) -> Iterator[Policy]:
    """Yield the policies of the datasets that steps read."""
    for command in commands:
        if isinstance(command, Reserve):
            yield from command.request.policies


def met(state: State, command: Command) -> Iterator[str]:
    """Yield the owners of open charges that the decision about a command may meet."""
    names: list[str | None] = []
    if isinstance(command, Reserve):
        kept = state.release(command.request.release_key)
        names = [None if kept is None else kept.charge]
        names.append(state.run(command.request.covers).preflight)
    elif isinstance(command, End):
        names = [command.charge if command.kind == "forfeit" else None]
    for name in names:
        charge = None if name is None else state.charge(name)
        if charge is not None and charge.state == "open":
            yield charge.owner


def told_of(state: State, answer: Any, made: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries of a decision that the witness may have to be told of.

    Also those of a charge that was granted when it was asked for first: whether the
    witness was told of them then is not known.
    """
    if not isinstance(answer, Granted):
        return made
    if made and (made[-1].kind, made[-1].charge) == ("reserve", answer.reservation):
        # It is granted now, in all its books.
        return made
    charge = state.charge(answer.reservation)
    if charge is None:
        return made
    known = {(entry.book, entry.number) for entry in made}
    before = [state.made(charge, book) for book in charge.places]
    return [*(e for e in before if (e.book, e.number) not in known), *made]


def kept_or_error(state: State, command: Command, why: LedgerUnavailable) -> Any:
    """Answer with a kept release where nothing can be charged, else say why not."""
    if not isinstance(command, Reserve):
        return why
    try:
        return released(state, command.request) or why
    except ReservationConflict as error:
        return error


def sent(command: Command) -> Command:
    """Say that a command was sent before, where that matters."""
    if isinstance(command, End | Seal):
        return replace(command, again=True)
    return command


def values_of(state: State, command: Command) -> dict[str, str]:
    """Return the value that a command keeps, by its release key."""
    if not isinstance(command, End) or command.value is None:
        return {}
    charge = state.charge(command.charge)
    return {} if charge is None or charge.key is None else {charge.key: command.value}
