"""Death and errors at every statement: nothing acknowledged is lost, nothing is free.

A step reserves, runs its body and settles. It is killed after each of its statements
and between them; then each statement fails. Whatever happens, a reopened ledger holds
every acknowledged charge, at most one besides, and no step was told to run without a
charge that is in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow.exceptions import (
    LedgerCorrupt,
    ReservationConflict,
)
from dpflow.ledger import Ledger, create_ledger, open_ledger, opening
from dpflow.ledger.records import Granted, Request
from tests.ledger.faults import FaultySqlite
from tests.ledger.processes import Child, die
from tests.ledger.support import (
    audit,
    granted,
    ledger_on,
    make_policy,
    new_ledger,
    read,
    request,
    state_of,
    sums,
    url,
)

COST = Fraction(1, 1000)
POLICY = make_policy(budget="{epsilon: 100}")
#: More than a step has; the tests check that it is.
MOST = 200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the place of a ledger that has been used."""
    ledger = new_ledger(tmp_path)
    ledger.settle(granted(ledger, str(float(COST)), policies=[POLICY]))
    ledger.close()
    return tmp_path / "ledger.db"


def step_request(ledger: Ledger, key: str | None = None) -> Request:
    """Make the request of a step."""
    return request(ledger, str(float(COST)), policies=[POLICY], key=key)


def step(ledger: Ledger, asked: Request, say: Callable[[str], object]) -> None:
    """Reserve, run a body, settle; say each thing when it is known."""
    say("begin")
    answer = ledger.reserve(asked)
    assert isinstance(answer, Granted)
    say("granted")
    say("body")
    ledger.settle(asked.reservation, value='"value"')
    say("settled")


def counted(path: Path, key: str) -> list[str]:
    """Return the statements of one step that nothing disturbs."""
    storage, log = FaultySqlite(path), list[str]()
    ledger = ledger_on(storage)
    asked = step_request(ledger, key)
    storage.after = log.append
    step(ledger, asked, lambda _: None)
    ledger.close()
    return log


@dataclass
class Watch:
    """A ledger before something happens to it, and what must hold after."""

    path: Path

    def __post_init__(self) -> None:
        self.settled, self.held = sums(self.path)
        self.known = {name for (name,) in read(self.path, SQL)}

    def check(self, reservation: str, said: list[str]) -> None:
        """Compare what was said with what is in the file."""
        audit(self.path)
        settled, held = sums(self.path)
        state = state_of(self.path, reservation)
        new = {name for (name,) in read(self.path, SQL)} - self.known
        if "settled" in said:
            assert state == "settled"
        elif "granted" in said:
            assert state in {"open", "settled"}
        else:
            assert state in {None, "open"}
        assert ({reservation} if state else set()) == new
        spent, kept = settled - self.settled, held - self.held
        expected = {None: (0, 0), "open": (0, COST), "settled": (COST, 0)}
        assert expected[state] == (spent, kept)


SQL = "SELECT id FROM charge"


def check_goes_on(path: Path, lost: str, key: str) -> None:
    """Check what the next process may do: its own step, under the same key."""
    ledger = open_ledger(url(path))
    if state_of(path, lost) is not None:
        with pytest.raises(ReservationConflict):
            ledger.reserve(request(ledger, reservation=lost, policies=[POLICY]))
    watch = Watch(path)
    asked = step_request(ledger, key)
    answer = ledger.reserve(asked)
    if isinstance(answer, Granted):
        ledger.settle(asked.reservation, value='"again"')
        watch.check(asked.reservation, ["granted", "settled"])
    else:
        assert state_of(path, lost) == "settled"
    ledger.close()


def die_at(number: int) -> Callable[[str], None]:
    """Return a hook that kills the process at the n-th statement from now."""
    count = 0

    def hook(sql: str) -> None:
        nonlocal count
        if count == number:
            die()
        count += 1

    return hook


# Death


def test_death_at_every_statement(path: Path) -> None:
    """From BEGIN to COMMIT, of the reservation and of the settlement.

    After one is before the next. Every other end dies in `tests/hunts/test_kills.py`.
    """
    log = counted(path, "counted")
    assert 12 < len(log) < MOST
    assert [sql for sql in log if not sql.lstrip().startswith("--")].count(
        "COMMIT"
    ) == 2
    stages = set()
    for number in range(len(log)):
        key = f"death/{number}"
        watch = Watch(path)

        def work(say: Callable[[str], None], at: int = number, key: str = key) -> None:
            storage = FaultySqlite(path)
            ledger = ledger_on(storage)
            asked = step_request(ledger, key)
            say(asked.reservation)
            storage.after = die_at(at)
            step(ledger, asked, say)

        code, (reservation, *said) = Child(work).end()
        assert code == -9
        watch.check(reservation, said)
        stages.add((tuple(said), state_of(path, reservation)))
        check_goes_on(path, reservation, key)
    unsaid, running = ("begin",), ("begin", "granted", "body")
    seen = {(unsaid, None), (running, "open")}
    # A COMMIT that was not acknowledged.
    seen |= {(unsaid, "open"), (running, "settled")}
    assert seen == stages


def test_death_while_a_ledger_is_made(tmp_path: Path) -> None:
    """Half a ledger is none: it is refused, and nothing is granted from it."""
    place = tmp_path / "ledger.db"
    finished = False
    for number in range(MOST):

        def work(say: Callable[[str], None], at: int = number) -> None:
            class Mortal(FaultySqlite):
                def _connect(self) -> object:
                    self.after = hook
                    return super()._connect()

            hook = die_at(at)
            opening.SqliteStorage = Mortal  # type: ignore[misc]
            create_ledger(url(place))

        code, _ = Child(work).end()
        finished = code == 0
        if finished:
            break
        try:
            open_ledger(url(place)).close()
        except LedgerCorrupt:
            pass
        else:
            # Killed after the last COMMIT: then it is whole.
            finished = True
        for item in tmp_path.iterdir():
            item.unlink()
    assert finished
    assert number > 10


# Errors
