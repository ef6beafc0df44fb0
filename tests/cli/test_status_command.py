"""`dpflow status` says what was spent, what is left, and what to do next."""

from __future__ import annotations

from datetime import date

from dpflow.accounting.costs.base import _KINDS
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.forecast.outlook import coming_runs, outlooks
from tests.cli.support import (
    CDNOW,
    Shop,
    run_fine,
    run_json,
)


def account(data: dict, dataset: str, kind: str) -> dict:
    """Find one account in the JSON of a status."""
    known = (each["standing"] for each in data["datasets"])
    (found,) = (each for each in known if each["dataset"] == dataset)
    (match,) = (a for a in found["accounts"] if a["kind"] == kind)
    return match


def test_an_undefined_reading_is_told_and_is_null_in_json(shop: Shop) -> None:
    """JSON has no infinity."""
    shop.write(
        CDNOW.replace("gdp", "{theorem: zcdp, delta_loss: 5e-7}").replace(
            "delta: 5e-7, halt_at_epsilon: 3", "delta: 6e-7"
        )
    )
    shop.charge(ApproxDP(epsilon="0.1", delta="1e-9"))
    assert "infinity" in run_fine("status", "--details")
    assert account(run_json("status"), "cdnow", "odometer")["reading"] is None


def test_a_mechanism_of_someone_elses_hides_nothing(shop: Shop) -> None:
    """Runs left need tallies only, no class that this process lacks."""

    class Elsewhere(PureDP):
        """A cost that only the flow's own code knows."""

    shop.charge(Elsewhere(epsilon="0.1"), dataset="adult", flow=None)
    _KINDS.pop("Elsewhere")
    (outlook,) = run_json("status", "adult")["datasets"][0]["outlooks"]
    assert outlook["runs_left"] == 9
    run_fine("policy", "check")


MONDAYS = """\
deployments:
  - entrypoint: report.py:weekly_report
    schedules: [{cron: "0 6 * * 1", timezone: UTC}]
"""


def test_a_deployment_says_the_days_before_release_keys_do(shop: Shop) -> None:
    """A flow that has not run has days, too; without a deployment it has none."""
    text = run_fine("status", "cdnow", "--next", "2")
    assert "No day is known of weekly-report: schedule it in prefect.yaml." in text
    (shop.root / "prefect.yaml").write_text(MONDAYS)
    for week in (None, *range(13, 18)):
        if week is not None:
            shop.charge(key=f"revenue/1997-W{week}")
        ahead = coming_runs(
            outlooks(shop.ledger(), "cdnow"),
            ["weekly-report"],
            2,
            root=shop.root,
            today=date(2027, 1, 3),
        )
        days = [date(2027, 1, 4), date(2027, 1, 11)]
        assert [day for day, _, _ in ahead.runs] == days
    run_fine("policy", "apply", "cdnow")
    assert len(run_json("status", "--next", "2")["datasets"]) == 2
