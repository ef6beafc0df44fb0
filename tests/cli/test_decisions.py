"""`dpflow history --decisions`: what was decided by whom and why."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.accounting.costs.notions import PureDP
from tests.cli.support import (
    CDNOW,
    STEP,
    Shop,
    freeze_a_population,
    run,
    run_fine,
    run_json,
)
from tests.projects import act_as

TERM_TWO = CDNOW.replace("filter:", "lifetime: {epsilon: 6, delta: 2e-6}\nfilter:")


def decided(*arguments: str) -> list[dict[str, Any]]:
    """Return the decisions, newest first."""
    found: list[dict[str, Any]] = run_json("history", "--decisions", *arguments)[
        "entries"
    ]
    return found


def told(*arguments: str) -> list[tuple[str, str, str]]:
    """Return what was decided, by whom and why."""
    names = ("decision", "who", "reason")
    return [tuple(each[name] for name in names) for each in decided(*arguments)]


@pytest.fixture
def decisions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Decide everything that people decide about one dataset, among charges."""
    act_as(monkeypatch, "ann")
    run_fine("policy", "apply", "cdnow", "--reason", "the first year")
    shop.charge()
    act_as(monkeypatch, "bob")
    tighter = CDNOW.replace("epsilon: 3", "epsilon: 2.9")
    shop.write(tighter)
    run_fine("policy", "apply", "cdnow", "--reason", "too generous")
    shop.charge()
    run_fine("freeze", "cdnow", "--reason", "wrong sigma")
    run_fine("unfreeze", "cdnow", "--reason", "it was right")
    reservation = shop.reserve()
    run_fine(
        "ledger", "reservations", "--close", reservation, "--reason", "a dead host"
    )
    amend = (
        "ledger",
        "charge",
        "cdnow",
        "--charge",
        reservation,
        "--reason",
        "sigma was half of that",
    )
    run_fine(*amend, "--cost", "Gaussian(sensitivity=100, noise_multiplier=5)")
    (shop.root / "proof").touch()
    how = ("--reason", "a pilot", "--evidence", "proof")
    run_fine("ledger", "charge", "cdnow", "--cost", repr(STEP), *how)
    shop.write(TERM_TWO)
    run_fine("policy", "apply", "cdnow", "--new-term", "--reason", "a new year")
    for _ in range(16):
        shop.charge()
    return shop


def test_every_decision_is_told_with_who_and_why(decisions: Shop) -> None:
    """Once each, newest first, and no charge among them."""
    assert told() == [
        ("term 2 opened", "bob", "a new year"),
        ("prior charged", "bob", "a pilot"),
        ("charge raised", "bob", "sigma was half of that"),
        ("charge closed in full", "bob", "a dead host"),
        ("unfrozen", "bob", "it was right"),
        ("frozen", "bob", "wrong sigma"),
        ("tightened", "bob", "too generous"),
        ("term 1 opened", "ann", "the first year"),
    ]
    text = run_fine("history", "--decisions")
    for row in told():
        assert all(part in text for part in row)
    assert "weekly_revenue" in text
    assert "settle" not in text


def test_decisions_are_filtered_and_limited(decisions: Shop) -> None:
    """By dataset as charges are, and to the newest ones."""
    decisions.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    assert [each["dataset"] for each in decided("adult")] == ["adult"]
    assert len(decided("cdnow")) == 8
    found = run_json("history", "--decisions", "cdnow", "--limit", "3")
    assert (len(found["entries"]), found["more"]) == (3, True)
    text = run_fine("history", "--decisions", "cdnow", "--limit", "3")
    assert "These are the newest 3; --limit 12 shows more." in text
    result = run("history", "--decisions", "--all-accounts")
    assert result.exit_code == 2
    assert "told once" in result.stderr


def test_a_reconciliation_is_a_decision(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It charges what a restored backup lacks."""
    shop.charge()
    copy = shop.root / "copy.db"
    run_fine("ledger", "backup", str(copy))
    shop.charge()
    act_as(monkeypatch, "bob")
    file = shop.root / ".dpflow" / "ledger.db"
    for name in ("ledger.db-wal", "ledger.db-shm"):
        file.with_name(name).unlink(missing_ok=True)
    file.write_bytes(copy.read_bytes())
    run("ledger", "reconcile", "--reason", "the disk was lost")
    (repaired,) = [each for each in decided() if each["who"] == "bob"]
    assert repaired["decision"] == "lost charges charged again"
    assert repaired["reason"] == "the disk was lost"
    assert "mu_squared" in repaired["what"]


def test_a_population_is_told_beside_its_datasets(shop: Shop) -> None:
    """One decision about both is told once."""
    freeze_a_population(shop)
    found = [(each["dataset"], each["decision"]) for each in decided()]
    assert found[0] == ("population/people", "frozen")
    assert [each for each in found if each[1] == "prior charged"] == [
        ("adult", "prior charged")
    ]
    assert sorted(found[2:]) == [
        ("adult", "term 1 opened"),
        ("population/people", "term 1 opened"),
    ]
    asked = [each["decision"] for each in decided("population/people")]
    assert asked == ["frozen", "prior charged", "term 1 opened"]
