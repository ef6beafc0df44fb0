"""Settled amounts alert once a threshold; the first charge announces its term."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dpflow import Gaussian, guarded
from dpflow.accounting import FILTERS
from dpflow.exceptions import BudgetRefused
from dpflow.ledger import Ledger, views
from dpflow.ledger.decisions.terms import FIRST
from dpflow.ledger.requests import Alert, Granted
from dpflow.ledger.views.entries import alert_text
from dpflow.policy import Policy
from tests.ledger.support import granted, make_policy, request
from tests.projects import TENTH, make_project

POLICY = make_policy(alerts="[0.5, 0.8, 0.95]")


def charged(
    ledger: Ledger, cost: Any = "0.1", policy: Policy = POLICY, **ends: Any
) -> tuple[Alert, ...]:
    """Reserve a step and settle it; return its alerts."""
    return ledger.settle(granted(ledger, cost, policies=(policy,)), **ends).alerts


@pytest.mark.parametrize("theorem", sorted(set(FILTERS) - {"individual", "sequence"}))
def test_every_filter_alerts_when_half_is_used(ledger, theorem):
    """At the step that brings its own fraction there, and at no other."""
    policy = make_policy(
        budget="{epsilon: 3, delta: 1e-5}", filter=theorem, alerts="[0.5]"
    )
    cost = "0.2" if theorem in ("basic", "output-dp", "rogers") else None
    step = Gaussian(sensitivity=1, sigma=10)
    fractions = []
    for _ in range(200):
        try:
            alerts = charged(ledger, cost or step, policy)
        except BudgetRefused:
            break
        fractions += [alert.used_fraction for alert in alerts]
    assert len(fractions) == 1
    assert 0.5 <= fractions[0] < 0.75


def test_a_guarded_step_logs_its_alert(tmp_path, monkeypatch, caplog):
    """As a warning, with the account."""
    make_project(tmp_path, monkeypatch)

    @guarded(dataset="shop", cost=TENTH, fresh=True)
    def count() -> int:
        return 1

    with caplog.at_level(logging.WARNING, "dpflow"):
        for _ in range(6):
            count()
    assert [r.message for r in caplog.records if "budget" in r.message] == [
        "50% of the budget of dataset shop is used in term 1, after step 'count'"
    ]


def opened(ledger: Ledger, policy: Policy = POLICY, **fields: object) -> list[str]:
    """Reserve a step and return the terms that it is the first charge of."""
    answer = ledger.reserve(request(ledger, "0.1", policies=(policy,), **fields))
    assert isinstance(answer, Granted)
    return [
        f"{each.book} {each.number} {each.fields['reason']}" for each in answer.opened
    ]


def test_a_term_is_announced_with_its_first_charge(ledger):
    """Once, be that charge voided; a refusal charges nothing. A new term is anew."""
    with pytest.raises(BudgetRefused):
        ledger.reserve(request(ledger, "2", policies=(POLICY,)))
    first = request(ledger, "0.1", policies=(POLICY,))
    answer = ledger.reserve(first)
    assert isinstance(answer, Granted)
    (term,) = answer.opened
    assert (term.book, term.number, term.fields["reason"]) == ("a", 1, FIRST)
    ledger.void(first.reservation, reason="not started")
    assert [opened(ledger) for _ in range(2)] == [[], []]
    policy = make_policy(lifetime="{epsilon: 9}", budget="{epsilon: 2}")
    wish = {"reason": "a new year", "new_term": True}
    ledger.apply(policy, **wish)
    assert [opened(ledger, policy) for _ in range(2)] == [["a 2 a new year"], []]


def gates(flow: str, alerts: str = "[0.5, 0.8]") -> Policy:
    """Make a policy in which a flow's own gate refuses long before the dataset's."""
    return make_policy(
        budget="{epsilon: 3, delta: 1e-6}",
        filter="gdp",
        odometer="{theorem: rdp, delta: 1e-6}",
        flows=f"{{weekly: {flow}}}",
        alerts=alerts,
    )


@pytest.mark.parametrize(
    ("flow", "gate", "name"),
    [
        (
            "{epsilon: 1, delta: 1e-6, halt_at_epsilon: 3}",
            "share",
            "{}% of the share of weekly on a is used",
        ),
        (
            "{halt_at_epsilon: 2}",
            "odometer",
            "the odometer of weekly on a has moved {}% of the way to its halt",
        ),
    ],
)
def test_the_gate_that_stops_a_flow_warns_before(ledger, flow, gate, name):
    """A share and an odometer's halt reach thresholds, whatever the dataset has."""
    cost, policy = Gaussian(sensitivity=1, sigma=20), gates(flow)
    thresholds = list[str]()

    def run() -> None:
        for _ in range(200):
            name = granted(ledger, cost, policies=(policy,), flow="weekly")
            alerts = ledger.settle(name).alerts
            thresholds.extend(alert_text(a.account, a.threshold) for a in alerts)

    with pytest.raises(BudgetRefused, match=gate):
        run()
    assert thresholds == [name.format(part) for part in (50, 80)]
    alerts = views.alerts(ledger, "a")
    assert [alert_text(a.account, a.threshold) for a in alerts] == thresholds[::-1]


def test_an_odometer_that_only_idles_reaches_no_threshold(ledger):
    """Its reading counts from where it idles; the first step is far from the halt."""
    policy = gates("{halt_at_epsilon: 2}", alerts="[0.1, 0.4]")
    cost = Gaussian(sensitivity=1, sigma=200)
    name = granted(ledger, cost, policies=(policy,), flow="weekly")
    assert ledger.settle(name).alerts == ()
    (odometer,) = [v for v in views.accounts(ledger) if v.kind == "odometer"]
    assert odometer.reading is not None
    assert odometer.reading / 2 > 0.4
