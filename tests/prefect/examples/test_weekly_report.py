"""The main job on real data, with a budget that fits three weeks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from dpflow.config import settings
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger import create_ledger, pin_ledger
from dpflow.ledger.views import history
from flows import data, weekly_report

ROOT = Path(__file__).resolve().parents[3]
#: 3 weeks of mu**2 = 1/21**2 + 1/13**2 + 1/17**2 leave half a week of epsilon 0.85.
SMALL = "budget: {epsilon: 0.85, delta: 1e-6}"


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return a folder with the example's policy, at a smaller budget."""
    shutil.copytree(ROOT / "policies", tmp_path / "policies")
    (tmp_path / "policies" / "ledger.lock").unlink(missing_ok=True)
    policy = tmp_path / "policies" / "cdnow.yaml"
    text = policy.read_text("utf-8")
    policy.write_text(re.sub(r"^budget: .*$", SMALL, text, flags=re.MULTILINE), "utf-8")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    found = settings()
    pin_ledger(create_ledger(found.ledger_url), found.policies)
    yield tmp_path
    forget_projects()


async def test_weeks_are_published_until_one_is_refused(shop):
    """Three weeks fit; the fourth publishes nothing; a second pass spends nothing."""
    weeks = data.weeks()
    season = await weekly_report.run_weeks(weeks)
    assert season.published == tuple(weeks[:3])
    assert season.halted == weeks[3]
    assert season.refusal.details["asked"]["mu_squared"] > "0"
    assert "times its noise it would still fit" in season.refusal.fits
    reports = sorted(path.name for path in (shop / "reports").iterdir())
    assert reports == [f"{week}.json" for week in weeks[:3]]

    before = history(current_project().ledger, "cdnow", limit=1000)
    contents = [path.read_bytes() for path in sorted((shop / "reports").iterdir())]
    again = await weekly_report.run_weeks(weeks)
    assert (again.published, again.halted) == (season.published, season.halted)
    after = history(current_project().ledger, "cdnow", limit=1000)
    new = [entry.kind for entry in after if entry.seq > before[0].seq]
    assert set(new) == {"refuse"}
    assert contents == [p.read_bytes() for p in sorted((shop / "reports").iterdir())]


def test_the_policy_fits_between_thirty_and_forty_weeks():
    """The shipped budget halts the report in the demo, not before and not never."""
    from dpflow import load_policy

    policy = load_policy(ROOT / "policies" / "cdnow.yaml")
    rule = policy.dataset_filter()
    steps = (weekly_report.CUSTOMERS, weekly_report.REVENUE, weekly_report.BASKETS)
    week = sum(rule.price(cost).amounts[0] for cost in steps)
    assert 30 <= rule.limit.amounts[0] // week <= 40
    odometer = policy.flow_odometer("weekly-report")
    tally = odometer.zero()
    for cost in steps * 36:
        tally += odometer.price(cost)
    assert odometer.read(tally) <= policy.halt_at("weekly-report")
