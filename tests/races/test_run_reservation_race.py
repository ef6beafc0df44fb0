"""Many processes draw from one run reservation, and one of them seals it."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction

import pytest

from dpflow.exceptions import BudgetRefused
from dpflow.ledger import open_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.records import Granted
from tests.ledger.processes import Child, Gate
from tests.ledger.run_reservations import drawn, held_run
from tests.ledger.support import (
    Place,
    audit,
    granted,
    make_ledger,
    read,
    request,
    sums,
    url,
)

pytestmark = pytest.mark.storages("sqlite", "postgres")

PROCESSES = 4
SMALL = Fraction(1, 50)
#: Two hundredths and a half, as the policy's numbers are written.
TEXT = "0.02"


def together(
    target: Callable[[Callable[[str], None]], None], ready: Callable[[], object]
) -> list[str]:
    """Start processes, run `ready` here as they begin, and return what they said."""
    gate = Gate()

    def work(say: Callable[[str], None]) -> None:
        gate.wait()
        target(say)

    children = [Child(work) for _ in range(PROCESSES)]
    gate.open()
    ready()
    found = []
    for child in children:
        code, lines = child.end()
        assert code == 0, "\n".join(lines)
        found += lines
    return found


def draws(path: Place) -> int:
    """Return how many steps drew from a run reservation."""
    bodies = read(path, "SELECT body FROM entry WHERE kind = 'reserve'")
    return sum("preflight" in json.loads(body) for (body,) in bodies)


def test_processes_draw_what_the_run_holds_and_no_more(path: Place) -> None:
    """Ten steps are held, the budget is full: ten are drawn, whoever asks first."""
    ledger = make_ledger(path)
    held_run(ledger, [TEXT] * 10)
    granted(ledger, "0.8")
    ledger.close()

    def work(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        while True:
            try:
                step = drawn(ledger, TEXT)
            except BudgetRefused:
                return
            assert not step.beyond
            say(step.reservation)
            ledger.settle(step.reservation)

    said = together(work, lambda: None)
    assert len(said) == len(set(said)) == 10
    assert sums(path) == (10 * SMALL, 40 * SMALL)
    assert draws(path) == 10
    audit(path)


def test_a_draw_that_races_the_seal_is_before_it_or_refused(path: Place) -> None:
    """Whatever was not drawn when the run was sealed is returned, and only that."""
    for number in range(6):
        run = f"run/{number}"
        ledger = make_ledger(path) if number == 0 else open_ledger(url(path))
        before = sum(sums(path))
        held_run(ledger, ["0.001"] * 40, run=run)

        def work(say: Callable[[str], None], run: str = run) -> None:
            here = open_ledger(url(path))
            for _ in range(10):
                asked = request(here, "0.001", preflights=(run,))
                (answer,) = here.reserve_many([asked])
                if not isinstance(answer, Granted):
                    say("late" if "sealed" in str(answer) else repr(answer))
                    return
                say("beyond" if answer.beyond else "drawn")
                here.settle(answer.reservation)

        def end(ledger=ledger, run: str = run) -> None:
            # The first draw tells that the others are under way.
            while draws(path) == 0:
                pass
            assert ledger.seal(run, outcome="completed")

        said = together(work, end)
        assert set(said) <= {"drawn", "late"}
        assert sum(sums(path)) - before == said.count("drawn") * Fraction(1, 1000)
        assert sums(path)[1] == 0
        assert verify(ledger).bad == []
        ledger.close()
    audit(path)
