"""Statements that go to PostgreSQL together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from dpflow.ledger.tables.postgres_connection import Connection, Server
from dpflow.ledger.tables.postgres_pipeline import StatementPipeline
from tests.tables import read_tables


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    """Give a session of its own."""
    with closing(Server(postgres_url).connect()) as session:
        yield session


def ask(pipeline: StatementPipeline, statement: bytes, **values: Any) -> list[Any]:
    """Run one statement in a trip of its own."""
    pipeline.add(statement, values)
    (answer,) = pipeline.collect()
    return pipeline.rows(answer)


@pytest.mark.parametrize(("kind", "value"), read_tables(__file__))
def test_values_come_back_as_they_were_sent(connection, kind, value):
    """Each, and in a statement that names it twice."""
    pipeline = StatementPipeline(connection)
    text = f"SELECT CAST(%(x)s AS {kind}), 7 %% 4, CAST(%(x)s AS {kind})".encode()
    for _ in range(2):
        assert ask(pipeline, text, x=value) == [(value, 3, value)]
    assert len(connection.prepared) == 1
    pipeline.leave()
    assert connection.execute(b"SELECT 1").fetchall() == [(1,)]


def test_answers_come_in_the_order_of_the_statements(connection):
    """Of one trip, and none of the one before."""
    pipeline = StatementPipeline(connection)
    for trip in range(3):
        for number in range(50):
            pipeline.add(b"SELECT CAST(%(n)s AS int)", {"n": trip * 50 + number})
        found = [pipeline.rows(answer) for answer in pipeline.collect()]
        assert found == [[(trip * 50 + number,)] for number in range(50)]
    assert pipeline.collect() == []


def test_the_first_error_is_raised_and_nothing_after_it_runs(connection):
    """A COMMIT behind it does not run either."""
    pipeline = StatementPipeline(connection)
    ask(pipeline, b"CREATE TEMP TABLE made (n int)")
    pipeline.add(b"BEGIN")
    pipeline.add(b"INSERT INTO made VALUES (1)")
    pipeline.add(b"SELECT 1 / 0")
    pipeline.add(b"SELECT missing")
    with pytest.raises(psycopg.errors.DivisionByZero):
        pipeline.end(b"COMMIT")
    assert pipeline.end(b"ROLLBACK") == b"ROLLBACK"
    assert connection.execute(b"SELECT n FROM made").fetchall() == []


def test_both_sides_may_have_much_to_say(connection):
    """Neither waits for the other to read: more than any buffer holds, each way."""
    pipeline, text = StatementPipeline(connection), "x" * 1_000_000
    for _ in range(16):
        pipeline.add(b"SELECT CAST(%(x)s AS text)", {"x": text})
    assert [pipeline.rows(answer) for answer in pipeline.collect()] == [[(text,)]] * 16


def test_a_session_that_was_left_in_a_pipeline_is_replaced(postgres_url):
    """An interrupt came before its first statement."""
    server = Server(postgres_url)
    first = server.open()
    assert server.open() is first
    StatementPipeline(first)
    second = server.open()
    assert first.closed
    assert second.execute(b"SELECT 1").fetchall() == [(1,)]
    server.drop()
