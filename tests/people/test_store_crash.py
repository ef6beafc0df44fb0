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
from tests.people.places import QUARTER, THREE, Place, in_child, step, store_of
from tests.sizes import spread

CALLS = ("open", "write", "fsync", "replace", "close")
KILL = -signal.SIGKILL


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
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in ("write",) if when == "torn" else CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def killed_step(place: Place, fatal: int, when: str, *, careless: bool = False):
    """Run a step that writes R when it has its mask."""

    def work(tell):
        with place.ledger() as ledger:
            arm(fatal, when)
            if careless:
                tell("R")
            assert step(ledger, place.folder, *[QUARTER] * 3) == [True] * 3
            if not careless:
                tell("R")

    return in_child(work)


def charged(place: Place) -> int:
    """Return how many quarters were charged, by charging the rest."""
    with place.ledger() as ledger:
        remaining = (QUARTER, 0.0, 0.0)
        steps = iter(lambda: step(ledger, place.folder, *remaining)[0], False)
        return 4 - len([*steps])


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

    def file(descriptor: int) -> Path:
        return Path(f"/proc/self/fd/{descriptor}").resolve()

    def write(descriptor, _):
        dirty.add(file(descriptor))

    def fsync(descriptor):
        dirty.discard(file(descriptor))
        renamed.difference_update([*file(descriptor).glob("*")])

    def replace(source, target):
        assert Path(source).resolve() not in dirty
        renamed.add(Path(target))
        order.append(Path(target))

    def pay(*_, before):
        assert (dirty, renamed) == (set(), set())
        order.append("pay")

    with place.ledger() as ledger:
        store = store_of(ledger, place.folder)
        watched = ((os, write), (os, fsync), (os, replace), (Ledger, pay))
        for owner, watch in watched:
            real = getattr(owner, watch.__name__)

            def call(*arguments, watch=watch, real=real, **options):
                watch(*arguments, **options)
                return real(*arguments, **options)

            monkeypatch.setattr(owner, watch.__name__, call)
        store.reserve(THREE, lambda _: np.zeros(3))
        assert order == [place.people, "pay"]
