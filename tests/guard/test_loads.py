"""Loads: a failure is free, a replay reads nothing, and what is read stays private."""

from __future__ import annotations

import asyncio
import csv
import inspect
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
import sqlalchemy.exc

from dpflow import guarded, release, spend
from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    DPStepFailed,
    LoadFailed,
    PublicError,
)
from dpflow.guard.project import current_project
from tests.projects import NOISY, TENTH, journal, kinds, rewrite_policy, spent

pytestmark = pytest.mark.quick

SECRET = "Ada Lovelace"


class Source:
    """A source of rows that fails as often as it is said, and counts its reads."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors, self.reads = [*errors], 0

    def read(self, week: int = 1) -> list[int]:
        """Return rows, or fail."""
        print(SECRET)
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        return [week, week]


def counting(source: Source, decorate: Any = guarded, **declared: Any) -> Any:
    """Return a step that counts the rows of a source."""

    def read(week: int) -> list[int]:
        return source.read(week)

    declared = {"cost": NOISY, "ignore": ("source", "declared"), **declared}

    @decorate(dataset="shop", load=read, release_key="rows/{week}", **declared)
    def count(rows: list[int]) -> float:
        own = declared.get("noise") == "own"
        return len(rows) if own else release(len(rows))

    return count


def loading(load: Any, body: Any = len, **declared: Any) -> Any:
    """Return a step that loads, by default one that counts its rows at a tenth."""
    words = {"dataset": "shop", "cost": TENTH, "name": "count", **declared}
    return guarded(**words, load=load)(body)


@pytest.mark.promise("failed-loads")
def test_a_failed_load_is_free_and_a_replay_reads_nothing(shop):
    """Three failures and three calls of one key: one charge, one number, one read."""
    source = Source(*(ConnectionRefusedError() for _ in range(3)))
    count = counting(source)
    for _ in range(3):
        with pytest.raises(LoadFailed) as error:
            count(7)
        assert error.value.error_type == "ConnectionRefusedError"
    assert kinds() == []
    assert len({count(7) for _ in range(3)}) == 1
    assert (source.reads, kinds(), spent()) == (4, ["reserve", "settle"], "0.1")
    assert journal()[1].body["failed_loads"] == 3
    count(8)
    assert "failed_loads" not in journal()[3].body


def test_a_refused_step_reads_nothing(shop):
    """The refusal is journaled, as that of every step."""
    source = Source()
    count = counting(source, cost=TENTH, noise="own")
    with spend(dataset="shop", cost=TENTH.but(epsilon=1), step="all", noise="own"):
        pass
    with pytest.raises(BudgetRefused):
        count(1)
    assert source.reads == 0
    assert kinds() == ["reserve", "settle", "refuse"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_waits_for_the_release_of_another_run(shop, fails):
    """While the other one holds the key: it reads nothing, or runs where that fails."""
    source, runs, ends = Source(), threading.Event(), threading.Event()
    errors = [OSError()] * fails

    def read(week: int) -> list[int]:
        return source.read(week)

    unread = ("source", "runs", "ends", "errors")

    @guarded(dataset="shop", cost=NOISY, load=read, release_key="{week}", ignore=unread)
    def count(rows: list[int]) -> float:
        runs.set()
        ends.wait(10)
        if errors:
            raise errors.pop()
        return release(len(rows))

    with ThreadPoolExecutor() as pool:
        first = pool.submit(count, 1)
        assert runs.wait(10)
        second = pool.submit(count, 1)
        assert wait([second], 0.3).not_done
        ends.set()
    assert isinstance(first.exception(), DPStepFailed) is fails
    assert fails or first.result() == second.result()
    assert isinstance(second.result(), float)
    assert (source.reads, spent()) == ((2, "0.2") if fails else (1, "0.1"))


@pytest.mark.promise("failed-loads")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_budget_that_comes_free_meanwhile_is_not_lost(
    shop, monkeypatch, fails, is_async
):
    """The ledger refuses first and then grants: the load runs, and may still fail."""
    source = Source(*[OSError()] * fails)
    refusal = BudgetRefused("not now")
    ledger = current_project().ledger
    monkeypatch.setattr(ledger, "would_answer", lambda _: refusal)
    if is_async:

        async def later(rows: list[int]) -> int:
            return len(rows)

        count = lambda week: asyncio.run(loading(source.read, later)(week))
    else:
        count = counting(source, cost=TENTH, noise="own")
    if fails:
        with pytest.raises(LoadFailed):
            count(1)
        assert (kinds(), spent()) == (["reserve", "void"], "0")
    else:
        assert count(1) == 2
        assert kinds() == ["reserve", "settle"]


# Parameters


def read_week(week: int, *, city: str = "Bonn") -> list[str]:
    """Stand for a query."""
    return [city] * week


def test_the_load_has_the_parameters_of_a_body_without_others(shop):
    """Callers see them in the signature, and a key and a cost read them."""

    @guarded(
        dataset="shop",
        cost=lambda week: TENTH if week else None,
        load=read_week,
        release_key="{week}/{city}",
    )
    def count(rows: list[str]) -> int:
        return len(rows)

    assert list(inspect.signature(count).parameters) == ["week", "city"]
    assert inspect.signature(count).return_annotation == "int"
    assert set(count.__annotations__) == {"week", "city", "return"}
    assert [count(3), count(week=4), count(3, city="Bonn")] == [3, 4, 3]
    assert kinds() == ["reserve", "settle"] * 2
    with pytest.raises(TypeError):
        count()
    with pytest.raises(TypeError):
        count(3, rows=[])


def test_a_load_takes_the_arguments_that_it_names(shop):
    """The others are the body's alone; defaults are those of the step."""

    @guarded(dataset="shop", cost=TENTH, load=read_week)
    def join(rows: list[str], week: int, sign: str = "-", *, city: str = "Köln") -> str:
        return sign.join(rows) + str(week)

    assert list(inspect.signature(join).parameters) == ["week", "sign", "city"]
    assert join(2) == "Köln-Köln2"
    assert join(2, "+", city="Rom") == "Rom+Rom2"


