"""Many threads that ask about one dataset at once share one transaction.

A commit costs a sync of the disk, and the dataset's lock is held for as long. So one
of the threads that wait takes all their requests, in the order in which they came, and
has them decided one after another in one transaction; each gets its own answer. A
thread that asks alone is served as if this were not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.records import Answer, Request
from dpflow.locks import Line, Turn

#: More would make the first in line wait for too many others.
MOST_AT_ONCE = 64

_Answers = Sequence[Answer | Exception]
_Decide = Callable[[Sequence[Request]], _Answers]


class _Waiting(Turn):
    """A request, and the thread that waits for its answer."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request
        self.answer: Answer | Exception | None = None
        self.since = time.monotonic()


class Combiner:
    """Lines of requests, one for each set of datasets.

    Args:
        decide: Decides several requests in one transaction.
    """

    def __init__(self, decide: _Decide) -> None:
        self._decide = decide
        self._lines: dict[tuple[str, ...], Line] = {}

    def ask(self, request: Request) -> Answer | Exception:
        """Return the answer to a request, decided with those that wait beside it."""
        line = self._lines.setdefault(tuple(sorted(request.datasets)), Line())
        mine = _Waiting(request)
        try:
            try:
                line.join(mine)
                while mine.answer is None:
                    if line.is_first(mine):
                        self._lead(line)
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

    def _lead(self, line: Line) -> None:
        """Have the first in line decided, this thread's own request among them.

        An interrupt is for this thread. The others stay in line and are asked for
        again: the same ids, so that what was charged is not charged twice.
        """
        batch = _waiting(line)[:MOST_AT_ONCE]
        if not batch:
            return
        answers = self._decided([waiting.request for waiting in batch])
        for waiting, answer in zip(batch, answers, strict=True):
            _tell(line, waiting, answer)
        if isinstance(answers[0], LedgerUnavailable):
            self._tell_patient(line, answers[0])

    def _tell_patient(self, line: Line, error: LedgerUnavailable) -> None:
        """Tell who has waited for most of the deadline for a lock that nobody got.

        To wait for another whole deadline would make it twice as long.
        """
        limit = error.details.get("waited")
        if limit is None:
            return
        now = time.monotonic()
        for waiting in _waiting(line):
            if now - waiting.since >= limit / 2:
                _tell(line, waiting, LedgerUnavailable(error.message, **error.details))

    def _decided(self, requests: Sequence[Request]) -> _Answers:
        try:
            return self._decide(requests)
        except LedgerUnavailable as error:
            # One for each thread: a traceback belongs to who raises it.
            return [LedgerUnavailable(error.message, **error.details) for _ in requests]
        except Exception as error:  # noqa: BLE001 (of whatever kind, it is someone's)
            if len(requests) == 1:
                return [error]
            # What is wrong for one need not be wrong for the next.
            return [self._decided([request])[0] for request in requests]


def _waiting(line: Line) -> list[_Waiting]:
    """Return who stands in line without an answer."""
    return [
        turn
        for turn in line.turns()
        if isinstance(turn, _Waiting) and turn.answer is None and not turn.is_over
    ]


def _tell(line: Line, waiting: _Waiting, answer: Answer | Exception) -> None:
    """Give an answer; who has it need not stand in line."""
    waiting.answer = answer
    line.leave(waiting)
    waiting.call()
