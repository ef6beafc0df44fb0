"""People in shards: each decides by itself, in whatever process, and none forgets."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow import PersonBudgets, guarded, sharded_person_sum
from dpflow.exceptions import (
    DPStepFailed,
    InvalidCost,
    LedgerCorrupt,
    LedgerMissing,
    ReleaseError,
)
from dpflow.mechanisms.rows import MOST_PEOPLE, NormClip
from dpflow.people.shards import MOST_SHARDS, Shard, shard_of
from tests.mechanisms import test_person_sums as sums
from tests.mechanisms.test_person_sums import SIGMA, files, no_noise

folder = sums.folder
SHARDS = 3
#: Whose visits, over all shards; numbers and texts.
VISITORS = [*range(40), *(f"c{number}" for number in range(40))]


def of_shard(number: int, visitors: Any = VISITORS) -> tuple[list[Any], None]:
    """Read the visitors of a shard."""
    return [each for each in visitors if shard_of(each, SHARDS) == number], None


def amounts(number: int) -> tuple[list[Any], Any]:
    """Read three rows of a vector for each visitor of a shard."""
    people, _ = of_shard(number)
    random = np.random.default_rng(number)
    return people * 3, random.normal(size=(3 * len(people), 2))


def deadly(number: int) -> tuple[list[Any], None]:
    """Die when the last shard is read."""
    if number == SHARDS - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return of_shard(number)


def visits(key: Any, read: Any = of_shard, shards: int = SHARDS, **options: Any) -> Any:
    """Release a sum over all shards."""

    @guarded(dataset="shop", cost=PersonBudgets(), release_key="visits/{key}")
    def count(key: str) -> Any:
        found = sharded_person_sum(read, shards=shards, **({"sigma": SIGMA} | options))
        return np.asarray(found).tolist()

    return count(str(key))


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    """Two processes that know nothing of this one."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        yield pool


# What is summed


def test_people_pay_from_the_store_of_their_shard(folder: Path) -> None:
    """Whoever came to four runs is left out of the fifth; who is new is counted."""
    with no_noise():
        assert [visits(week) for week in range(4)] == [len(VISITORS)] * 4
        assert visits(4, partial(of_shard, visitors=[*VISITORS, "new", 77])) == 2
    assert len(files(folder)) == SHARDS


def test_processes_sum_what_one_worker_sums(folder: Path, workers: Executor) -> None:
    """To the last bit, and so do threads of Dask."""
    from distributed import Client

    with no_noise():
        alone = visits("alone", amounts, norm=2, sigma=20 * SIGMA)
        assert visits("two", amounts, norm=2, sigma=20 * SIGMA, executor=workers) == (
            alone
        )
        with Client(processes=False, dashboard_address=None) as client:
            dask = client.get_executor()
            told = visits("dask", amounts, norm=2, sigma=20 * SIGMA, executor=dask)
    assert told == alone


def test_the_sum_of_all_shards_is_exact() -> None:
    """As many people as fit, with the longest rows, are a whole number in a float."""
    for shards in (1, 2, 3, 64, MOST_SHARDS):
        clip = NormClip.to("1.999", shards=shards)
        most = clip.rows(np.array([[1.999]])).max()
        assert most > 2**10
        assert int(most) * MOST_PEOPLE * shards <= 2**53


@given(st.one_of(st.text(), st.integers(-(2**62), 2**62)), st.integers(1, MOST_SHARDS))
def test_a_database_finds_the_same_shard(person: Any, shards: int) -> None:
    """With the expressions of the how-to."""
    person = person.replace("\0", "0") if isinstance(person, str) else person
    number = "(? % ? + ?) % ?"
    text = "('0x' || substr(md5(?), 1, 8))::BIGINT % ?"
    asked = (
        (text, [person, shards])
        if isinstance(person, str)
        else (number, [person, shards, shards, shards])
    )
    [(found,)] = duckdb.execute(f"SELECT {asked[0]}", asked[1]).fetchall()
    assert found == shard_of(person, shards)


# Nobody has two budgets


