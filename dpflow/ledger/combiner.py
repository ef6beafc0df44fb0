"""Threads that wait for the ledger share one load and one store.

A commit costs a sync of the disk, and the ledger's lock is held for as long. So one of
the threads that wait takes all their commands, in the order in which they came, and has
them decided one after another in one transaction; each gets its own answer. The command
of a thread that waits alone is decided alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from dpflow.exceptions import LedgerUnavailable
from dpflow.interrupts import without_interrupts
from dpflow.ledger.model import Command
from dpflow.locks import Turn, TurnQueue

#: More would make the first in line wait for too many others.
MOST_AT_ONCE = 64

_Decide = Callable[[Sequence[Command]], list[Any]]


class _Waiting(Turn):
    """A command, and the thread that waits for its answer.

    Attributes:
        answers: Empty until the answer is in it.
    """

    __slots__ = ("answers", "command", "since")

    def __init__(self, command: Command) -> None:
        super().__init__()
        self.command = command
        self.answers: list[Any] = []
        self.since = time.monotonic()


class Combiner:
    """A line of commands.

    Args:
        decide: Decides several commands in one transaction; an error is an answer.
    """

    def __init__(self, decide: _Decide) -> None:
        self._decide = decide
        self._line = TurnQueue()

    def ask(self, command: Command) -> Any:
        """Return the answer to a command, decided with those that wait next to it."""
        line, mine = self._line, _Waiting(command)
        try:
            try:
                line.join(mine)
                while not mine.answers:
                    if line.is_first(mine):
                        self._lead(mine)
                    elif mine in line.turns():
                        mine.rest(1)
                    else:
                        # A signal's handler has sent a command in this thread
                        # meanwhile.
                        line.join(mine)
            finally:
                # A charge that was made already stays.
                line.leave(mine)
        finally:
            # An interrupt may have come before the line above.
            line.leave(mine)
        return mine.answers[0]

    def _lead(self, mine: _Waiting) -> None:
        """Have the first in line decided, this thread's own command among them.

        An interrupt is for this thread. The others stay in line and are decided again:
        the same ids, so that no charge is made twice. Until all have
        their answers this thread stays the first.
        """
        batch = [mine, *self._others(mine)[: MOST_AT_ONCE - 1]]
        answers = self._decided([waiting.command for waiting in batch])
        error = answers[0]
        if isinstance(error, LedgerUnavailable) and "waited" in error.details:
            # A thread that has waited for most of the deadline waits for no second one.
            limit = time.monotonic() - error.details["waited"] / 2
            others = (each for each in self._others(mine) if each not in batch)
            late = [waiting for waiting in others if waiting.since <= limit]
            batch += late
            answers += [_copy(error) for _ in late]
        for waiting, answer in zip(batch, answers, strict=True):
            waiting.answers.append(answer)
            if waiting is not mine:
                # A thread that has its answer need not stand in line.
                self._line.leave(waiting)
                waiting.call()

    def _decided(self, commands: Sequence[Command]) -> list[Any]:
        guards = {command.guarded for command in commands}
        try:
            return self._decide(commands)
        except LedgerUnavailable as error:
            if "waited" in error.details or len(guards) == 1:
                return [_copy(error) for _ in commands]
            # A witness that does not answer is no obstacle for a settlement.
            answers: dict[int, Any] = {}
            for guarded in guards:
                some = [c for c in commands if c.guarded is guarded]
                answers |= zip(map(id, some), self._decided(some), strict=True)
            return [answers[id(command)] for command in commands]
        except without_interrupts(Exception) as error:
            if len(commands) == 1:
                return [error]
            # An error of one command need not be one of the next.
            return [self._decided([command])[0] for command in commands]

    def _others(self, mine: _Waiting) -> list[_Waiting]:
        """Return the others in line without an answer."""
        return [
            turn
            for turn in self._line.turns()
            if turn is not mine
            and isinstance(turn, _Waiting)
            and not (turn.answers or turn.is_over)
        ]


def _copy(error: LedgerUnavailable) -> LedgerUnavailable:
    """Return the error for another thread: a traceback belongs to one."""
    return LedgerUnavailable(error.message, **error.details)
