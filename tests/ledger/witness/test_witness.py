"""What a witness notices; each of its places answers durably, or no step runs."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dpflow import PureDP, exceptions
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger.audit.reconcile import trust
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger, witness_at
from dpflow.ledger.requests import Granted
from dpflow.ledger.tables.errors import is_postgres
from dpflow.ledger.tables.loading import Scope
from dpflow.ledger.tables.rows import Account, name_columns, read_row
from dpflow.ledger.witness import file as file_module
from dpflow.ledger.witness.comparison import Watch, state_of_ledger
from dpflow.ledger.witness.file import FileWitness
from dpflow.ledger.witness.lines import Line, Witnessed
from dpflow.ledger.witness.postgres import PostgresWitness
from tests.ledger.processes import Child, Gate
from tests.ledger.support import (
    BASIC,
    charged,
    edit,
    freeze_of,
    granted,
    kinds,
    make,
    read,
    reopen,
    request,
    url,
)
from tests.postgres import server
from tests.sizes import scaled
from tests.tables import read_tables

CASES = read_tables(__file__)


def witness_of(ledger: Ledger) -> Any:
    """Return the witness of a ledger."""
    return ledger.watch.witness


def failing(*_: object, **__: object) -> None:
    """Fail as a disk without space does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def ledger(tmp_path: Path, place: str) -> Ledger:
    """Give a ledger that is witnessed at a place."""
    return make(tmp_path / "ledger.db", place)


@pytest.fixture
def filed(tmp_path: Path) -> Ledger:
    """Give a ledger whose witness is a file."""
    return make(tmp_path / "ledger.db", str(tmp_path / "w"))


def test_an_edited_account_is_noticed(ledger):
    """A row with its mark computed anew differs from what was witnessed."""
    granted(ledger)
    with ledger.database.transaction() as transaction:
        transaction.begin(["a"], lock=True)
        ((*columns,),) = transaction.ask("read_accounts", ids=["a#1"])
        account = read_row(Account, columns)
        none = account._replace(held=(0, 0))
        transaction.send([("put_account", name_columns(none))])
    with pytest.raises(LedgerCorrupt, match="not what its witness"):
        granted(ledger)


def test_the_witness_is_what_the_ledger_holds(ledger):
    """Its heads and uses are the ledger's, after each kind, too, and compaction."""
    for _ in range(3):
        charged(ledger, "0.01")
    granted(ledger, "0.01")
    ledger.freeze("a", reason="x")
    ledger.charge_prior(BASIC, PureDP(epsilon="0.02"), reason="x")
    witness, now = witness_of(ledger), state_of_ledger(ledger.database)
    assert summary(witness.read_all()) == summary(now)
    if isinstance(witness, FileWitness):
        witness._rewrite(None)
        assert summary(witness.read_all()) == summary(now)


def summary(state: Witnessed) -> object:
    """Return what has to agree."""
    return state.heads, state.uses, state.people


def test_the_first_lines_of_a_dataset_wait_for_each_other(tmp_path, postgres_url):
    """Two processes write them at the same time: the newest number stays."""
    ledger = make(tmp_path / "ledger.db", postgres_url)
    one, other = (PostgresWitness(postgres_url, None, ledger.id) for _ in range(2))
    first, second = Line("a", 0, 2, "h2", "reserve"), Line("a", 0, 3, "h3", "reserve")
    proofs = {("a", 2): "h2", ("a", 3): "h3"}
    choose, write = one._choose, partial(other.record, [second], lambda _: proofs)
    with ThreadPoolExecutor() as threads:

        def wait_and_choose(*values: Any) -> list[Line]:
            # Without a lock the other has written at the end of this time.
            wait([threads.submit(write, synced=True)], 0.3)
            return choose(*values)

        one._choose = wait_and_choose  # type: ignore[method-assign, assignment]
        one.record([first], lambda _: proofs, synced=True)
    assert one.read_all().heads["a"].number == 3