def test_a_method_has_a_load(shop):
    """It may take the instance, or not."""

    class Report:
        factor = 2

        def read(self, week: int) -> list[int]:
            return [week] * self.factor

        @guarded(dataset="shop", cost=TENTH, load=read)
        def total(self, rows: list[int]) -> int:
            return sum(rows)

        @guarded(dataset="shop", cost=TENTH, load=read_week)
        def size(self, rows: list[str], week: int, city: str = "") -> int:
            return len(rows) + self.factor + week + len(city)

    assert Report().total(3) == 6
    assert Report().size(week=3) == 8
    assert list(inspect.signature(Report.total).parameters) == ["self", "week"]


def a_generator():
    """Yield."""
    yield 1


async def an_async_generator():
    """Yield."""
    yield 1


# What is read once only


ONCE = {
    "generator": a_generator,
    "map": lambda: map(str, [1]),
    "iterator": lambda: iter([1]),
    "cursor": lambda: sqlite3.connect(":memory:").execute("SELECT 1"),
    "csv": lambda: csv.reader(["1"]),
    "zip": lambda: zip([1], strict=True),
    "arrow": lambda: pa.table({"n": [1]}).to_reader(),
    "async": an_async_generator,
}


@pytest.mark.promise("iterators")
@pytest.mark.parametrize("name", ONCE)
def test_private_data_is_no_iterator(shop, name):
    """Neither what a load returns nor a private argument."""
    value = ONCE[name]()
    count = loading(lambda: value)
    private = {"dataset": "shop", "private": ("rows",), "data_version": "1"}
    count_given = guarded(**private, cost=TENTH, name="n")(lambda *rows: len([*rows]))
    for call in (count, lambda: count_given([1], value)):
        with pytest.raises(ConfigurationError, match="read once only") as error:
            call()
        assert "list(...)" in error.value.message
        assert "__iter__" in error.value.message
    assert kinds() == []


class Loader:
    """Rows that each reader gets anew, as those of a DataLoader."""

    def __iter__(self):
        """Begin."""
        return iter([1, 2])


def test_what_is_read_again_is_private_data(shop):
    """Such as an object with `__iter__`."""
    assert loading(Loader, lambda rows: len([*rows]) + len([*rows]))() == 4


# What is shown


