"""PostgreSQL under failures: nothing acknowledged is lost, nothing is charged twice."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
import yaml

from dpflow import PureDP
from dpflow.exceptions import LedgerRolledBack, LedgerUnavailable
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Granted
from dpflow.ledger.tables.postgres_pipeline import StatementPipeline
from tests.ledger.processes import Child
from tests.ledger.support import audit, edit, granted, read, request, sums
from tests.postgres import PostgresServer, binaries, name_of, server
from tests.sizes import scaled

T = TypeVar("T")
SMALL = PureDP(epsilon=Fraction(1, 10**6))
UNITS = Fraction(1, 10**6)
#: Rows of tests: texts, and what the refusals say.
TABLES = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text("utf-8"))
#: Each has two answers to lose.
CHARGES = scaled(50, 12)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """Give a server that a test may harm, if it runs again afterwards."""
    started = PostgresServer()
    yield started
    started.destroy()


def until_answered(call: Callable[[], T]) -> T:
    """Repeat a call that changes nothing the second time until it is answered."""
    until = time.monotonic() + 300
    while True:
        try:
            return call()
        except LedgerUnavailable:
            assert time.monotonic() < until
            time.sleep(0.02)


def reserved(ledger: Ledger) -> str:
    """Reserve, asking with the same id until there is an answer."""
    step = until_answered(lambda: request(ledger, SMALL))
    assert isinstance(until_answered(lambda: ledger.reserve(step)), Granted)
    return step.reservation


# Lost answers


@pytest.mark.promise("lost-answer")
def test_a_lost_answer_to_a_commit_changes_nothing(postgres_url, monkeypatch):
    """Cut before the commit and after it: exactly the requested charges."""
    create_ledger(postgres_url).close()
    sides, end = list[int](), StatementPipeline.end

    def cut(pipeline: StatementPipeline, statement: bytes) -> bytes | None:
        if statement == b"COMMIT" and sides:
            # Nothing more comes to the server, or nothing comes from it.
            with socket.socket(fileno=os.dup(pipeline._libpq.socket)) as wire:
                wire.shutdown(sides.pop())
        return end(pipeline, statement)

    monkeypatch.setattr(StatementPipeline, "end", cut)
    names: list[str] = []
    with closing(open_ledger(postgres_url)) as ledger:
        for number in range(CHARGES):
            # Each pair of sides, in turns.
            cuts = divmod(number % 4, 2)
            made = request(ledger, SMALL)
            sides.append(cuts[0])
            assert isinstance(ledger.reserve(made), Granted)
            names.append(made.reservation)
            sides.append(cuts[1])
            ledger.settle(made.reservation)
            assert sides == []
    assert sums(postgres_url) == (CHARGES * UNITS, 0)
    kept = read(postgres_url, "SELECT id FROM charge")
    assert {*kept} == {(name,) for name in names}
    audit(postgres_url)


@pytest.mark.promise("ended-sessions")
def test_a_storm_of_ended_sessions_loses_nothing(postgres_url):
    """Four threads work while their sessions are ended again and again."""
    create_ledger(postgres_url).close()
    ledgers = [open_ledger(postgres_url) for _ in range(4)]
    done = threading.Event()

    def work(ledger: Ledger) -> list[str]:
        names: list[str] = []
        with closing(ledger):
            while not done.is_set():
                names.append(reserved(ledger))
                until_answered(partial(ledger.settle, names[-1]))
        return names

    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name "
        "= 'dpflow' AND datname = current_database() ORDER BY random() LIMIT 1"
    )
    killed = 0
    with ThreadPoolExecutor(4) as threads:
        workers = [threads.submit(work, ledger) for ledger in ledgers]
        while killed < scaled(40, 15):
            killed += len(read(postgres_url, kill))
            time.sleep(0.005)
        done.set()
    names = [name for worker in workers for name in worker.result()]
    assert {*read(postgres_url, "SELECT id, state FROM charge")} == {
        (name, "settled") for name in names
    }
    assert sums(postgres_url) == (len(names) * UNITS, 0)
    audit(postgres_url)


@pytest.mark.promise("killed-server")
def test_a_killed_server_keeps_what_it_acknowledged(own_server):
    """Again and again kill -9 to all of it, while four processes reserve."""
    url = own_server.new_database()
    create_ledger(url).close()

    def work(say: Callable[[str], None]) -> None:
        ledger = until_answered(lambda: open_ledger(url))
        while True:
            say(reserved(ledger))

    children = [Child(work) for _ in range(4)]
    for number in range(scaled(3, 2)):
        while len(read(url, "SELECT id FROM charge")) < 8 * number + 8:
            time.sleep(0.02)
        own_server.stop(signal.SIGKILL)
        own_server.start()
    said = set[str]()
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
        said |= {line for line in child.end()[1] if re.fullmatch("[0-9a-f]{32}", line)}
    kept = {name for (name,) in read(url, "SELECT id FROM charge")}
    assert said <= kept
    assert len(kept - said) <= len(children)
    assert sums(url) == (0, len(kept) * UNITS)
    audit(url)


# A server that may lose what it acknowledges


@pytest.mark.promise("killed-server")
def test_a_server_that_does_not_sync_is_refused(own_server):
    """At the opening, and at the next decision if it changes meanwhile."""
    url = own_server.new_database()

    def configure(statement: str, setting: str, value: str) -> None:
        own_server.run(f"ALTER SYSTEM {statement}", "SELECT pg_reload_conf()")
        # A new session shows it only once all older ones are told.
        while read(url, f"SHOW {setting}") != [(value,)]:
            time.sleep(0.02)

    with closing(create_ledger(url)) as ledger:
        granted(ledger, "0.1")
        for number, setting in enumerate(("fsync", "full_page_writes"), 1):
            configure(f"SET {setting} = off", setting, "off")
            for call in (lambda: granted(ledger, "0.1"), lambda: open_ledger(url)):
                match = f"{setting} = off.*set it to on"
                with pytest.raises(LedgerUnavailable, match=match):
                    call()
            assert sums(url) == (0, Fraction(number, 10))
            configure(f"RESET {setting}", setting, "on")
            granted(ledger, "0.1")


@pytest.mark.promise("killed-server")
@pytest.mark.parametrize("value", ["off", "local", "remote_write"])
def test_commits_that_do_not_wait_are_refused(ledger, postgres_url, value):
    """Whether the URL or the database says so; a session asks once more at a write."""
    address = f"{postgres_url}&options=-csynchronous_commit%3D{value}"
    with pytest.raises(LedgerUnavailable, match=f"synchronous_commit = {value}"):
        open_ledger(address)
    server().alter(postgres_url, f"synchronous_commit = {value}")
    with pytest.raises(LedgerUnavailable, match=f"synchronous_commit = {value}"):
        open_ledger(postgres_url)
    server().alter(postgres_url, "synchronous_commit = remote_apply")
    with closing(open_ledger(postgres_url)) as again:
        granted(again, "0.1")


@pytest.mark.promise("killed-server")
@pytest.mark.parametrize(("statement", "words"), TABLES["settings of tables"].items())
def test_tables_that_check_or_keep_nothing_are_refused(
    ledger, postgres_url, statement, words
):
    """In each transaction, in words that say which setting."""
    granted(ledger, "0.1")
    statement = statement.format(name=name_of(postgres_url))
    edit(postgres_url, statement, locked=True)
    ledger.database.close()
    with pytest.raises(LedgerUnavailable, match=words):
        granted(ledger, "0.1")
    assert sums(postgres_url) == (0, Fraction(1, 10))


@pytest.mark.promise("failover")
def test_a_standby_is_refused_and_the_witness_detects_a_failover(own_server, tmp_path):
    """A standby shows old data; a promoted one lacks charges that the witness saw."""
    url, witness = own_server.new_database(), str(tmp_path / "witness")
    ledger = create_ledger(url, witness=witness)
    granted(ledger, "0.25")
    own_server.stop()
    standby = PostgresServer(standby_of=own_server)
    try:
        moved = standby.url(name_of(url))
        words = r"standby in recovery.*session_attrs=read-write"
        with pytest.raises(LedgerUnavailable, match=words):
            open_ledger(moved, witness=witness)
        own_server.start()
        granted(ledger, "0.25")
        ledger.close()
        own_server.stop()
        standby.run("SELECT pg_promote()")
        with closing(open_ledger(moved, witness=witness)) as promoted:
            for _ in range(2):
                with pytest.raises(LedgerRolledBack):
                    granted(promoted, "0.1")
            assert sums(moved) == (0, Fraction(1, 4))
        # The control: without a witness the failover is not detected.
        with closing(open_ledger(moved, witness="none")) as blind:
            granted(blind, "0.1")
    finally:
        standby.destroy()
        own_server.start()


@pytest.mark.promise("failover")
def test_a_dump_restored_on_another_server_is_refused(
    postgres_url, own_server, tmp_path
):
    """It verifies perfectly, and lacks what was charged after it."""
    witness = str(tmp_path / "witness")
    ledger = create_ledger(postgres_url, witness=witness)
    granted(ledger, "0.25")
    dump = subprocess.check_output([binaries() / "pg_dump", postgres_url])
    url = own_server.new_database()
    command = [binaries() / "psql", "-q", "-v", "ON_ERROR_STOP=1", url]
    subprocess.run(command, check=True, capture_output=True, input=dump)
    granted(ledger, "0.5")
    ledger.close()
    with closing(open_ledger(url, witness=witness)) as restored:
        with pytest.raises(LedgerRolledBack):
            granted(restored, "0.5")
        assert restored.id == ledger.id


def test_a_pooler_is_refused(postgres_url, monkeypatch):
    """It hands one session to many; locks and settings would be another's."""
    create_ledger(postgres_url).close()
    # A pooler answers with a process id of its own.
    monkeypatch.setattr("psycopg.ConnectionInfo.backend_pid", 1)
    with pytest.raises(LedgerUnavailable, match="pooler"):
        open_ledger(postgres_url)


def test_a_commit_that_rolled_back_is_no_commit(postgres_url, monkeypatch):
    """PostgreSQL answers a COMMIT of a failed transaction without an error."""
    create_ledger(postgres_url).close()
    end = StatementPipeline.end

    def fail(pipeline: StatementPipeline, statement: bytes) -> bytes | None:
        pipeline.add(b"SELECT 1 / 0")
        with pytest.raises(psycopg.errors.DivisionByZero):
            pipeline.collect()
        return end(pipeline, statement)

    with closing(open_ledger(postgres_url)) as ledger:
        step = request(ledger, "0.1")
        with monkeypatch.context() as patched:
            patched.setattr(StatementPipeline, "end", fail)
            with pytest.raises(LedgerUnavailable, match="ROLLBACK"):
                ledger.reserve(step)
        assert sums(postgres_url) == (0, 0)
        assert isinstance(ledger.reserve(step), Granted)
        audit(postgres_url)
