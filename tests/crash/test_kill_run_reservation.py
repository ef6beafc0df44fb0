"""kill -9 at every statement of a run: run reservation, draw, settlement, seal."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow.ledger import open_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.records import Granted
from tests.ledger.faults import faulty
from tests.ledger.processes import Child, die
from tests.ledger.run_reservations import RUN, drawn, held_run, whole
from tests.ledger.support import (
    Place,
    audit,
    ledger_on,
    make_ledger,
    read,
    state_of,
    sums,
    url,
)
from tests.sizes import spread

TENTH = Fraction(1, 10)
STAGES = ("begin", "held", "drawn", "settled", "sealed")
#: More statements than a run of one step has; the tests check that it is.
MOST = 160


def run(path: Place, at: int, after: bool) -> tuple[int, list[str]]:
    """Run one step of a run of two in a process that dies at its n-th statement."""

    def work(say: Callable[[str], None]) -> None:
        storage = faulty(path)
        ledger = ledger_on(storage)
        asked = whole(ledger, ["0.1"] * 2)
        say(asked.reservation)
        count = 0

        def hook(sql: str) -> None:
            nonlocal count
            if count == at:
                die()
            count += 1

        if after:
            storage.after = hook
        else:
            storage.before = hook
        assert isinstance(ledger.reserve(asked), Granted)
        say("held")
        step = drawn(ledger).reservation
        say("drawn")
        ledger.settle(step)
        say("settled")
        ledger.seal(RUN, outcome="completed")
        say("sealed")

    return Child(work).end()


def check(path: Place, name: str, said: list[str]) -> None:
    """Compare what was said before the death with what the ledger holds."""
    audit(path)
    settled, held = sums(path)
    state = state_of(path, name)
    stage = STAGES.index(said[-1]) if said else 0
    if stage >= 1:
        assert state in {"open", "sealed"}
    if stage == 4:
        assert (state, settled, held) == ("sealed", TENTH, 0)
    if state is None:
        assert (settled, held) == (0, 0)
    if state == "open":
        # Nothing but a seal returns anything.
        assert settled + held == 2 * TENTH
    if state == "sealed":
        assert (settled, held) == (TENTH, 0)
    if stage >= 3:
        assert settled == TENTH


def check_goes_on(path: Place) -> None:
    """The run is executed again, with what is held, and its end returns the rest."""
    ledger = open_ledger(url(path))
    held_run(ledger, ["0.1"] * 2)
    before = sum(sums(path))
    step = drawn(ledger)
    assert sum(sums(path)) == before + (TENTH if step.beyond else 0)
    ledger.settle(step.reservation)
    assert ledger.seal(RUN, outcome="completed")
    assert verify(ledger).bad == []
    ledger.close()
    audit(path)
    sql = "SELECT count(*) FROM charge WHERE state = 'open'"
    orphans = read(path, sql)[0][0]
    # A step of the dead process whose fate nobody knows stays held for ever.
    assert sums(path)[1] == orphans * TENTH


# At a push only after each: that is before the next, and before the first is nothing.
@pytest.mark.parametrize("after", spread([True, False], 1), ids=str)
def test_death_at_every_statement_of_a_run(tmp_path: Path, after: bool) -> None:
    """The rest of a run that died is held; only its seal returns it."""
    seen = set()
    for number in range(MOST):
        path = tmp_path / str(number) / "ledger.db"
        path.parent.mkdir()
        make_ledger(path).close()
        code, (name, *said) = run(path, number, after)
        check(path, name, said)
        seen.add((said[-1] if said else "begin", state_of(path, name)))
        if code == 0:
            break
        check_goes_on(path)
    assert code == 0
    assert {("begin", None), ("held", "open"), ("drawn", "open")} <= seen
    assert ("settled", "open") in seen
    assert (("settled", "sealed") in seen) == after