class Quoted(ValueError):
    """An error whose class says that there was a person."""


#: Errors of a load, and the class that is shown.
ERRORS = [
    (ConnectionResetError(SECRET), "ConnectionResetError"),
    (TimeoutError(SECRET), "TimeoutError"),
    (sqlite3.OperationalError(SECRET), "OperationalError"),
    (sqlite3.DataError(SECRET), "an error"),
    (psycopg.errors.UndefinedTable(SECRET), "ProgrammingError"),
    (psycopg.errors.DivisionByZero(SECRET), "an error"),
    (psycopg.InterfaceError(SECRET), "InterfaceError"),
    (duckdb.CatalogException(SECRET), "ProgrammingError"),
    (duckdb.ConversionException(SECRET), "an error"),
    (sqlalchemy.exc.OperationalError(SECRET, {}, Exception()), "OperationalError"),
    (sqlalchemy.exc.DataError(SECRET, {}, Exception()), "an error"),
    (ZeroDivisionError(SECRET), "an error"),
    (Quoted(SECRET), "an error"),
    (type(SECRET, (OSError,), {})(SECRET), "OSError"),
]


@pytest.mark.parametrize(("raised", "name"), ERRORS)
def test_a_load_shows_classes_of_the_system_and_of_drivers(shop, raised, name):
    """And no text, no other class and no traceback into the load."""
    raised.__cause__ = ValueError(SECRET)
    with pytest.raises(LoadFailed) as error:
        counting(Source(raised))(1)
    failed = error.value
    assert failed.error_type == name
    assert f"failed: {name}. Nothing was charged" in failed.message
    assert failed.__cause__ is failed.__context__ is None
    assert SECRET not in f"{failed!r} {failed.details}"
    frames = [entry.name for entry in error.traceback]
    assert "read" not in frames
    assert kinds() == []


def test_a_load_may_speak(shop):
    """By a `PublicError` of its own; a subclass is withheld."""
    words = "The warehouse is being rebuilt until 5:00."
    with pytest.raises(LoadFailed, match=f"PublicError: {words} Nothing") as error:
        counting(Source(PublicError(words)))(1)
    assert error.value.error_type == "PublicError"

    class Own(PublicError):
        """Anything."""

    with pytest.raises(LoadFailed, match="failed: an error") as error:
        counting(Source(Own(SECRET)))(1)
    assert SECRET not in error.value.message


def test_a_policy_for_synthetic_data_shows_the_error(shop):
    """As it shows that of a body; it is a failed load all the same."""
    rewrite_policy(shop, "filter: basic", "filter: basic\nerrors: keep")
    raised = Quoted(SECRET)
    with pytest.raises(LoadFailed, match=f"Quoted: {SECRET}") as error:
        counting(Source(raised))(1)
    assert error.value.__cause__ is raised
    assert error.value.error_type == "Quoted"


@pytest.mark.promise("failed-loads")
@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError]
)
def test_what_ends_the_program_ends_it(shop, kind):
    """Without a charge, without the text, and nothing is owed."""
    count = counting(Source(kind(SECRET)))
    with pytest.raises(kind) as error:
        count(1)
    assert SECRET not in repr(error.value)
    project = current_project()
    project.unsettled.try_last()
    assert (kinds(), count(1) is not None, kinds()[0]) == ([], True, "reserve")
    assert "failed_loads" not in journal()[1].body


def test_a_load_has_read_private_data(shop):
    """So it draws no noise, and calls and declares no DP step."""
    inner = guarded(dataset="shop", cost=TENTH, name="inner")(lambda: 1)
    declare = lambda: guarded(dataset="shop", cost=TENTH)(read_week)
    for inside in (inner, declare, lambda: release(1)):
        outer = loading(inside, lambda rows: release(len(rows)), cost=NOISY)
        with pytest.raises(LoadFailed) as error:
            outer()
        assert error.value.error_type == "PublicError"
    assert kinds() == []


def test_a_failure_of_the_body_is_one_of_the_body(shop):
    """And is charged."""

    def fail(rows: list[int]) -> int:
        raise OSError

    with pytest.raises(DPStepFailed):
        loading(list, fail)(())
    assert spent() == "0.1"
