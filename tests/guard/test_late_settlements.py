"""A settlement that the ledger did not take is made as soon as it can be."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpflow import PureDP, guarded
from dpflow.exceptions import DPStepFailed
from tests.projects import (
    bring_ledger_back,
    held,
    hide_ledger,
    kinds,
    run_python,
    spent,
    start_python,
)

TENTH = PureDP(epsilon="0.1")
WARNS = "stays charged in full and unsettled"


class BadDisk:
    """A disk under the ledger that fails or hides its files until it is mended."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        self._folder, self._patch, self._how = folder, monkeypatch, how
        self._real = fcntl.flock
        self.asked = 0

    def fail(self) -> None:
        """Let it fail from now on."""
        if self._how == "files are gone":
            hide_ledger(self._folder)
        else:
            self._patch.setattr(fcntl, "flock", self._fail)

    def _fail(self, *_: object) -> None:
        self.asked += 1
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def mend(self) -> None:
        """Let it work again."""
        if self._how == "files are gone":
            bring_ledger_back(self._folder)
        else:
            self._patch.setattr(fcntl, "flock", self._real)


@pytest.fixture(params=["files are gone", "locks fail"])
def disk(
    request: pytest.FixtureRequest, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> BadDisk:
    """Give the disk under the ledger, which may fail in either way."""
    return BadDisk(shop, monkeypatch, request.param)


def until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Wait until something holds; say whether it came to that."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def trying() -> bool:
    """Say whether a thread of this process tries to settle."""
    return any(each.name == "dpflow-unsettled" for each in threading.enumerate())


def ended(step: Callable[[], object]) -> object:
    """Return what a step returns or raises."""
    try:
        return step()
    except DPStepFailed as error:
        return error


ASK = """
import json, time
from dpflow import PureDP, guarded

@guarded(dataset="shop", cost=PureDP(epsilon="0.1"), release_key="x", name="count")
def count():
    return 6

since = time.monotonic()
print(json.dumps([count(), time.monotonic() - since]))
"""


@pytest.mark.parametrize("ends", ["with a value", "with an error"])
def test_another_process_need_not_wait_for_this_one_to_end(
    shop: Path, disk: BadDisk, ends: str
) -> None:
    """Its key is free, or replayed, soon after the disk is well; the charge stays."""

    @guarded(
        dataset="shop",
        cost=TENTH,
        release_key="x",
        ignore=("disk", "ends"),
        name="count",
    )
    def count() -> int:
        disk.fail()
        if ends == "with an error":
            raise ValueError
        return 5

    with pytest.warns(RuntimeWarning, match=WARNS):
        ended(count)
    disk.mend()
    value, seconds = run_python(ASK, folder=shop)
    assert value == (5 if ends == "with a value" else 6)
    assert seconds < 20
    assert kinds() == ["reserve", "settle"] * (1 if value == 5 else 2)
    assert (spent(), held()) == ("0.1" if value == 5 else "0.2", "0")
    assert until(lambda: not trying())


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


@contextlib.contextmanager
def waiting_process(folder: Path) -> Iterator[Any]:
    """Start a process that asks for the key, and end it in any case."""
    with start_python(ASK, folder=folder) as process:
        try:
            yield process
        finally:
            process.kill()


def test_who_waits_for_the_key_already_gets_its_answer(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked while the body ran, and goes on asking."""
    disk = BadDisk(shop, monkeypatch, "locks fail")
    began, may_end = threading.Event(), threading.Event()

    @guarded(
        dataset="shop",
        cost=TENTH,
        release_key="x",
        ignore=("began", "disk", "may_end"),
        name="count",
    )
    def count() -> int:
        began.set()
        assert may_end.wait(60)
        disk.fail()
        return 5

    thread = threading.Thread(target=count)
    thread.start()
    assert began.wait(60)
    with waiting_process(shop) as process:
        time.sleep(2)
        may_end.set()
        with pytest.warns(RuntimeWarning, match=WARNS):
            thread.join()
        disk.mend()
        output, errors = process.communicate(timeout=40)
        assert output.startswith("[5"), errors
    assert kinds() == ["reserve", "settle"]
