"""A ledger on a full disk: what was acknowledged stays, and nothing is half made."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.opening import open_ledger
from tests.faults.auditor import audited
from tests.ledger.processes import Child
from tests.ledger.support import granted, kinds, new_ledger, refusal, url


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
    assert [line for line in lines if "error" in line] == ["error LedgerUnavailable"]
    states = audited(path)
    for word, allowed in (("open", {"open", "settled"}), ("settled", {"settled"})):
        names = {line.split()[1] for line in lines if line.startswith(word)}
        assert len(names) >= 2
        assert {states[name] for name in names} <= allowed
        # At most one charge more than was acknowledged.
        assert word == "settled" or len(states.keys() - names) <= 1


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
