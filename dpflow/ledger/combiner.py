"""Many threads that ask at once share one load and one store.

A commit costs a sync of the disk, and the ledger's lock is held for as long. So one of
the threads that wait takes all their commands, in the order in which they came, and has
them decided one after another in one transaction; each gets its own answer. A thread
that asks alone is served as if this were not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.model import Command
from dpflow.locks import Turn, TurnQueue

#: More would make the first in line wait for too many others.
MOST_AT_ONCE = 64

_Answers = Sequence[Any]
_Decide = Callable[[Sequence[Command]], _Answers]


class _Waiting(Turn):
    """A command, and the thread that waits for its answer."""

    __slots__ = ("answer", "answered", "command", "since")

    def __init__(self, command: Command) -> None:
        super().__init__()
        self.command = command
        self.answer: Any = None
        self.answered = False
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
        """Return the answer to a command, decided with those that wait beside it."""
        line, mine = self._line, _Waiting(command)
        try:
            try:
                line.join(mine)
                while not mine.answered:
                    if line.is_first(mine):
                        self._lead(mine)
                    elif mine in line.turns():
                        mine.rest(1)
                    else:
                        # A signal's handler has asked in this thread meanwhile.
                        line.join(mine)
            finally:
                # A charge that was made already stays.
                line.leave(mine)
        finally:
            # An interrupt may have come before the line above.
            line.leave(mine)
        return mine.answer

    def _lead(self, mine: _Waiting) -> None:
        """Have the first in line decided, this thread's own command among them.

        An interrupt is for this thread. The others stay in line and are asked for
        again: the same ids, so that what was charged is not charged twice. Until all
        have their answers this thread stays the first.
        """
        batch = [mine, *self._others(mine)[: MOST_AT_ONCE - 1]]
        answers = self._decided([waiting.command for waiting in batch])
        for waiting, answer in zip(batch, answers, strict=True):
            self._tell(mine, waiting, answer)
        if isinstance(answers[0], LedgerUnavailable):
            self._tell_patient(mine, answers[0])

    def _tell_patient(self, mine: _Waiting, error: LedgerUnavailable) -> None:
        """Tell who has waited for most of the deadline for a lock that nobody got.

        To wait for another whole deadline would make it twice as long.
        """
        limit = error.details.get("waited")
        if limit is None:
            return
        now = time.monotonic()
        for waiting in self._others(mine):
            if now - waiting.since >= limit / 2:
                answer = LedgerUnavailable(error.message, **error.details)
                self._tell(mine, waiting, answer)

    def _decided(self, commands: Sequence[Command]) -> _Answers:
        try:
            return self._decide(commands)
        except LedgerUnavailable as error:
            if "waited" not in error.details and len({c.guarded for c in commands}) > 1:
                # A witness that does not answer is no obstacle for a settlement.
                return self._apart(commands)
            # One for each thread: a traceback belongs to who raises it.
            return [LedgerUnavailable(error.message, **error.details) for _ in commands]
        except Exception as error:  # noqa: BLE001 (of whatever kind, it is someone's)
            if len(commands) == 1:
                return [error]
            # What is wrong for one need not be wrong for the next.
            return [self._decided([command])[0] for command in commands]

    def _apart(self, commands: Sequence[Command]) -> _Answers:
        """Decide what the witness guards, and what it does not, by themselves."""
        found: dict[int, Any] = {}
        for guarded in (False, True):
            some = [c for c in commands if c.guarded is guarded]
            found |= zip(map(id, some), self._decided(some), strict=True)
        return [found[id(command)] for command in commands]

    def _others(self, mine: _Waiting) -> list[_Waiting]:
        """Return who else stands in line without an answer."""
        return [
            turn
            for turn in self._line.turns()
            if turn is not mine
            and isinstance(turn, _Waiting)
            and not (turn.answered or turn.is_over)
        ]

    def _tell(self, mine: _Waiting, waiting: _Waiting, answer: Any) -> None:
        """Give an answer; who has it need not stand in line."""
        waiting.answer = answer
        waiting.answered = True
        if waiting is not mine:
            self._line.leave(waiting)
            waiting.call()
