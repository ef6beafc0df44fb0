"""Events around a ledger's files: a full disk, no rights, a move, a missing half."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.ledger import Ledger, create_ledger, open_ledger
from tests.ledger.processes import Child, Gate, answer_of_child, die
from tests.ledger.support import (
    audit,
    check_acknowledged,
    fill,
    granted,
    impatient,
    kinds,
    new_ledger,
    read,
    refusal,
    request,
    state_of,
    sums,
    url,
    write_a_row,
)

NOBODY = 65534
TENTH = Fraction(1, 10)


# Space


def limit(folder: Path, more: int | None) -> None:
    """Limit the growth of files to some bytes; None is no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(item.stat().st_size for item in folder.iterdir())
    most = hard if more is None else size + more
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def test_a_full_disk_refuses_and_keeps_everything(tmp_path: Path) -> None:
    """What was acknowledged stays, and with new space it goes on."""
    path = tmp_path / "ledger.db"
    new_ledger(tmp_path).close()

    def meet(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        ledger.owners.mine()
        limit(tmp_path, 60_000)
        say(f"error {fill(ledger, say)}")
        limit(tmp_path, None)
        reservation = granted(ledger, "1e-6")
        say(f"reserved {reservation}")
        ledger.settle(reservation)
        say(f"settled {reservation}")

    code, lines = Child(meet).end()
    assert code == 0, lines
    errors = [line for line in lines if line.startswith("error")]
    assert errors == ["error LedgerUnavailable"]
    acknowledged = [line for line in lines if not line.startswith("error")]
    assert len(acknowledged) >= 4
    check_acknowledged(path, acknowledged)


def test_a_new_ledger_without_space_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a ledger would be in the way of a whole one; an old one grants nothing."""
    space = SimpleNamespace(free=16 * 2**20 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: space)
    with pytest.raises(LedgerUnavailable, match="16 MiB"):
        new_ledger(tmp_path)
    assert list(tmp_path.iterdir()) == []
    space.free += 1
    new_ledger(tmp_path).close()
    space.free -= 1
    ledger = open_ledger(url(tmp_path / "ledger.db"))
    with pytest.raises(LedgerUnavailable, match=r"16,777,215 bytes of 16,777,216 in /"):
        granted(ledger)
    assert kinds(ledger) == []


# Who may not write


def become_nobody() -> None:
    """Give up root's rights, for good."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@pytest.fixture
def public() -> Iterator[Path]:
    """Give a folder that other users may look into."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_grants_nothing(public: Path) -> None:
    """An error, nothing written, and the ledger works where it can be written."""
    ledger, path = new_ledger(public), public / "ledger.db"
    granted(ledger)
    step = request(ledger)
    ledger.storage.close()
    before, names = path.read_bytes(), sorted(public.iterdir())
    modes = {item: item.stat().st_mode for item in (public, *public.rglob("*"))}
    for item, mode in modes.items():
        item.chmod(mode & ~0o222 | 0o444)

    def attempt() -> str:
        become_nobody()
        return refusal(lambda: open_ledger(url(path)).reserve(step))

    assert answer_of_child(attempt) == "LedgerUnavailable"
    assert (path.read_bytes(), sorted(public.iterdir())) == (before, names)
    for item, mode in modes.items():
        item.chmod(mode)
    ledger.reserve(step)
    ledger.close()


def test_another_users_ledger_is_out_of_reach_and_not_missing(public: Path) -> None:
    """The error differs from that of a missing ledger, which advises to make one."""
    new_ledger(public).close()
    path = public / "ledger.db"
    for item in public.glob("ledger.db*"):
        item.chmod(0o000)
    public.chmod(0o777)

    def attempt() -> str:
        become_nobody()
        opened = refusal(lambda: open_ledger(url(path)))
        mine = str(public / "witnesses")
        made = refusal(lambda: create_ledger(url(path), witness=mine))
        return f"{opened} {made}"

    names = sorted(public.iterdir())
    assert answer_of_child(attempt) == "LedgerUnavailable ConfigurationError"
    assert sorted(public.iterdir()) == names


# Moved


def test_a_renamed_ledger_is_noticed_until_it_is_back(
    ledger: Ledger, path: Path
) -> None:
    """Also between BEGIN and COMMIT: what is not at its place is not acknowledged."""
    granted(ledger)
    away = path.with_name("away.db")
    step = request(ledger)

    def move() -> None:
        with ledger.storage.write():
            path.rename(away)

    with pytest.raises(LedgerMissing, match="removed while in use"):
        move()
    with pytest.raises(LedgerMissing):
        ledger.reserve(step)
    assert not path.exists()
    away.rename(path)
    ledger.reserve(step)
    assert sums(path) == (0, 2 * TENTH)
    audit(path)


def crashed(path: Path) -> str:
    """Let a process be granted a step and die; its charge is in the -wal only."""

    def work(say: Callable[[str], None]) -> None:
        say(granted(open_ledger(url(path))))
        die()

    code, lines = Child(work).end()
    assert code == -signal.SIGKILL
    return lines[0]


def test_a_log_deleted_after_a_crash_is_noticed(path: Path) -> None:
    """SQLite would open the ledger without its newest charges, and find it sound."""
    reservation = crashed(path)
    wal, kept = path.with_name("ledger.db-wal"), path.with_name("kept")
    wal.rename(kept)
    shutil.copy(path, path.with_name("alone.db"))
    assert sums(path.with_name("alone.db")) == (0, 0)
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match="newest charges"):
            open_ledger(url(path))
        assert not wal.exists()
    kept.rename(wal)
    open_ledger(url(path)).close()
    assert state_of(path, reservation) == "open"
    audit(path)


def test_a_log_without_its_ledger_is_not_deleted(path: Path) -> None:
    """SQLite deletes a log without its ledger, and it may be the only copy."""
    crashed(path)
    wal, away = path.with_name("ledger.db-wal"), path.with_name("away.db")
    before = wal.read_bytes()
    path.rename(away)
    with pytest.raises(ConfigurationError, match="-wal is there"):
        create_ledger(url(path))
    with pytest.raises(LedgerMissing):
        open_ledger(url(path))
    path.touch()
    with pytest.raises(LedgerCorrupt, match="is empty"):
        open_ledger(url(path))
    assert wal.read_bytes() == before
    away.replace(path)
    open_ledger(url(path)).close()
    assert sums(path) == (0, TENTH)


# Forks


def test_a_forked_child_opens_a_connection_of_its_own(
    ledger: Ledger, path: Path
) -> None:
    """Both go on; each charge is there."""
    granted(ledger)
    reservation = answer_of_child(lambda: granted(ledger))
    mine = granted(ledger)
    ledger.settle(mine)
    ledger.settle(reservation)
    assert sums(path) == (2 * TENTH, TENTH)
    audit(path)


def test_a_childs_commits_survive_its_parents_close(ledger: Ledger, path: Path) -> None:
    """SQLite's memory of locks is inherited, the locks are not.

    The parent would take the file for its own and delete the child's -wal.
    """
    granted(ledger, "0.01")
    gate = Gate()

    def work(say: Callable[[str], None]) -> None:
        say(granted(ledger, "0.01"))
        gate.wait()
        for _ in range(3):
            say(granted(ledger, "0.01"))
        die()

    child = Child(work)
    first = child.line()
    ledger.storage.close()
    gate.open()
    code, lines = child.end()
    assert (code, len(lines)) == (-9, 3)
    kept = {name for (name,) in read(path, "SELECT id FROM charge")}
    assert {first, *lines} <= kept
    assert sums(path) == (0, Fraction(5, 100))
    audit(path)


def test_a_child_forked_inside_a_long_transaction_is_refused(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child cannot know its locks and is refused; the parent goes on."""
    monkeypatch.setattr("dpflow.ledger.storage.sqlite._CLOSE_SECONDS", 0.1)
    step = request(ledger)
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with ledger.storage.write():
            inside.set()
            leave.wait()

    def attempt(say: Callable[[str], None]) -> None:
        for opened in (lambda: ledger, lambda: open_ledger(url(path))):
            try:
                opened().reserve(step)
            except LedgerUnavailable as error:
                say(str("its parent was using it" in error.message))

    thread = threading.Thread(target=write)
    thread.start()
    inside.wait()
    child = Child(attempt)
    leave.set()
    thread.join()
    assert child.end() == (0, ["True", "True"])
    ledger.reserve(step)
    assert sums(path) == (0, TENTH)


def test_a_fork_inside_a_transaction_leaves_it_whole(path: Path) -> None:
    """The parent commits what it began; the child is refused."""
    ledger = impatient(path)
    step = request(ledger)
    with ledger.storage.write() as session:
        write_a_row(session)
        text = answer_of_child(lambda: refusal(lambda: ledger.reserve(step)))
    assert text == "LedgerUnavailable"
    assert read(path, "SELECT key FROM kept") == [("x",)]
    granted(ledger)
    ledger.close()


def test_a_fork_that_python_does_not_know_of_is_noticed(
    ledger: Ledger, path: Path
) -> None:
    """A server written in C may fork without Python: the child is refused."""
    granted(ledger)
    step = request(ledger)
    reading, writing = os.pipe()
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        try:
            os.write(writing, refusal(lambda: ledger.reserve(step)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "LedgerUnavailable"
    os.waitpid(pid, 0)
    ledger.reserve(step)
    assert sums(path) == (0, 2 * TENTH)


def test_a_child_does_not_keep_its_dead_parents_lock(path: Path) -> None:
    """A lock belongs to the open file, and a forked child closes its copy."""
    gate = Gate()

    def parent(say: Callable[[str], None]) -> None:
        with open_ledger(url(path)).storage.write():
            pid = os.fork()
            if pid == 0:
                gate.wait()
                os._exit(0)
            say("forked")
            die()

    child = Child(parent)
    assert child.line() == "forked"
    os.waitpid(child.pid, 0)
    ledger = impatient(path)
    granted(ledger)
    ledger.close()
    gate.open()


OTHERS = """
import os, sys
from dpflow.ledger.opening import open_ledger
from tests.ledger.processes import die
from tests.ledger.support import granted
ledger = open_ledger(sys.argv[1])
print(granted(ledger, "0.01"), flush=True)
ledger.close() if sys.argv[2] == "close" else die()
"""


def test_reading_the_file_by_hand_loses_nothing(path: Path) -> None:
    """A process that opens and closes the file drops SQLite's locks on it.

    Then the next process to close the ledger deletes the -wal that is in use: a grant
    into the deleted one would be lost, and closing it would delete the next one.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def other(end: str) -> str:
        command = [sys.executable, "-c", OTHERS, url(path), end]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=environment, check=False
        )
        return done.stdout.strip()

    def work(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        say(granted(ledger, "0.01"))
        path.read_bytes()
        say(other("close"))
        say(other("die"))
        say(refusal(lambda: say(granted(ledger, "0.01"))))
        say(refusal(lambda: say(granted(ledger, "0.01"))))
        ledger.close()
        gc.collect()
        say("end")

    code, lines = Child(work).end()
    assert (code, lines[3:]) == (0, ["LedgerUnavailable"] * 2 + ["end"])
    assert [state_of(path, name) for name in lines[:3]] == ["open"] * 3
    assert sums(path) == (0, Fraction(3, 100))
    audit(path)
