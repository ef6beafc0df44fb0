"""Every kind of entry in one ledger, and everything that reads a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpflow import Gaussian
from dpflow.config import LEDGER_VARIABLE, POLICIES_VARIABLE
from dpflow.exceptions import BudgetRefused, PolicyChanged
from dpflow.ledger import Ledger, create_ledger, pin_ledger
from dpflow.ledger.audit.copies import journal_rows
from dpflow.ledger.audit.exports import verify_export
from dpflow.ledger.audit.verify import verify
from dpflow.policy import Policy, parse_policy
from tests.cli.support import run, run_fine, run_json
from tests.ledger.support import Place, audit, granted, url

pytestmark = pytest.mark.storages("sqlite", "postgres")

SHOP = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
lifetime: {epsilon: 9, delta: 1e-5}
filter: gdp
odometer: {theorem: rdp, delta: 1e-6}
flows:
  weekly: {epsilon: 2, delta: 5e-7, halt_at_epsilon: 4}
other_flows: allow
source: warehouse.customers
alerts: [0.2]
"""
STEP = Gaussian(sensitivity=1, sigma=20)
KINDS = {
    *("open", "reserve", "settle", "void", "forfeit", "refuse"),
    *("adjust", "tighten", "freeze", "unfreeze"),
}


@pytest.fixture
def ledger(
    path: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    """Make a project and a ledger with all kinds of entries, verified in between."""
    monkeypatch.setenv("DPFLOW_WITNESS", str(tmp_path / "witness"))
    monkeypatch.setenv(LEDGER_VARIABLE, url(path))
    monkeypatch.delenv(POLICIES_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("policies").mkdir()
    Path("pyproject.toml").touch()
    made = create_ledger(url(path), witness=str(tmp_path / "witness"))
    pin_ledger(made, tmp_path / "policies")
    for deed in (charge_plainly, charge_by_hand, freeze, tighten, open_term):
        deed(made, policy_of(SHOP))
        report = verify(made)
        assert (report.bad, report.witness) == ([], "agrees")
    yield made
    made.close()


def policy_of(text: str) -> Policy:
    """Write a policy file and read it."""
    policy = parse_policy(text)
    Path("policies", f"{policy.dataset}.yaml").write_text(text, "utf-8")
    return policy


def charge_plainly(ledger: Ledger, policy: Policy) -> None:
    """Settle, fail, void, forfeit and refuse steps."""
    here: dict[str, Any] = {"policies": [policy], "flow": "weekly", "flow_run": "r0"}
    ledger.settle(granted(ledger, STEP, key="week/1", **here), value="3")
    ledger.settle(granted(ledger, STEP, **here), outcome="failed")
    ledger.void(granted(ledger, STEP, policies=[policy]), reason="test")
    lost = granted(ledger, STEP, policies=[policy], owner="0" * 32)
    ledger.forfeit(lost, reason="its process is gone")
    with pytest.raises(BudgetRefused):
        granted(ledger, Gaussian(sensitivity=1, sigma="0.1"), policies=[policy])


def charge_by_hand(ledger: Ledger, policy: Policy) -> None:
    """Amend a step and charge prior spending."""
    name = granted(ledger, STEP, policies=[policy])
    ledger.settle(name)
    more = Gaussian(sensitivity=1, sigma=15)
    ledger.amend(name, more, reason="a wrong sigma")
    ledger.charge_prior(policy, STEP, reason="before", evidence="e" * 64)


def freeze(ledger: Ledger, policy: Policy) -> None:
    """Freeze the dataset, which then refuses, and unfreeze it."""
    ledger.freeze("shop", reason="looked odd")
    with pytest.raises(BudgetRefused, match="frozen"):
        granted(ledger, STEP, policies=[policy])
    ledger.freeze("shop", reason="was not", unfreeze=True)


def tighten(ledger: Ledger, policy: Policy) -> None:
    """Lower the budget in place."""
    lower = policy_of(SHOP.replace("budget: {epsilon: 3,", "budget: {epsilon: 2.5,"))
    assert ledger.apply(lower).action == "tighten"
    with pytest.raises(PolicyChanged):
        granted(ledger, STEP, policies=[policy])
    ledger.settle(granted(ledger, STEP, policies=[lower]))


def open_term(ledger: Ledger, policy: Policy) -> None:
    """Open a second term and charge it."""
    ledger.apply(policy, reason="a new year", new_term=True)
    ledger.settle(granted(ledger, STEP, policies=[policy], flow="weekly"))


def test_all_that_reads_a_ledger_agrees(ledger, path):
    """Verified, audited, exported, and printed by every command."""
    report = verify(ledger)
    assert report.bad == []
    audit(path)
    rows = [*journal_rows(ledger)]
    assert {row["kind"] for row in rows} == KINDS
    assert [row["number"] for row in rows] == [*range(1, report.entries + 1)]
    run_fine("ledger", "export", "--out", "journal.jsonl")
    exported = verify_export(Path("journal.jsonl"))[1]
    assert (exported.bad, exported.entries) == ([], len(rows))
    assert run_json("ledger", "verify")["fine"]
    for command in (
        ("status",),
        ("status", "shop"),
        ("history", "--limit", "200"),
        ("history", "shop", "--all-accounts"),
        ("ledger", "reservations"),
        ("forecast", "shop", "--like", "weekly"),
        ("why", "shop"),
        ("report", "--out", "page.html"),
    ):
        result = run(*command)
        assert result.exit_code == 0, (command, result.output)
        assert result.output.strip()
    page = Path("page.html").read_text("utf-8")
    assert "Traceback" not in page
