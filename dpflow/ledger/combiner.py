"""Many threads that ask about one dataset at once share one transaction.

A commit costs a sync of the disk, and the dataset's lock is held for as long. So one
of the threads that wait takes all their requests, in the order in which they came, and
has them decided one after another in one transaction; each gets its own answer. A
thread that asks alone is served as if this were not here.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.records import Answer, Request

#: More would make the first in line wait for too many others.
MOST_AT_ONCE = 64

_Answers = Sequence[Answer | Exception]
_Decide = Callable[[Sequence[Request]], _Answers]


class _Waiting:
    """A request, and the thread that waits for its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer: Answer | Exception | None = None
        self.leads = False
        self.left = False
        self.since = time.monotonic()
        self.called = threading.Event()


class Combiner:
    """Lines of requests, one for each set of datasets.

    Args:
        decide: Decides several requests in one transaction.
    """

    def __init__(self, decide: _Decide) -> None:
        self._decide = decide
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, ...], deque[_Waiting]] = {}
        self._pid = os.getpid()

    def ask(self, request: Request) -> Answer | Exception:
        """Return the answer to a request, decided with those that wait beside it."""
        if self._pid != os.getpid():
            # The threads that stood in line are the parent's.
            self._forget()
        place, mine = tuple(sorted(request.datasets)), _Waiting(request)
        with self._lock:
            line = self._lines.get(place)
            if line is None:
                # A line is there for as long as somebody leads it.
                line = self._lines[place] = deque()
                mine.leads = True
            line.append(mine)
        try:
            while mine.answer is None:
                if mine.leads:
                    self._lead(place, line, mine)
                else:
                    mine.called.wait()
        except BaseException:
            self._leave(place, line, mine)
            raise
        return mine.answer

    def _lead(
        self, place: tuple[str, ...], line: deque[_Waiting], me: _Waiting
    ) -> None:
        """Have the first in line decided, this thread's own request among them."""
        with self._lock:
            batch = [line.popleft() for _ in range(min(len(line), MOST_AT_ONCE))]
        try:
            answers = self._decided([waiting.request for waiting in batch])
            for waiting, answer in zip(batch, answers, strict=True):
                waiting.answer = answer
                waiting.called.set()
        except BaseException:
            # An interrupt is for this thread. The others ask again: the same ids, so
            # that what was charged already is not charged twice.
            with self._lock:
                others = [each for each in batch if each is not me and not each.left]
                line.extendleft(e for e in reversed(others) if e.answer is None)
            for each in others:
                if each.answer is not None:
                    each.called.set()
            raise
        if isinstance(answers[0], LedgerUnavailable):
            self._tell_patient(line, answers[0])
        self._hand_over(place, line, me)

    def _tell_patient(self, line: deque[_Waiting], error: LedgerUnavailable) -> None:
        """Tell who has waited for most of the deadline for a lock that nobody got.

        To wait for another whole deadline would make it twice as long.
        """
        limit = error.details.get("waited")
        if limit is None:
            return
        with self._lock:
            now = time.monotonic()
            for waiting in [each for each in line if now - each.since >= limit / 2]:
                line.remove(waiting)
                waiting.answer = LedgerUnavailable(error.message, **error.details)
                waiting.called.set()

    def _hand_over(
        self, place: tuple[str, ...], line: deque[_Waiting], me: _Waiting
    ) -> None:
        """Let the next in line lead, or end the line."""
        with self._lock:
            me.leads = False
            if line:
                line[0].leads = True
                line[0].called.set()
            else:
                self._lines.pop(place, None)

    def _leave(
        self, place: tuple[str, ...], line: deque[_Waiting], me: _Waiting
    ) -> None:
        """Step out of the line; a charge that was made already stays."""
        with self._lock:
            me.left = True
            if me in line:
                line.remove(me)
        if me.leads:
            self._hand_over(place, line, me)

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
