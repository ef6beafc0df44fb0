"""A settlement that the ledger did not take is made as soon as it can be."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from dpflow import PureDP, guarded
from tests.projects import (
    bring_ledger_back,
    caught,
    held,
    hide_ledger,
    kinds,
    run_python,
    spent,
)

TENTH = PureDP(epsilon="0.1")


class BadDisk:
    """A disk under the ledger that fails or hides its files until it is mended."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        self._folder, self._patch, self._how = folder, monkeypatch, how
        self._real = fcntl.flock

    def fail(self) -> None:
        """Let it fail from now on."""
        if self._how == "files are gone":
            hide_ledger(self._folder)
        else:
            self._patch.setattr(fcntl, "flock", self._fail)

    def _fail(self, *_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def mend(self) -> None:
        """Let it work again."""
        if self._how == "files are gone":
            bring_ledger_back(self._folder)
        else:
            self._patch.setattr(fcntl, "flock", self._real)


ASK = """
from dpflow import PureDP, guarded

@guarded(dataset="shop", cost=PureDP(epsilon="0.1"), release_key="x", name="count")
def count():
    return 6

print(count())
"""


@pytest.mark.parametrize("how", ["files are gone", "locks fail"])
@pytest.mark.parametrize("fails", [False, True])
def test_another_process_need_not_wait_for_this_one_to_end(
    shop: Path, monkeypatch: pytest.MonkeyPatch, how: str, fails: bool
) -> None:
    """Its key is free, or replayed, once the disk is well; the charge stays."""
    disk = BadDisk(shop, monkeypatch, how)

    @guarded(
        dataset="shop",
        cost=TENTH,
        release_key="x",
        ignore=("disk", "fails"),
        name="count",
    )
    def count() -> int:
        disk.fail()
        return 5 // (not fails)

    with pytest.warns(RuntimeWarning, match="stays charged in full and unsettled"):
        assert count() == 5 if not fails else caught(count)
    disk.mend()
    assert run_python(ASK, folder=shop) == (6 if fails else 5)
    assert kinds() == ["reserve", "settle"] * (1 + fails)
    assert (spent(), held()) == ("0.2" if fails else "0.1", "0")
    for thread in threading.enumerate():
        if thread.name == "dpflow-unsettled":
            thread.join(60)
            assert not thread.is_alive()


LAST = """
import warnings
from pathlib import Path
from dpflow import PureDP, guarded
from tests.projects import bring_ledger_back, hide_ledger

folder = Path.cwd()

@guarded(dataset="shop", cost=PureDP(epsilon="0.1"), name="count")
def count():
    hide_ledger(folder)

warnings.simplefilter("ignore")
count()
bring_ledger_back(folder)
print("null")
"""


def test_a_process_tries_once_more_when_it_ends(shop: Path) -> None:
    """What the ledger can take then is not left for an operator to close."""
    run_python(LAST, folder=shop)
    assert kinds() == ["reserve", "settle"]
    assert (spent(), held()) == ("0.1", "0")