def test_ends_wait_for_the_next_line_on_a_server(ledger, place, monkeypatch):
    """There with the next step, after some others, or last; in a file alone."""
    waits = is_postgres(place)
    charged(ledger, "0.01")
    assert witnessed_number(ledger) == (2 if waits else 3)
    ledger.close()
    assert witnessed_number(ledger) == 3
    granted(ledger, "0.01")
    assert witnessed_number(ledger) == 4
    monkeypatch.setattr(type(ledger.watch.witness), "most_ends", 1)
    charged(ledger, "0.01")
    assert witnessed_number(ledger) == 6


def test_a_step_compares_the_heads_that_it_read(ledger):
    """Another thread reads none of them between its read and its lock."""
    charged(ledger, "0.01")
    watch, terms = Watch(ledger.database, witness_of(ledger)), ledger.terms
    scope = Scope(datasets=["a"], accounts=lambda _: [], is_witnessed=True)
    watched = watch.read(scope, terms)
    assert watch.read(Scope(datasets=["a"], accounts=list), terms) == Witnessed()
    assert watch.numbers_of(watched, ["a"]) == [("a", witnessed_number(ledger))]


def witnessed_number(ledger: Ledger) -> int:
    """Return the newest number that the witness of a ledger shows."""
    return witness_of(ledger).read_all().heads["a"].number


def test_a_missing_witness_is_begun_once(tmp_path, place):
    """It fails closed and says how a new machine is enrolled; `trust` begins it."""
    path = tmp_path / "ledger.db"
    make(path).close()
    ledger = reopen(path, place)
    with pytest.raises(LedgerUnwitnessed, match="dpflow ledger trust") as error:
        granted(ledger)
    assert error.value.witness == witness_of(ledger).address
    assert kinds(path) == []
    trust(ledger, reason="x")
    granted(ledger)
    with pytest.raises(ConfigurationError, match="already"):
        trust(ledger, reason="x")


def test_a_witness_that_cannot_be_read_stops_steps(ledger, monkeypatch):
    """Nothing is charged; with its answer the step runs."""
    with monkeypatch.context() as patch:
        patch.setattr(witness_of(ledger), "_load", failing)
        with pytest.raises(LedgerUnavailable, match=r"does not answer: .*No space"):
            granted(ledger)
    assert kinds(ledger) == []
    granted(ledger)


def test_a_repeated_grant_is_witnessed_again(ledger):
    """After a lost answer a process cannot know whether the line was written."""
    step, witness = request(ledger), witness_of(ledger)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(witness, "_raise", lambda *_, **__: [])
        assert isinstance(ledger.reserve(step), Granted)
    assert witness.read_all().heads == {}
    assert isinstance(ledger.reserve(step), Granted)
    assert witness.read_all().heads["a"].number == 2


def test_processes_that_fork_are_served(ledger):
    """Whatever the parent had open, and the parent goes on."""
    granted(ledger)
    assert Child(lambda say: say(granted(ledger))).end()[0] == 0
    granted(ledger)
    assert witness_of(ledger).read_all().uses["a#1"].version == 3


@pytest.mark.parametrize("compacted", [False, True])
def test_many_writers_lose_no_line(tmp_path, place, compacted, monkeypatch):
    """Also while the file is compacted again and again."""
    if compacted:
        monkeypatch.setattr(file_module, "_LONG_BYTES", 1)
    path, gate = tmp_path / "ledger.db", Gate()
    make(path, place).close()

    def work(say: Callable[[str], None]) -> None:
        ledger = reopen(path, place)
        gate.wait()
        for _ in range(scaled(10, push=5)):
            charged(ledger, "1e-6")

    children = [Child(work) for _ in range(3)]
    gate.open()
    assert [child.end() for child in children] == [(0, [])] * 3
    ledger = reopen(path, place)
    granted(ledger)
    kept = witness_of(ledger).read_all()
    sql = "SELECT number, hash FROM dataset"
    assert read(path, sql) == [(kept.heads["a"].number, kept.heads["a"].hash)]
    assert ledger.watch.problem() is None


