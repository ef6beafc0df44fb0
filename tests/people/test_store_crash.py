"""Kill the process at every system call of a step, and tear what it was writing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpflow.exceptions import ConfigurationError, LedgerMissing
from tests.people import places
from tests.sizes import spread

#: The second finds the files of the first.
STEPS = 2
CALLS = ("open", "write", "fsync", "replace", "close")
KILL = -signal.SIGKILL


class Place(places.Place):
    """One whose lock another process may hold for a while."""

    lock_seconds = 5


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(fatal: int, when: str) -> None:
    """Make this process die at its n-th call: before it, after it, or half-way."""
    count = 0

    def deadly(name: str, real: Callable) -> Callable:
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == fatal:
                if when == "after":
                    real(*arguments, **options)
                elif when == "torn" and name == "write":
                    data = arguments[1]
                    real(arguments[0], data[: max(len(data) // 2, 1)])
                die()
            return real(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, deadly(name, getattr(os, name)))


def in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[int, str]:
    """Run a function in a forked child; return how it ended and what it told."""
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
        told = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def steps(place: Place, fatal: int, when: str, *, careless: bool = False):
    """Run steps that tell R when they have their mask."""

    def work(tell):
        store = place.open()
        arm(fatal, when)
        for _ in range(STEPS):
            if careless:
                tell("R")
            store.reserve(np.full(3, 0.25), places.THREE)
            if not careless:
                tell("R")

    return in_child(work)


# After one call is before the next.
@pytest.mark.parametrize("when", spread(["before", "after", "torn"], 2))
def test_a_kill_never_gives_back_what_was_acknowledged(tmp_path, when):
    """Whatever the call at which it dies, the store opens and holds every charge.

    Steps whose mask was handed out are charged. At most the one step in flight is
    charged besides, whose mask nobody has.
    """
    fatal, status, outcomes = 0, KILL, set()
    while status == KILL:
        fatal += 1
        place = Place(tmp_path / str(fatal))
        place.create().close()
        status, told = steps(place, fatal, when)
        assert status in {0, KILL}
        acknowledged = told.count("R")
        with place.open() as store:
            charged = store.position.step
            assert acknowledged <= charged <= acknowledged + (status == KILL)
            outcomes.add(charged - acknowledged)
            left = 1 - 0.25 * charged
            mask = store.reserve(np.array([left, left + 2.0**-50, 0.0]), places.THREE)
            assert mask.apply(np.ones(3)).tolist() == [1.0, 0.0, 1.0]
        assert not place.people.with_name("people.new").exists()
    assert (status, acknowledged, outcomes) == (0, STEPS, {0, 1})
    assert fatal > 15 * STEPS


def test_the_same_kills_catch_a_mask_given_out_too_early(tmp_path):
    """Negative control: a step that starts before its charge is durable is found."""
    lost = 0
    for fatal in range(1, 10):
        place = Place(tmp_path / str(fatal))
        place.create().close()
        _, told = steps(place, fatal, "before", careless=True)
        with place.open() as store:
            lost += told.count("R") > store.position.step
    assert lost > 0


def test_a_kill_while_making_a_store_leaves_nothing_to_spend(tmp_path):
    """A half-made store is refused by both doors, or whole with all steps to come."""
    fatal, status, outcomes = 0, KILL, set()
    while status == KILL:
        fatal += 1
        place = Place(tmp_path / str(fatal))

        def work(_, place=place, fatal=fatal):
            arm(fatal, "torn")
            place.create()

        status, _ = in_child(work)
        assert status in {0, KILL}
        try:
            with place.open() as store:
                assert store.position.step == 0
            outcomes.add("whole")
        except LedgerMissing:
            try:
                place.create().close()
                outcomes.add("made again")
            except ConfigurationError:
                outcomes.add("refused")
    assert (status, outcomes) == (0, {"whole", "made again", "refused"})


def test_steps_killed_in_their_body_stay_charged(tmp_path):
    """Four processes die inside their step: four quarters are gone."""
    place = Place(tmp_path)
    place.create().close()

    def work(_):
        place.open().reserve(np.full(3, 0.25), places.THREE)
        die()

    for killed in range(1, 5):
        assert in_child(work)[0] == KILL
        with place.open() as store:
            assert store.position.step == killed
    with place.open() as store:
        mask = store.reserve(np.array([0.0, 5e-324, 0.25]), places.THREE)
        assert mask.apply(np.ones(3)).tolist() == [1.0, 0.0, 0.0]


def test_the_mask_comes_after_everything_is_synced(tmp_path, monkeypatch):
    """Contents are synced before the rename, the folder after it, both before the mask.

    A rename of unsynced contents, or one whose folder is not synced, may be lost with
    the power although the process went on.
    """
    place = Place(tmp_path)
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

    with place.create() as store:
        for name, call in {"write": write, "fsync": fsync, "replace": replace}.items():
            monkeypatch.setattr(os, name, call)
        store.reserve(np.full(3, 0.25), places.THREE)
        assert order == [place.people, place.witness]
        assert (dirty, renamed) == (set(), set())
