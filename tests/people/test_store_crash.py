"""Kill the process at every system call of a step, and tear what it was writing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpflow.exceptions import LedgerMissing
from dpflow.ledger import Ledger
from tests.people.places import QUARTER, THREE, Place, step, store_of
from tests.sizes import spread

CALLS = ("open", "write", "fsync", "replace", "close")
KILL = -signal.SIGKILL
QUARTERS = [QUARTER] * 3


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(fatal: int, when: str) -> None:
    """Make this process die at its n-th call: before it, after it, or half-way.

    Only writes can be torn, so only they count then.
    """
    count = 0

    def deadly(real: Callable) -> Callable:
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == fatal:
                if when == "after":
                    real(*arguments, **options)
                elif when == "torn":
                    data = arguments[1]
                    real(arguments[0], data[: max(len(data) // 2, 1)])
                die()
            return real(*arguments, **options)

        return call

    for name in ("write",) if when == "torn" else CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[int, str]:
    """Run a function in a forked child; return its exit code and its output."""
    reading, writing = os.pipe()
    tell = os.write
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(lambda letter: tell(writing, letter.encode()))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        output = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output


def killed_step(place: Place, fatal: int, when: str, *, careless: bool = False):
    """Run a step that writes R when it has its mask."""

    def work(tell):
        with place.ledger() as ledger:
            arm(fatal, when)
            if careless:
                tell("R")
            assert step(ledger, place.folder, *QUARTERS) == [True] * 3
            if not careless:
                tell("R")

    return in_child(work)


def charged(place: Place) -> int:
    """Return how many quarters were charged, by charging the rest."""
    with place.ledger() as ledger:
        rest = 0
        while step(ledger, place.folder, QUARTER, 0.0, 0.0)[0]:
            rest += 1
    return 4 - rest


# After one call is before the next.
@pytest.mark.parametrize("when", spread(["before", "after", "torn"], 2))
def test_a_kill_never_gives_back_what_was_acknowledged(tmp_path, when):
    """Whatever the call at which it dies, the store opens and holds every charge.

    Steps whose mask was handed out are charged. At most the one step in flight is
    charged besides, whose mask no process has.
    """
    fatal, status, outcomes = 0, KILL, set()
    while status == KILL:
        fatal += 1
        place = Place(tmp_path / str(fatal))
        assert place.step(0.0, 0.0, 0.0) == [True] * 3
        status, output = killed_step(place, fatal, when)
        assert status in {0, KILL}
        acknowledged, quarters = output.count("R"), charged(place)
        assert acknowledged <= quarters <= acknowledged + (status == KILL)
        outcomes.add(quarters - acknowledged)
        assert not place.people.with_name(f"{place.people.name}.new").exists()
    assert (status, acknowledged) == (0, 1)
    assert outcomes == {0, 1} or when == "torn"
    assert fatal > (2 if when == "torn" else 10)


def test_the_same_kills_catch_a_mask_given_out_too_early(tmp_path):
    """Negative control: a step that starts before its charge is durable is found."""

    def loses(fatal):
        place = Place(tmp_path / str(fatal))
        place.step(0.0, 0.0, 0.0)
        _, output = killed_step(place, fatal, "before", careless=True)
        return output.count("R") > charged(place)

    assert any(map(loses, range(1, 10)))


def test_a_kill_while_making_a_store_leaves_nothing_to_spend(tmp_path):
    """The next step finds no store, or a whole one with the first step's charge."""
    fatal, status, outcomes = 0, KILL, set()
    while status == KILL:
        fatal += 1
        place = Place(tmp_path / str(fatal))
        status, output = killed_step(place, fatal, "before")
        assert status in {0, KILL}
        try:
            quarters = charged(place)
        except LedgerMissing:
            outcomes.add("missing")
            assert output == ""
        except AssertionError:
            # It died before the ledger had the charge that pays.
            outcomes.add("not paid")
        else:
            outcomes.add("whole")
            assert output.count("R") <= quarters <= output.count("R") + 1
    assert status == 0
    assert {"whole", "missing"} <= outcomes


def test_the_mask_comes_after_everything_is_synced(tmp_path, monkeypatch):
    """Contents are synced before the rename, the folder after it, then the row is set.

    A rename of unsynced contents, or one whose folder is not synced, may be lost with
    the power although the process went on.
    """
    place = Place(tmp_path / "shop")
    dirty, renamed, order = set(), set(), []
    real = {name: getattr(os, name) for name in ("write", "fsync", "replace")}

    def where(descriptor: int) -> str:
        return os.path.realpath(f"/proc/self/fd/{descriptor}")

    def write(descriptor, data):
        dirty.add(where(descriptor))
        return real["write"](descriptor, data)

    def fsync(descriptor):
        dirty.discard(where(descriptor))
        renamed.difference_update(
            [p for p in renamed if p.parent == Path(where(descriptor))]
        )
        return real["fsync"](descriptor)

    def replace(source, target):
        assert os.path.realpath(source) not in dirty
        renamed.add(Path(target))
        order.append(Path(target))
        return real["replace"](source, target)

    def pay(ledger, *paid, before):
        assert (dirty, renamed) == (set(), set())
        order.append("pay")
        return pay_first(ledger, *paid, before=before)

    with place.ledger() as ledger:
        store, pay_first = store_of(ledger, place.folder), Ledger.pay
        for name, call in {"write": write, "fsync": fsync, "replace": replace}.items():
            monkeypatch.setattr(os, name, call)
        monkeypatch.setattr(Ledger, "pay", pay)
        store.reserve(THREE, lambda _: np.zeros(3))
        assert order == [place.people, "pay"]