# Files


def test_the_file_is_for_its_owner_only(filed):
    """The file names all datasets."""
    path = witness_of(filed).path
    assert (path.stat().st_mode | path.parent.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_full_disk_of_the_witness_gives_the_charge_back(
    tmp_path, filed, monkeypatch, call
):
    """No body started; the next step, with room again, runs."""
    granted(filed)
    with monkeypatch.context() as patch:
        patch.setattr(file_module, call, failing)
        with pytest.raises(LedgerUnavailable, match="No space left"):
            granted(filed)
    assert kinds(filed) == ["open", "reserve", "reserve", "void"]
    granted(filed)
    granted(reopen(tmp_path / "ledger.db", str(tmp_path / "w")))


def test_a_compaction_that_fails_loses_no_line(tmp_path, filed, monkeypatch):
    """The old file stays, and the next line is written into it."""
    monkeypatch.setattr(file_module, "_LONG_BYTES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        for _ in range(4):
            charged(filed, "0.01")
    size = witness_of(filed).path.stat().st_size
    charged(filed, "0.01")
    assert witness_of(filed).path.stat().st_size < size
    granted(reopen(tmp_path / "ledger.db", str(tmp_path / "w")))


def test_a_file_is_compacted_above_a_mebibyte(filed):
    """Lines that say what it already holds are left out."""
    granted(filed)
    path = witness_of(filed).path
    last = path.read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(path.read_bytes() + last * (1_000_000 // len(last)))
    granted(filed)
    assert path.stat().st_size > 1_000_000
    path.write_bytes(path.read_bytes() + last * (50_000 // len(last)))
    granted(filed)
    assert path.stat().st_size < 10_000
    granted(filed)


def test_a_compaction_holds_what_another_writer_appended(tmp_path, filed, monkeypatch):
    """Between a writer's own line and the lock of its compaction."""
    other, states = reopen(tmp_path / "ledger.db", str(tmp_path / "w")), []

    def late(witness: FileWitness, state: Witnessed | None) -> None:
        if not states:
            states.append(state)
            granted(other, "0.02")
        original(witness, state)

    original = FileWitness._rewrite
    monkeypatch.setattr(FileWitness, "_rewrite", late)
    monkeypatch.setattr(file_module, "_LONG_BYTES", 1)
    while not states:
        granted(filed, "0.01")
    kept = FileWitness(witness_of(filed).path, filed.id).read_all()
    sql = "SELECT number, hash FROM dataset"
    head = kept.heads["a"]
    assert read(tmp_path / "ledger.db", sql) == [(head.number, head.hash)]


@pytest.mark.promise("older-copy")
def test_an_open_file_that_is_removed_or_replaced_is_noticed(tmp_path, filed):
    """No line goes into a file without a reader; a freeze needs no witness."""
    granted(filed)
    path, kept = witness_of(filed).path, tmp_path / "kept"
    path.rename(kept)
    assert filed.freeze("a", reason="wrong sigma")
    assert freeze_of(filed, "a")["reason"] == "wrong sigma"
    for ledger in (filed, reopen(tmp_path / "ledger.db", str(tmp_path / "w"))):
        with pytest.raises(LedgerUnwitnessed, match="dpflow ledger trust"):
            granted(ledger)
    shutil.copy(kept, path)
    before = kept.read_bytes()
    assert filed.freeze("a", reason="over", unfreeze=True)
    granted(filed)
    assert kept.read_bytes() == before
    assert path.stat().st_size > len(before)


def test_a_turn_within_a_turn_does_not_take_its_lock(tmp_path, filed, monkeypatch):
    """A signal's handler may write in the thread that writes just now."""
    monkeypatch.setattr(file_module, "_LOCK_SECONDS", 0.1)
    other = reopen(tmp_path / "ledger.db", str(tmp_path / "w"))
    real = file_module.write

    def interrupted(descriptor: int, data: bytes) -> None:
        monkeypatch.setattr(file_module, "write", real)
        with pytest.raises(LedgerUnavailable):
            granted(other)
        real(descriptor, data)

    monkeypatch.setattr(file_module, "write", interrupted)
    granted(filed)
    granted(other)


def test_a_folder_that_is_a_file_makes_no_ledger(tmp_path):
    """No ledger is made that would lack its witness."""
    (tmp_path / "file").touch()
    with pytest.raises(LedgerUnavailable, match="does not answer"):
        make(tmp_path / "ledger.db", str(tmp_path / "file"))
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize(("state", "setting", "at", "address"), CASES["addresses"])
def test_where_a_witness_is(monkeypatch, state, setting, at, address):
    """By default in the user's state folder, or nowhere if that is set."""
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", "/home/me")
    make_witness = witness_at(setting, at)
    assert (make_witness and make_witness("ID").address) == address


def test_a_database_for_many_has_no_default():
    """Its witness has to be named."""
    with pytest.raises(ConfigurationError, match="is not set"):
        witness_at(None, "postgresql://db/x")


# Databases


def test_the_ledgers_own_database_is_refused(postgres_url):
    """One restore would bring both back; another database serves."""
    with pytest.raises(ConfigurationError, match="in the ledger's own database"):
        create_ledger(postgres_url, witness=postgres_url)
    with pytest.raises(LedgerMissing):
        open_ledger(postgres_url, witness="none")
    create_ledger(postgres_url, witness="none").close()
    with pytest.raises(ConfigurationError, match="in the ledger's own database"):
        granted(open_ledger(postgres_url, witness=f"{postgres_url}&application_name=x"))
    assert kinds(postgres_url) == []


@pytest.mark.parametrize(("damage", "error"), CASES["damages"])
def test_a_damaged_database_fails_closed(tmp_path, postgres_url, damage, error):
    """In an open process, and in a new one."""
    ledger = make(tmp_path / "ledger.db", postgres_url)
    granted(ledger)
    edit(postgres_url, damage)
    for opened in (ledger, reopen(tmp_path / "ledger.db", postgres_url)):
        with pytest.raises(getattr(exceptions, error), match="dpflow ledger trust"):
            granted(opened)


def test_a_server_that_may_lose_commits_is_refused(tmp_path, postgres_url):
    """As for a ledger; its settings are read back with each line, too."""
    ledger = make(tmp_path / "ledger.db", postgres_url)
    granted(ledger)
    connection = witness_of(ledger)._server._connection
    connection.execute("SET synchronous_commit = off")
    with pytest.raises(LedgerUnavailable, match="synchronous_commit = off"):
        granted(ledger)
    granted(ledger)
    server().alter(postgres_url, "synchronous_commit = off")
    with pytest.raises(LedgerUnavailable, match="synchronous_commit = off"):
        make(tmp_path / "other.db", postgres_url)
    assert not (tmp_path / "other.db").exists()


def test_no_answer_means_no_step_and_shows_no_password(tmp_path):
    """No server listens; the error names the place without its password."""
    password = "s3cret-word"
    setting = f"postgresql://me:{password}@127.0.0.1:9/x"
    path = tmp_path / "ledger.db"
    with pytest.raises(LedgerUnavailable) as error:
        make(path, setting)
    assert not path.exists()
    make(path).close()
    with pytest.raises(LedgerUnavailable, match="step did not run") as refused:
        granted(open_ledger(url(path), witness=setting))
    assert kinds(path) == []
    for failure in (error.value, refused.value):
        assert password not in f"{failure}{failure.details}"
        assert "me@127.0.0.1:9/x" in failure.message


def test_what_a_database_sets_for_transactions_loses_no_line(tmp_path, postgres_url):
    """Neither isolation nor read-only sessions are in the way of many writers."""
    for setting in ("isolation = 'serializable'", "read_only = on"):
        server().alter(postgres_url, f"default_transaction_{setting}")
    test_many_writers_lose_no_line(tmp_path, postgres_url, False, pytest.MonkeyPatch())
