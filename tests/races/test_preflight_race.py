"""Many processes draw from one preflight, and one of them seals it."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from dpflow.exceptions import BudgetRefused
from dpflow.ledger import ledger as shell
from dpflow.ledger import open_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.records import Granted
from tests.ledger.preflights import RUN, drawn, held_run
from tests.ledger.processes import Child, Gate
from tests.ledger.support import (
    Place,
    audit,
    granted,
    kinds,
    make_ledger,
    make_policy,
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
    """Return how many steps drew from a preflight."""
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


def test_two_executions_of_one_run_hold_it_once(path: Place) -> None:
    """Prefect may run a flow run twice at once; it is one run for the ledger."""
    make_ledger(path).close()

    def work(say: Callable[[str], None]) -> None:
        say(held_run(open_ledger(url(path)), [TEXT] * 3))

    said = together(work, lambda: None)
    assert len(set(said)) == 1
    assert sums(path) == (0, 3 * SMALL)
    audit(path)


def test_joins_of_one_run_draw_from_their_own_accounts_at_once(path: Place) -> None:
    """Steps on different datasets do not lock each other, and lose no draw."""
    policies = [make_policy(name) for name in ("a", "b")]
    ledger = make_ledger(path)
    held_run(ledger, [TEXT] * 20, policies=policies)

    def work(say: Callable[[str], None]) -> None:
        here = open_ledger(url(path))
        for policy in policies * 2:
            step = drawn(here, TEXT, policies=[policy])
            assert not step.beyond
            here.settle(step.reservation)

    together(work, lambda: None)
    assert ledger.seal(RUN, outcome="completed")
    for account in ("a#1", "b#1"):
        assert sums(path, account) == (2 * PROCESSES * SMALL, 0)
    ledger.close()
    audit(path)


def test_a_tail_that_grows_while_it_is_checked_is_no_damage(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's first step locks its own datasets; others charge theirs meanwhile."""
    make_ledger(postgres_url).close()
    other = open_ledger(postgres_url)
    b = [make_policy("b")]
    granted(other, policies=b)
    ledger = open_ledger(postgres_url)
    real = shell.check_tail

    def check(*values: Any) -> None:
        granted(other, policies=b)
        real(*values)

    monkeypatch.setattr(shell, "check_tail", check)
    granted(ledger)
    for each in (ledger, other):
        each.close()
    assert kinds(postgres_url, "b#1") == ["open", "reserve", "reserve"]
