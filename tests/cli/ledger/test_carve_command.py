"""`dpflow ledger carve` and `dpflow policy apply --grant`: two projects, one source."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpflow import PureDP
from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import forget_projects
from dpflow.ledger.grants import grant_from_text
from tests.cli.support import Shop, run, run_fine, run_json
from tests.signing import key_file

SALES = """\
dataset: sales
unit: customer
relation: add-or-remove
source: warehouse.sales.customers
budget: {epsilon: 3}
lifetime: {epsilon: 3}
filter: basic
"""
STAGING = SALES.replace("epsilon: 3", "epsilon: 1")
STEP = PureDP(epsilon="0.5")


@pytest.fixture
def projects(empty: Shop, monkeypatch: pytest.MonkeyPatch) -> tuple[Shop, Shop]:
    """Make two projects beside each other; the first one uses the source."""
    # A source is governed for all projects whose witnesses are at one place.
    monkeypatch.setenv("XDG_STATE_HOME", str(empty.root / "state"))
    made = []
    for name, policy in (("production", SALES), ("staging", STAGING)):
        folder = empty.root / name
        folder.mkdir()
        (folder / "pyproject.toml").touch()
        monkeypatch.chdir(folder)
        forget_projects()
        assert run("ledger", "init").exit_code == 0
        shop = Shop(folder)
        shop.write(policy, "sales.yaml")
        made.append(shop)
    monkeypatch.chdir(made[0].root)
    made[0].charge(STEP, dataset="sales", flow=None)
    return made[0], made[1]


def go(monkeypatch: pytest.MonkeyPatch, shop: Shop) -> None:
    """Work in a project."""
    forget_projects()
    monkeypatch.chdir(shop.root)


def test_a_part_is_carved_applied_and_spent(
    projects: tuple[Shop, Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second project is refused, gets a grant, and runs."""
    production, staging = projects
    go(monkeypatch, staging)
    with pytest.raises(ConfigurationError, match="governed by ledger"):
        staging.charge(STEP, dataset="sales", flow=None)
    taker = run_json("ledger", "status")["ledger"]["id"]
    go(monkeypatch, production)
    grant = production.root / "staging.grant"
    because = ("--because", "trial runs")
    words = ("ledger", "carve", "sales", str(grant), "--epsilon", "1", "--to", taker)
    text = run_fine(*words, *because)
    assert "Charged sales#1, for ever." in text
    assert f"--grant {grant}" in text
    before = run_json("status")["datasets"][0]["accounts"][0]
    assert before["spent"] == {"epsilon": "1.5", "delta": "0"}
    assert run(*words, *because).exit_code == 1
    data = run_json(*words[:3], str(grant) + "2", *words[4:], *because)
    assert (data["taker"], data["charges"][0]["account"]) == (taker, "sales#1")
    go(monkeypatch, staging)
    data = run_json("policy", "apply", "sales", "--grant", str(grant))
    assert data["applied"][0]["action"] in {"open", "new term", "replace"}
    staging.charge(STEP, dataset="sales", flow=None)
    assert run_fine("ledger", "verify")


def test_a_changed_grant_and_a_missing_file_are_refused(
    projects: tuple[Shop, Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error says what to do; nothing is applied."""
    production, staging = projects
    grant = production.root / "staging.grant"
    go(monkeypatch, staging)
    taker = run_json("ledger", "status")["ledger"]["id"]
    go(monkeypatch, production)
    words = ("ledger", "carve", "sales", str(grant), "--epsilon", "1", "--to", taker)
    run_fine(*words, "--because", "trial runs")
    go(monkeypatch, staging)
    grant.write_text(grant.read_text().replace('"epsilon": "1"', '"epsilon": "9"'))
    for file, told in ((grant, "digest does not fit"), (Path("no"), "cannot read")):
        result = run("policy", "apply", "sales", "--grant", str(file))
        assert result.exit_code == 1
        assert told in result.stderr
    assert run("policy", "apply", "--grant", str(grant)).exit_code == 2


def test_a_key_that_cannot_be_read_carves_nothing(
    projects: tuple[Shop, Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is charged for ever, so that its grant must not fail behind the charge."""
    production, _ = projects
    go(monkeypatch, production)
    before = run_json("status")["datasets"][0]["accounts"][0]["spent"]
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", "none")
    words = ("ledger", "carve", "sales", "a.grant", "--epsilon", "1", "--to", "x")
    result = run(*words, "--because", "trial runs")
    assert (result.exit_code, "names no file" in result.stderr) == (1, True)
    assert run_json("status")["datasets"][0]["accounts"][0]["spent"] == before
    key_file(production.root, "k")
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", "key-k")
    run_fine(*words, "--because", "trial runs")
    assert grant_from_text(Path("a.grant").read_text()).epsilon == "1"


def test_too_much_is_not_carved(
    projects: tuple[Shop, Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no file is written."""
    production, _ = projects
    go(monkeypatch, production)
    grant = production.root / "staging.grant"
    words = ("ledger", "carve", "sales", str(grant), "--epsilon", "2.6", "--to", "x")
    result = run(*words, "--because", "trial runs")
    assert (result.exit_code, grant.exists()) == (1, False)
    assert "has left" in result.stderr