def test_a_person_in_another_shard_takes_no_part(folder: Path, monkeypatch) -> None:
    """In each shard they would have a budget; who lets them in gives two."""
    with no_noise():
        for week in range(4):
            visits(week, lambda _: (["a"], None))
        assert visits("more", lambda _: (["a"], None)) == 0
        monkeypatch.setattr(Shard, "has", lambda _, __: True)
        assert visits("two budgets", lambda _: (["a"], None)) == SHARDS - 1


def test_the_number_of_shards_never_changes(folder: Path) -> None:
    """The error names the number that was said."""
    visits(0)
    with pytest.raises(LedgerMissing, match="this one says 5"):
        visits(1, shards=5)
    with pytest.raises(LedgerMissing, match="this one says 1"):
        visits(1, shards=1)
    one, two, _ = files(folder)
    content = one.read_bytes(), two.read_bytes()
    one.write_bytes(content[1])
    with pytest.raises(LedgerCorrupt, match="old backup or a foreign copy"):
        visits(1)
    one.write_bytes(content[0])
    witnesses = sorted(Path(os.environ["DPFLOW_WITNESS"]).glob("*.people.witness"))
    for each in ((one, two), witnesses):
        shutil.copy(each[0], folder / "kept")
        shutil.copy(each[1], each[0])
    with pytest.raises(LedgerCorrupt, match="keeps shard 1 of 3"):
        visits(1)


@pytest.mark.parametrize("shards", [0, -1, True, 2.0, MOST_SHARDS + 1])
def test_numbers_that_are_none_are_refused(folder: Path, shards: Any) -> None:
    """Before a store is made."""
    with pytest.raises(ReleaseError, match="a whole number from 1 to 4096"):
        visits(0, shards=shards)
    assert not files(folder)
    with pytest.raises(InvalidCost, match="there is no shard 0 of"):
        Shard(0, shards)


# What goes wrong


def test_one_shard_from_a_backup_stops_the_step(folder: Path) -> None:
    """As does one that is gone; the others' charges stay."""
    visits(0)
    old = files(folder)[1]
    kept = old.read_bytes()
    visits(1)
    old.write_bytes(kept)
    with pytest.raises(LedgerCorrupt, match="old backup"):
        visits(2)
    old.unlink()
    with pytest.raises(LedgerMissing):
        visits(3)


class Remembering(Executor):
    """Answers what it was asked before, by its arguments, or whatever it is asked."""

    def __init__(self, *, looks: bool) -> None:
        self.looks = looks
        self.known: dict[str, Any] = {}

    def map(self, fn: Any, *iterables: Any, **_: Any) -> Iterator[Any]:
        """Run what is not known yet."""
        for each in iterables[0]:
            asked = repr((fn.keywords if self.looks else "", each))
            if asked not in self.known:
                self.known[asked] = fn(each)
            yield self.known[asked]


def test_an_executor_that_remembers_sells_no_sum_twice(folder: Path) -> None:
    """Dask's remembers by arguments; of one that does not look nothing is drawn."""
    once = {"sigma": SIGMA / 2}
    looks, does_not = Remembering(looks=True), Remembering(looks=False)
    with no_noise():
        assert visits(1, executor=looks, **once) == len(VISITORS)
        assert visits(2, executor=looks, **once) == 0
        visits(3, executor=does_not, **once)
        with pytest.raises(DPStepFailed, match="ReleaseError"):
            visits(4, executor=does_not, **once)


def test_a_worker_that_dies_loses_no_charge(folder: Path) -> None:
    """Nothing is released; who was charged stays charged; the next run goes on."""
    once = {"sigma": SIGMA / 2}
    spawn = multiprocessing.get_context("spawn")
    with no_noise():
        with (
            ProcessPoolExecutor(1, mp_context=spawn) as pool,
            pytest.raises(DPStepFailed, match="BrokenProcessPool"),
        ):
            visits("dies", deadly, executor=pool, **once)
        assert visits("next", **once) == len(of_shard(SHARDS - 1)[0])
        assert visits("last", **once) == 0


def test_shards_must_have_the_same_columns(folder: Path) -> None:
    """A sum of others would be something else."""

    def uneven(number: int) -> Any:
        return ["a"], np.ones((1, 1 + number % 2))

    with pytest.raises(DPStepFailed, match="ReleaseError"):
        visits(0, uneven)
