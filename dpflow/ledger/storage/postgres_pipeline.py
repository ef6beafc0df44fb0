"""Statements to a PostgreSQL server, sent together and answered in order.

Each is prepared once in a session and sent by the driver's binding to libpq, in its
pipeline mode: a cursor costs more than most of the ledger's statements do.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import OperationalError
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult

from dpflow.ledger.storage.postgres_connection import Connection, patience

_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)
#: Rows are tuples.
_Row = tuple[Any, ...]


class Answer:
    """What the server answers to a statement, once it was waited for."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.result: PGresult | None = None

    @property
    def status(self) -> str | None:
        """What was done, such as "COMMIT"."""
        told = None if self.result is None else self.result.command_status
        return None if told is None else told.decode()

    def fetchall(self) -> list[_Row]:
        """Return all rows."""
        return self._wire.rows(self)

    def __iter__(self) -> Iterator[_Row]:
        return iter(self.fetchall())


class Wire:
    """A session in pipeline mode.

    Args:
        connection: Outside a transaction; nobody else uses it until `end`.
    """

    def __init__(self, connection: Connection) -> None:
        self._prepared = connection.prepared
        self._libpq = connection.pgconn
        self._transformer = Transformer(connection)
        self._expected: deque[Answer] = deque()
        self._poll = select.poll()
        self._libpq.enter_pipeline_mode()

    def send(self, name: str, sql: bytes, values: Sequence[object] = ()) -> Answer:
        """Send a statement; nothing is waited for.

        Args:
            name: Of the statement.
            sql: Its text, with $1 and so on for the values.
            values: Texts, numbers or None.
        """
        label = name.encode()
        if name not in self._prepared:
            self._libpq.send_prepare(label, sql)
            self._expected.append(Answer(self))
            self._prepared.add(name)
        texts = [None if each is None else str(each).encode() for each in values]
        self._libpq.send_query_prepared(label, texts)
        answer = Answer(self)
        self._expected.append(answer)
        return answer

    def wait(self) -> None:
        """Wait until all that was sent is answered.

        Raises:
            psycopg.Error: Of the first statement that failed; the server skipped those
                after it.
        """
        # Not a mere flush: after it, the server's timer for idle transactions runs.
        self._libpq.pipeline_sync()
        while self._libpq.flush():
            self._look(select.POLLIN | select.POLLOUT)
        failed: PGresult | None = None
        while True:
            result = self._next()
            if result is None:
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                break
            if result.status in _FAILED:
                failed = failed or result
            if self._expected:
                self._expected.popleft().result = result
        if failed is not None:
            raise error_from_result(failed, encoding="utf-8")

    def end(self) -> None:
        """Give the session back."""
        self._libpq.exit_pipeline_mode()

    def rows(self, answer: Answer) -> list[_Row]:
        """Return the rows of an answer."""
        result = answer.result
        if result is None:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _next(self) -> PGresult | None:
        """Return the next result; None between those of two statements."""
        while self._libpq.is_busy():
            self._look(select.POLLIN)
        result = self._libpq.get_result()
        if result is None and self._libpq.status == ConnStatus.BAD:
            raise OperationalError(self._libpq.get_error_message())
        return result

    def _look(self, events: int) -> None:
        """Wait for the server, at most so long that a stopped one is noticed."""
        self._poll.register(self._libpq.socket, events)
        if not self._poll.poll(patience() * 1000):
            msg = "the server did not answer"
            raise OperationalError(msg)
        self._libpq.consume_input()
