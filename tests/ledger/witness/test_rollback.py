"""Accidents after which a ledger has forgotten charges.

Without a witness each of them is silent: hashes, sums and SQLite's own checks are all
right, and the next step is granted as if nothing had been spent. With one, the next
step is refused. Nothing else may be: the second half is what only looks like one.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow.exceptions import (
    BudgetRefused,
    LedgerError,
    LedgerRolledBack,
    LedgerUnwitnessed,
)
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.audit.fold import Fold
from dpflow.ledger.entry import Columns, entry_of
from dpflow.ledger.records import Granted
from dpflow.ledger.storage.row_texts import key_text, row_text
from dpflow.ledger.witness.base import Witness
from dpflow.ledger.witness.file import FileLog
from tests.ledger.processes import Child, die
from tests.ledger.support import (
    COLUMNS,
    audit,
    edit,
    granted,
    make_policy,
    read,
    request,
    sums,
    url,
)
from tests.postgres import server
from tests.sizes import scaled

POLICY = make_policy(budget="{epsilon: 100}")
OTHER = make_policy("b", budget="{epsilon: 100}")
EACH = scaled(5, push=2)
FEW = scaled(2, push=1)


def copy_database(source: Path, target: Path) -> None:
    """Copy a database as SQLite does, into the same file if there is one."""
    with (
        closing(sqlite3.connect(source)) as old,
        closing(sqlite3.connect(target)) as to,
    ):
        old.backup(to)


@dataclass
class Host:
    """A machine with a ledger, and perhaps a witness."""

    folder: Path
    witness: str
    chance: random.Random
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.path = self.folder / "ledger.db"
        create_ledger(url(self.path), witness=self.witness).close()

    def open(self) -> Ledger:
        """Open the ledger as a new process would."""
        return open_ledger(url(self.path), witness=self.witness)

    def work(self, ledger: Ledger | None = None, least: int = 1) -> None:
        """Make some charges; some are settled, some voided, the rest left open."""
        opened = ledger or self.open()
        for _ in range(self.chance.randint(least, 6)):
            policy = self.chance.choice([POLICY, POLICY, OTHER])
            name = granted(opened, "0.25", policies=[policy])
            end = self.chance.choice(["settle", "settle", "void", "leave"])
            if end == "settle":
                opened.settle(name)
            elif end == "void":
                opened.void(name, reason="test")
        # The last thing that happened is a charge.
        granted(opened, "0.25", policies=[POLICY])
        if ledger is None:
            opened.close()

    def copy(self, name: str = "copy") -> Path:
        """Copy the ledger as a good backup tool does."""
        target = self.folder / name
        copy_database(self.path, target)
        return target

    def replace_by(self, copy: Path) -> None:
        """Put a file in the ledger's place, without what belonged to the old one."""
        for end in ("-wal", "-shm"):
            Path(f"{self.path}{end}").unlink(missing_ok=True)
        shutil.copyfile(copy, self.path)


def backup_restored(host: Host) -> None:
    """A backup takes the ledger's place."""
    copy = host.copy()
    host.work()
    host.replace_by(copy)


def log_deleted(host: Host) -> None:
    """A process dies, and someone tidies its -wal file away."""

    def crash(say: Callable[[str], None]) -> None:
        host.work()
        host.work(host.open())
        die()

    assert Child(crash).end()[0] < 0
    for end in ("-wal", "-shm"):
        Path(f"{host.path}{end}").unlink()


def copied_without_log(host: Host) -> None:
    """The file alone is copied while a process uses it, and put back later."""

    def crash(say: Callable[[str], None]) -> None:
        host.work(host.open())
        die()

    Child(crash).end()
    copy = host.folder / "copy"
    shutil.copyfile(host.path, copy)
    host.work()
    host.replace_by(copy)


def created_anew(host: Host) -> None:
    """An image brings the ledger as it was when the image was made: empty."""
    edit(host.path, "DELETE FROM entry", "DELETE FROM row")


