"""Statements that go to PostgreSQL together: one trip for all of them.

The driver's own pipeline sends each statement as it comes, and the server wakes for
each. Here a trip is one message with all of them, and each statement is prepared once
for a connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.generators import fetch_many, send
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from dpflow.ledger.tables.postgres_connection import Connection

#: Of a statement without its parameters, in a message.
_BYTES = 100
_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED, ExecStatus.BAD_RESPONSE)
_PARAMETER = re.compile(rb"%\(([a-z_]+)\)s")


class StatementPipeline:
    """The statements of one transaction.

    Args:
        connection: An idle connection.

    Attributes:
        size: Bytes of the next trip, about.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._libpq = connection, connection.pgconn
        self._adapter = Transformer(connection)
        #: For each statement of the next trip, whether its answer is returned.
        self._unsent: list[bool] = []
        self.size = 0
        self._libpq.enter_pipeline_mode()

    def add(
        self, statement: bytes, values: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Add a statement to the next trip.

        Args:
            statement: Its text, with the driver's parameters.
            values: Its parameters.
        """
        text, names = _number_parameters(statement)
        prepared = self._connection.prepared
        if text not in prepared:
            prepared[text] = b"dpflow_%d" % len(prepared)
            self._libpq.send_prepare(prepared[text], text)
            self._unsent.append(False)
        arguments = [values[name] for name in names]
        formats = [PyFormat.TEXT] * len(arguments)
        texts = self._adapter.dump_sequence(arguments, formats)
        self._libpq.send_query_prepared(prepared[text], texts)
        self._unsent.append(True)
        self.size += _BYTES + sum(map(len, filter(None, texts)))

    def collect(self) -> list[PGresult]:
        """Send what was added, and return the answer of each statement.

        Raises:
            psycopg.Error: If one failed; those after it were not run.
        """
        unsent, self._unsent, self.size = self._unsent, [], 0
        self._libpq.pipeline_sync()
        exchange = _exchange(self._libpq, len(unsent))
        answers: list[PGresult] = self._connection.wait(exchange)
        for answer in answers:
            if answer.status in _FAILED:
                raise error_from_result(answer)
        return [
            answer
            for answer, is_returned in zip(answers, unsent, strict=True)
            if is_returned
        ]

    def rows(self, answer: PGresult) -> list[Any]:
        """Return the rows of an answer."""
        self._adapter.set_pgresult(answer)
        return self._adapter.load_rows(0, answer.ntuples, tuple)

    def end(self, statement: bytes) -> bytes | None:
        """Run a last statement, and return how the server says that it ended.

        Raises:
            psycopg.Error: If a statement before it failed.
        """
        self.add(statement)
        *_, answer = self.collect()
        self.leave()
        return answer.command_status

    def leave(self) -> None:
        """Let the connection be used without a pipeline; nothing is unsent."""
        self._libpq.exit_pipeline_mode()


def _exchange(libpq: PGconn, count: int) -> PQGen[list[PGresult]]:
    """Send the buffered statements and fetch their answers up to the sync."""
    yield from send(libpq)
    results: list[PGresult] = []
    for _ in range(count):
        results += yield from fetch_many(libpq)
    yield from fetch_many(libpq)
    return results


@cache
def _number_parameters(statement: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with the protocol's parameters, and their names in order."""
    names = [*dict.fromkeys(_PARAMETER.findall(statement))]
    text = _PARAMETER.sub(lambda name: b"$%d" % (names.index(name[1]) + 1), statement)
    return text.replace(b"%%", b"%"), tuple(name.decode() for name in names)
