"""Settled amounts alert once a threshold, under each filter and at each gate."""

from __future__ import annotations

import logging

import pytest

from dpflow import Gaussian, guarded
from dpflow.accounting import FILTERS
from dpflow.exceptions import BudgetRefused
from dpflow.ledger import views
from dpflow.ledger.views.entries import alert_text
from tests.ledger.support import granted, make_policy
from tests.projects import TENTH, make_project


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
            name = granted(ledger, cost or step, policies=(policy,))
        except BudgetRefused:
            break
        alerts = ledger.settle(name).alerts
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
    cost = Gaussian(sensitivity=1, sigma=20)
    policy = make_policy(
        budget="{epsilon: 3, delta: 1e-6}",
        filter="gdp",
        odometer="{theorem: rdp, delta: 1e-6}",
        flows=f"{{weekly: {flow}}}",
        alerts="[0.5, 0.8]",
    )
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