def fit_rows(path: Path) -> None:
    """Make every row what the journals say, as someone who knows the schema could."""
    fold = Fold()
    for (book,) in read(path, "SELECT DISTINCT book FROM entry"):
        previous = ""
        names = ", ".join([*COLUMNS.split(), "hash"])
        sql = f"SELECT {names} FROM entry WHERE book = ? ORDER BY number"
        for *columns, told in read(path, sql, book):
            fold.add(book, [entry_of(previous, Columns(*columns), told)])
            previous = told
    fold.end()
    assert fold.bad == {}
    edit(path, "DELETE FROM row")
    with closing(sqlite3.connect(path)) as connection:
        for key, row in fold.rows.items():
            values = key_text(key), row_text(row)
            connection.execute("INSERT INTO row (key, value) VALUES (?, ?)", values)
        connection.commit()


def cloned_to_another_host(host: Host) -> None:
    """Two hosts go on from one copy; the first was faster."""
    copy = host.copy()
    host.work()
    host.path = host.folder / "second.db"
    shutil.copyfile(copy, host.path)


def snapshot_of_the_disk(host: Host) -> None:
    """Every file of the ledger is as it was a while ago."""
    kept = host.folder / "disk"
    kept.mkdir()

    def crash(say: Callable[[str], None]) -> None:
        host.work(host.open())
        die()

    Child(crash).end()
    for name in host.folder.glob("ledger.db*"):
        if name.is_file():
            shutil.copyfile(name, kept / name.name)
    host.work()
    for end in ("-wal", "-shm"):
        Path(f"{host.path}{end}").unlink(missing_ok=True)
    for name in kept.iterdir():
        shutil.copyfile(name, host.folder / name.name)


def restored_into_the_open_file(host: Host) -> None:
    """`sqlite3 ledger.db ".restore copy"`: the file stays the same one."""
    copy = host.copy()
    host.work()
    copy_database(copy, host.path)


def charges_taken_back(host: Host, book: str = "a") -> None:
    """Someone who knows the schema removes the newest entries and fits the rest."""
    host.work()
    sql = "SELECT max(number) FROM entry WHERE book = ? AND kind = 'reserve'"
    ((number,),) = read(host.path, sql, book)
    edit(host.path, f"DELETE FROM entry WHERE book = '{book}' AND number >= {number}")
    fit_rows(host.path)


def gone_another_way(host: Host) -> None:
    """A backup is used on a machine without the witness, and then brought here."""
    copy = host.copy()
    host.work()
    host.replace_by(copy)
    elsewhere = open_ledger(url(host.path), witness="none")
    for _ in range(host.chance.randint(1, 12)):
        elsewhere.settle(granted(elsewhere, "0.25", policies=[POLICY]))
    elsewhere.close()


def project_moved_with_an_old_copy(host: Host) -> None:
    """The project moves to another folder, its ledger comes from a backup."""
    copy = host.copy()
    host.work()
    new = host.folder / "moved"
    new.mkdir()
    host.path = new / "ledger.db"
    shutil.copyfile(copy, host.path)


ACCIDENTS = [
    backup_restored,
    log_deleted,
    copied_without_log,
    created_anew,
    cloned_to_another_host,
    snapshot_of_the_disk,
    restored_into_the_open_file,
    charges_taken_back,
    gone_another_way,
    project_moved_with_an_old_copy,
]


def next_step(host: Host, dataset: str = "a") -> object:
    """Ask for the next step and return the answer or the error."""
    ledger = host.open()
    policy = POLICY if dataset == "a" else OTHER
    try:
        return ledger.reserve(request(ledger, "0.25", policies=[policy]))
    except LedgerError as error:
        return error
    finally:
        ledger.close()


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Give a database that keeps the witnesses of all hosts, each apart."""
    url = server().new_database()
    yield url
    server().drop(url)


@pytest.fixture(params=["file", "postgres"])
def kept(request: pytest.FixtureRequest) -> str | None:
    """Give the place of the witness; None: a folder of each host's own."""
    if request.param == "file":
        return None
    found: str = request.getfixturevalue("database")
    return found


