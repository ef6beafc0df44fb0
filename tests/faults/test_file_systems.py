"""Where a ledger lies: network file systems are refused, passing ones reported."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.tables import sqlite_files
from dpflow.ledger.tables.sqlite_files import mount_of
from tests.in_memory import MEMORY
from tests.ledger.processes import answer_of_child
from tests.ledger.support import granted, url


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder on a disk: a ledger in memory is reported."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(autouse=True)
def _no_warning_yet(path: Path) -> None:
    """Let each test be the first that warns: the folder may be reported, too."""
    assert path.exists()
    sqlite_files._warn_once.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    """Let the kernel say that a folder's file system is of another type."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8")
    line = rf"(?m)^({mount_of(folder)[0]} .* - )\S+"
    path = folder.parent / f"mountinfo-{kind}"
    path.write_text(re.sub(line, rf"\g<1>{kind}", lines), "utf-8")
    monkeypatch.setattr(sqlite_files, "_MOUNTINFO", path)


@pytest.mark.promise("network-file")
@pytest.mark.parametrize(
    "kind", ["nfs4", "cifs", "smb3", "9p", "lustre", "virtiofs", "fuse", "fuse.sshfs"]
)
def test_a_network_file_system_is_refused(path, tmp_path, monkeypatch, kind):
    """For an old ledger and for a new one, of which nothing is made."""
    opened = open_ledger(url(path))
    pretend(monkeypatch, tmp_path, kind)
    with pytest.raises(LedgerUnavailable, match="local disk") as caught:
        open_ledger(url(path))
    assert f"on {kind}. Locks do not hold" in caught.value.message
    with pytest.raises(LedgerUnavailable, match=f"on {kind}"):
        create_ledger(url(tmp_path / "new.db"))
    assert [*tmp_path.glob("new*")] == []
    # One that is connected had been checked; each new connection is checked again.
    opened.database.close()
    with pytest.raises(LedgerUnavailable, match=f"on {kind}"):
        granted(opened)
    monkeypatch.undo()
    granted(opened)
    opened.close()


def test_a_link_does_not_hide_a_network(path, tmp_path, monkeypatch):
    """What counts is where the file lies, and where its log is."""
    link = Path(tempfile.mkdtemp(dir=MEMORY)) / "link.db"
    link.symlink_to(path)
    pretend(monkeypatch, tmp_path, "nfs4")
    with pytest.raises(LedgerUnavailable, match="on nfs4"):
        open_ledger(url(link))
    shutil.rmtree(link.parent)


@pytest.mark.promise("network-file")
@pytest.mark.parametrize("kind", ["ext4", "btrfs", "fuseblk", "overlay", "tmpfs"])
def test_a_passing_file_system_is_reported_once(
    path, tmp_path, monkeypatch, caplog, kind
):
    """In one line for each place; a local disk is fine without a word."""
    pretend(monkeypatch, tmp_path, kind)
    caplog.clear()
    for _ in range(3):
        with closing(open_ledger(url(path))) as opened:
            granted(opened, "0.01")
    create_ledger(url(tmp_path / "new.db")).close()
    is_passing = kind in ("overlay", "tmpfs")
    assert len(caplog.messages) == 2 * is_passing
    for line, place in zip(caplog.messages, (path, tmp_path / "new.db"), strict=False):
        assert f"{place} is on a file system of type {kind}, lost with" in line
        assert "\n" not in line
    # A forked worker knows its parent's warnings.
    answer_of_child(lambda: open_ledger(url(path)).close())


def test_a_system_that_hides_its_mounts_is_reported(
    path, tmp_path, monkeypatch, caplog
):
    """A sandbox may hide the list, or not say which mount a file is on."""
    monkeypatch.setattr(sqlite_files, "_MOUNTINFO", tmp_path / "none")
    caplog.clear()
    open_ledger(url(path)).close()
    (line,) = caplog.messages
    assert "of type unknown" in line
    monkeypatch.setattr(sqlite_files, "_FDINFO", tmp_path)
    assert mount_of(tmp_path) == ("", "unknown")


def test_a_ledger_mounted_as_a_single_file_is_refused(path, tmp_path, monkeypatch):
    """Its log, with the newest charges, would lie in the container's own layer."""
    place = tmp_path / "container" / "ledger.db"
    place.parent.mkdir()
    place.touch()
    # The kernel says another number for a file that is a mount of its own.
    own = "1000000", "ext4"
    monkeypatch.setattr(
        sqlite_files, "mount_of", lambda at: own if at == place else mount_of(at)
    )
    with pytest.raises(LedgerUnavailable, match="Mount the folder"):
        open_ledger(url(place))
    assert [at for at in place.parent.iterdir() if "wal" in at.name] == []
    granted(open_ledger(url(path)))


@pytest.mark.promise("second-name")
def test_a_second_name_of_the_file_is_refused(path):
    """Each name would have a log of its own: at opening and in each transaction."""
    second = path.with_name("second.db")
    ledger = open_ledger(url(path))
    granted(ledger)
    os.link(path, second)
    for use in (
        lambda: granted(ledger),
        lambda: open_ledger(url(second)),
        lambda: open_ledger(url(second), read_only=True),
    ):
        with pytest.raises(LedgerUnavailable, match=r"second name.* -samefile /"):
            use()
    assert not second.with_name("second.db-wal").exists()
    second.unlink()
    granted(ledger)
