"""Run reservations and draws among other requests of one transaction."""

from __future__ import annotations

from typing import Any

from dpflow import Gaussian, PureDP
from dpflow.exceptions import BudgetExhausted, BudgetRefused, UnsupportedCost
from dpflow.ledger.records import Granted
from tests.ledger.journals import kinds, state_of, sums
from tests.ledger.run_reservations import RUN, drawn, held_run, whole
from tests.ledger.support import make_policy, request

OTHER = make_policy("b")


def test_a_run_and_its_steps_in_one_batch(ledger: Any) -> None:
    """Each draw sees what those before it left, on the account that holds the rest."""
    steps = [request(ledger, cost, preflights=(RUN,)) for cost in ("0.1", "0.2", "0.2")]
    answers = ledger.reserve_many(
        [whole(ledger, ["0.1", "0.2"]), *steps, request(ledger, "0.5")]
    )
    assert [type(answer) for answer in answers] == [Granted] * 5
    # The third step is beyond the run reservation, and passes the gates by itself.
    assert [answer.beyond for answer in answers] == [False, False, False, True, False]
    assert kinds(ledger) == ["open", *["reserve"] * 5]
    assert sums(ledger) == (0, 1)
    assert isinstance(ledger.reserve_many([request(ledger, "0.01")])[0], BudgetRefused)


def sums_of(epsilon: str) -> Any:
    """Return an epsilon as the sums have it."""
    return PureDP(epsilon=epsilon).epsilon


def test_a_declaration_that_fails_leaves_the_rest_of_its_batch_alone(
    ledger: Any,
) -> None:
    """What it had undone of the run is as before; the others are served."""
    name = held_run(ledger, ["0.1"] * 4)
    ledger.settle(drawn(ledger).reservation)
    before = sums(ledger)
    bad = whole(ledger, [Gaussian(sensitivity=1, sigma=20)])
    asked = [request(ledger, "0.1"), bad, request(ledger, "0.2")]
    first, error, last = ledger.reserve_many(asked)
    assert isinstance(error, UnsupportedCost)
    assert (type(first), type(last)) == (Granted, Granted)
    assert state_of(ledger, name) == "open"
    assert sums(ledger) == (before[0], before[1] + 3 * sums_of("0.1"))
    assert not drawn(ledger).beyond


def test_a_dead_run_is_sealed_by_a_good_declaration_only(ledger: Any) -> None:
    """One that fails leaves what a dead process holds as it was."""
    name = held_run(ledger, ["0.1"] * 4, owner="0" * 32)
    bad = whole(ledger, [Gaussian(sensitivity=1, sigma=20)])
    answers = ledger.reserve_many([bad, request(ledger, "0.1", policies=[OTHER])])
    assert isinstance(answers[0], UnsupportedCost)
    assert isinstance(answers[1], Granted)
    assert state_of(ledger, name) == "open"
    assert ledger.reserve(whole(ledger, ["0.1"] * 4)).reservation != name
    assert state_of(ledger, name) == "sealed"
    assert ledger.seal(RUN, outcome="completed")


def test_a_run_declared_anew_in_a_batch_returns_its_rest_first(ledger: Any) -> None:
    """What is sealed is there for the new declaration, and for those behind it."""
    held_run(ledger, ["0.3"] * 2)
    answers = ledger.reserve_many(
        [
            request(ledger, "0.1"),
            whole(ledger, ["0.3"]),
            request(ledger, "0.3", preflights=(RUN,)),
            request(ledger, "0.6"),
            request(ledger, "0.1"),
        ]
    )
    told = [type(answer) for answer in answers]
    assert told == [*[Granted] * 4, BudgetExhausted]
    assert not answers[2].beyond
    assert sums(ledger) == (0, 1)


def test_alerts_in_a_batch_are_told_once(ledger: Any) -> None:
    """The run reservation tells of what it holds; its draws reach nothing anew."""
    policy = make_policy(alerts="[0.3, 0.6]")
    here: dict[str, Any] = {"policies": [policy]}
    answers = ledger.reserve_many(
        [
            whole(ledger, ["0.2"] * 2, **here),
            request(ledger, "0.2", preflights=(RUN,), **here),
            request(ledger, "0.3", **here),
            request(ledger, "0.2", preflights=(RUN,), **here),
        ]
    )
    told = [[alert.threshold for alert in answer.alerts] for answer in answers]
    assert told == [["0.3"], [], ["0.6"], []]
    assert [len(answer.opened) for answer in answers] == [1, 0, 0, 0]
    assert sums(ledger) == (0, 7 * sums_of("0.1"))