def after(
    accident: Callable[[Host], None],
    folder: Path,
    seed: int,
    *,
    w: bool,
    kept: str | None = None,
) -> Host:
    """Return a host to which an accident has happened."""
    folder.mkdir()
    witness = (kept or str(folder / "state")) if w else "none"
    host = Host(folder, witness, random.Random(seed))
    host.work()
    accident(host)
    return host


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_no_accident_is_silent_with_a_witness(tmp_path, accident, kept):
    """The step is refused, nothing is charged, and the way out is named."""
    for seed in range(EACH if kept is None else FEW):
        host = after(accident, tmp_path / str(seed), seed, w=True, kept=kept)
        before = read(host.path, "SELECT * FROM entry ORDER BY book, number")
        answer = next_step(host)
        assert isinstance(answer, LedgerRolledBack), (seed, answer)
        assert "dpflow ledger reconcile" in answer.message
        assert before == read(host.path, "SELECT * FROM entry ORDER BY book, number")


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_every_accident_is_silent_without_one(tmp_path, accident):
    """The control: the ledger agrees with itself and grants the step."""
    for seed in range(FEW):
        host = after(accident, tmp_path / str(seed), seed, w=False)
        assert isinstance(next_step(host), Granted), seed
        audit(host.path)


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_steps_on_other_datasets_are_refused_too(tmp_path, accident):
    """A ledger that forgot something is not asked anything any more."""
    host = after(accident, tmp_path / "host", 7, w=True)
    assert isinstance(next_step(host, "b"), LedgerRolledBack)


def test_a_process_that_has_the_ledger_open_notices_too(tmp_path, kept):
    """The file is overwritten in place; nothing else tells of it."""
    for seed in range(FEW):
        folder = tmp_path / str(seed)
        folder.mkdir()
        witness = kept or str(folder / "state")
        host = Host(folder, witness, random.Random(seed))
        ledger = host.open()
        host.work(ledger)
        copy = host.copy()
        host.work(ledger)
        copy_database(copy, host.path)
        with pytest.raises(LedgerRolledBack):
            granted(ledger, "0.25", policies=[POLICY])
        ledger.close()


def test_an_account_that_was_not_charged_last_is_compared_too(tmp_path, kept):
    """Someone takes back charges of a dataset that no later step used."""
    host = Host(tmp_path, kept or str(tmp_path / "state"), random.Random(1))
    ledger = host.open()
    granted(ledger, "0.25", policies=[OTHER])
    granted(ledger, "0.25", policies=[OTHER])
    granted(ledger, "0.25", policies=[POLICY])
    ledger.close()
    host.work = lambda: None  # type: ignore[method-assign,assignment]
    charges_taken_back(host, "b")
    assert isinstance(next_step(host), LedgerRolledBack)


# What only looks like an accident


def died_before_telling(host: Host) -> None:
    """A process commits and dies before it tells the witness."""

    def crash(say: Callable[[str], None]) -> None:
        ledger = host.open()
        ledger.watch.tell = lambda _: die()  # type: ignore[method-assign,misc]
        granted(ledger, "0.25", policies=[POLICY])

    assert Child(crash).end()[0] < 0


def died_while_telling(host: Host) -> None:
    """Part of a line is written; its step never started."""
    (file,) = Path(host.witness).iterdir()
    with file.open("ab") as opened:
        opened.write(file.read_bytes().splitlines()[-1][: host.chance.randint(1, 90)])


def died_with_a_log(host: Host) -> None:
    """A process dies; its -wal file stays where it is."""

    def crash(say: Callable[[str], None]) -> None:
        host.work(host.open())
        die()

    assert Child(crash).end()[0] < 0


def copied_and_gone_on(host: Host) -> None:
    """A backup is made; nobody restores it."""
    host.copy()
    host.work()


def moved_whole(host: Host) -> None:
    """The newest ledger moves to another place."""
    copy = host.copy()
    host.path = host.folder / "elsewhere.db"
    shutil.copyfile(copy, host.path)


def vacuumed(host: Host) -> None:
    """Every page of the file is another."""
    with closing(sqlite3.connect(host.path)) as connection:
        connection.execute("VACUUM")


def only_ended(host: Host) -> None:
    """What was open is settled, closed and refused after the last charge."""
    ledger = host.open()
    for (name,) in read(host.path, "SELECT id FROM charge WHERE state = 'open'"):
        if host.chance.random() < 0.5:
            ledger.settle(name)
    with pytest.raises(BudgetRefused):
        granted(ledger, "1000", policies=[POLICY])
    ledger.close()


