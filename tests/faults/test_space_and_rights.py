"""Events around a ledger's files: a full disk, no rights, a move, a missing half."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.opening import create_ledger, open_ledger
from tests.faults.auditor import audited
from tests.ledger.processes import Child, answer_of_child
from tests.ledger.support import granted, kinds, new_ledger, refusal, request, url

NOBODY = 65534


# Space


def limit(folder: Path, more: int | None) -> None:
    """Limit the growth of files to some bytes; None is no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(item.stat().st_size for item in folder.iterdir())
    most = hard if more is None else size + more
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


@pytest.mark.promise("full-disk")
def test_a_full_disk_refuses_and_keeps_everything(tmp_path):
    """What was acknowledged stays, and with new space it goes on."""
    path = tmp_path / "ledger.db"
    new_ledger(tmp_path).close()

    def meet(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        ledger.owners.mine()

        def step() -> None:
            say(f"open {(reservation := granted(ledger, '1e-6'))}")
            ledger.settle(reservation)
            say(f"settled {reservation}")

        limit(tmp_path, 60_000)
        while (error := refusal(step)) == "none":
            pass
        say(f"error {error}")
        limit(tmp_path, None)
        step()

    code, lines = Child(meet).end()
    assert code == 0, lines
    said = [tuple(line.split()) for line in lines]
    assert [name for word, name in said if word == "error"] == ["LedgerUnavailable"]
    states = audited(path).states
    for word in ("open", "settled"):
        names = {name for said_word, name in said if said_word == word}
        assert len(names) >= 2
        assert all(states[name] in (word, "settled") for name in names)
        held = {name for name, state in states.items() if state in (word, "settled")}
        # At most one charge more than was acknowledged.
        assert word == "settled" or len(held - names) <= 1


@pytest.mark.promise("full-disk")
def test_a_new_ledger_without_space_leaves_nothing(tmp_path, monkeypatch):
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


@pytest.mark.promise("read-only")
def test_a_read_only_folder_grants_nothing(public):
    """An error, nothing written, and the ledger works where it can be written."""
    ledger, path = new_ledger(public), public / "ledger.db"
    granted(ledger)
    step = request(ledger)
    ledger.database.close()
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


@pytest.mark.promise("read-only")
def test_another_users_ledger_is_out_of_reach_and_not_missing(public):
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