def used_by_two_processes(host: Host) -> None:
    """Their commits and their lines are in different orders."""
    first, second = host.open(), host.open()
    for _ in range(4):
        host.work(host.chance.choice([first, second]))
    first.close()
    second.close()


def compacted(host: Host) -> None:
    """The witness drops most of its lines."""
    ledger = host.open()
    host.work(ledger)
    assert ledger.watch.witness is not None
    ledger.watch.witness.log._large = 1
    host.work(ledger)
    host.work(ledger)
    ledger.close()


def witness_moved(host: Host) -> None:
    """The witness goes to another folder, and the setting with it."""
    Path(host.witness).rename(host.folder / "other")
    host.witness = str(host.folder / "other")


HARMLESS = [
    died_before_telling,
    died_while_telling,
    died_with_a_log,
    copied_and_gone_on,
    moved_whole,
    vacuumed,
    only_ended,
    used_by_two_processes,
    compacted,
    witness_moved,
]


#: What happens to files only.
OF_FILES = (died_while_telling, compacted, witness_moved)


@pytest.mark.parametrize(
    "event", [event for event in HARMLESS if event not in OF_FILES]
)
def test_nothing_else_is_taken_for_an_accident_in_a_database(tmp_path, event, database):
    """The same with a witness on PostgreSQL."""
    for seed in range(FEW):
        host = after(event, tmp_path / str(seed), seed, w=True, kept=database)
        assert isinstance(next_step(host), Granted), seed
        host.work()
        audit(host.path)


@pytest.mark.parametrize("event", HARMLESS)
def test_nothing_else_is_taken_for_an_accident(tmp_path, event):
    """The next steps run, and what they charge is witnessed again."""
    for seed in range(FEW):
        host = after(event, tmp_path / str(seed), seed, w=True)
        assert isinstance(next_step(host), Granted), seed
        host.work()
        audit(host.path)


# A witness that is missing or damaged


def witness_file(host: Host) -> Path:
    """Return the witness of a host."""
    (file,) = Path(host.witness).iterdir()
    return file


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host that has charged something."""
    found = Host(tmp_path, str(tmp_path / "state"), random.Random(1))
    found.work()
    return found


def test_a_missing_witness_fails_closed(host: Host) -> None:
    """And says how a new machine is enrolled."""
    witness_file(host).unlink()
    answer = next_step(host)
    assert isinstance(answer, LedgerUnwitnessed)
    assert "dpflow ledger trust" in answer.message


def test_a_witness_that_goes_missing_fails_closed_in_an_open_process(
    host: Host,
) -> None:
    """It is asked for at every decision."""
    ledger = host.open()
    granted(ledger, "0.25", policies=[POLICY])
    witness_file(host).unlink()
    with pytest.raises(LedgerUnwitnessed):
        granted(ledger, "0.25", policies=[POLICY])


@pytest.mark.parametrize("damage", ["flip", "empty", "foreign", "half"])
def test_a_damaged_witness_fails_closed(host: Host, damage: str) -> None:
    """Whole lines that do not fit their checksums are not skipped."""
    file = witness_file(host)
    data = file.read_bytes()
    lines = data.splitlines(keepends=True)
    at = len(data) // 2
    damaged = {
        "flip": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        "empty": b"",
        "foreign": data.replace(file.stem.encode(), b"f" * 32),
        "half": b"".join([lines[0], lines[1][:50], b"\n", *lines[2:]]),
    }[damage]
    file.write_bytes(damaged)
    answer = next_step(host)
    assert isinstance(answer, LedgerError)
    assert not isinstance(answer, LedgerRolledBack)
    assert str(file) in answer.message


def test_usage_that_is_witnessed_is_what_the_ledger_says(host: Host) -> None:
    """The newest line of an account is its use after its newest charge."""
    ledger = host.open()
    granted(ledger, "0.25", policies=[POLICY])
    file = witness_file(host)
    lines = Witness(FileLog(file), ledger.id).all_lines()
    newest = [line for line in lines if line.book == "a"][-1]
    assert Fraction(newest.used["a#1"][0], 10**36) == sum(sums(host.path))
