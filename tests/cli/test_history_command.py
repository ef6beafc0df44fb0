"""`dpflow history` tells every charge, newest first."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.ledger.provenance import system_user
from tests.cli.support import (
    CDNOW,
    Shop,
    run_fine,
    run_json,
)
from tests.projects import act_as

pytestmark = pytest.mark.quick

MISTYPED = Gaussian(sensitivity=100, noise_multiplier="0.1")


def kinds(data: dict) -> list[str]:
    """Return the kinds of the entries in the JSON of a history."""
    return [entry["entry"] for entry in data["entries"]]


# Empty states


def test_an_empty_journal_says_what_to_do_next(shop: Shop) -> None:
    """A ledger without charges is no error."""
    assert "The journal is empty. Run a flow" in run_fine("history")
    assert "dataset 'cdnow' is empty" in run_fine("history", "cdnow")
    assert run_json("history")["entries"] == []


# Entries


def test_a_decision_says_why_and_who(shop: Shop, monkeypatch: Any) -> None:
    """A first term, which nobody decided in so many words, has its name as well."""
    shop.charge()
    act_as(monkeypatch, "bob")
    run_fine("freeze", "cdnow", "--reason", "wrong sigma")
    run_fine("unfreeze", "cdnow", "--reason", "it was right")
    text = CDNOW.replace("filter:", "lifetime: {epsilon: 6, delta: 2e-6}\nfilter:")
    shop.write(text)
    apply = ("policy", "apply", "cdnow", "--new-term", "--reason", "a new year")
    run_fine(*apply)
    lines = run_fine("history").splitlines()
    opened = next(line for line in lines if " open " in line)
    assert opened.endswith("gdp: epsilon 3, delta 1e-6; a new year (bob)")
    assert any(line.endswith("it was right (bob)") for line in lines)
    assert any(line.endswith("wrong sigma (bob)") for line in lines)
    assert lines[-1].endswith(f"gdp: epsilon 3, delta 1e-6; by {system_user()}")


def test_a_charge_is_told_newest_first(shop: Shop) -> None:
    """A charge is an entry when it is reserved and one when it is settled."""
    shop.charge(key="revenue/1997-W14")
    assert kinds(run_json("history")) == ["settle", "reserve", "open"]
    first = run_fine("history").splitlines()[3]
    for part in ("settle", "weekly_revenue", "weekly-report", "0.01", "0.4095"):
        assert part in first.split()
    assert "revenue/1997-W14" in first
    assert first.endswith("noise opendp")


def test_the_json_has_exact_amounts(shop: Shop) -> None:
    """What is left after an entry is the budget minus settled and held."""
    shop.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None, step="mean")
    shop.charge(PureDP(epsilon="0.2"), dataset="adult", flow=None, step="mean")
    entry = run_json("history", "adult", "--limit", "1")["entries"][0]
    assert (
        entry["entry"],
        entry["dataset"],
        entry["account"],
        entry["step"],
        entry["flow"],
    ) == ("settle", "adult", "adult#1", "mean", None)
    assert entry["amount"] == {"epsilon": "0.2", "delta": "0"}
    assert entry["settled_after"] == {"epsilon": "0.3", "delta": "0"}
    assert entry["left_after"] == {"epsilon": "0.7", "delta": "0"}
    assert entry["cost"] == {"mechanism": "PureDP", "epsilon": "0.2"}
    assert (
        entry["noise"],
        entry["outcome"],
        entry["refusal"],
    ) == ("opendp", "completed", None)


def test_a_failed_step_names_the_type_of_its_error_only(shop: Shop) -> None:
    """The text of an error may hold private data."""
    shop.charge(outcome="failed")
    assert "failed: ValueError" in run_fine("history")
    assert run_json("history")["entries"][0]["error_type"] == "ValueError"


def test_a_refusal_says_why_and_what_would_fit(shop: Shop) -> None:
    """The message stands below the table, once for each refusal that is the same."""
    first = shop.refuse(MISTYPED)
    second = shop.refuse(MISTYPED)
    assert first.message == second.message
    text = run_fine("history")
    assert text.count("refused (1)") == 2
    assert text.count(first.message) == 1
    refusal = run_json("history")["entries"][0]["refusal"]
    assert ("BudgetRefused", first.fits) == (refusal["refusal"], refusal["fits"])


def test_a_forfeited_reservation_is_marked_and_explained(shop: Shop) -> None:
    """Its process has ended, and it stays charged in full."""
    shop.reserve()
    text = run_fine("history")
    assert f"forfeited; by {system_user()} (1)" in text
    assert "(1) A forfeited reservation is one whose process ended" in text
    assert run_json("history")["entries"][0]["outcome"] == "forfeited"


def test_void_and_forfeit_say_why(shop: Shop) -> None:
    """An operator's reason is told."""
    reservation = shop.reserve()
    ledger = shop.ledger()
    ledger.forfeit(reservation, reason="the machine is gone")
    ledger.close()
    assert "the machine is gone" in run_fine("history")


def test_all_accounts_shows_shares_and_odometers(shop: Shop) -> None:
    """Each charge posts to the dataset, the flow's share and its odometer."""
    shop.charge()
    entries = run_json("history", "--all-accounts")["entries"]
    expected = {"cdnow#1", "cdnow#1/flow/weekly-report"}
    expected.add("cdnow#1/odometer/weekly-report")
    assert expected == {entry["account"] for entry in entries}
    text = run_fine("history", "--all-accounts")
    assert "cdnow#1/odometer/weekly-report" in text
    assert "rdp 0.05" in " ".join(text.split())


# How much is shown


def test_the_limit_counts_what_is_shown(shop: Shop) -> None:
    """Entries on shares and odometers do not use the limit up."""
    for _ in range(4):
        shop.charge()
    text = run_fine("history", "--limit", "5")
    rows = [line for line in text.splitlines() if "weekly_revenue" in line]
    assert len(rows) == 5
    assert "These are the newest 5; --limit 20 shows more." in text
    assert run_json("history", "-n", "5")["more"]
    assert not run_json("history", "-n", "9")["more"]


def test_names_in_the_journal_cannot_command_the_terminal(shop: Shop) -> None:
    """A step's name may hold escape sequences or look like markup."""
    shop.charge(step="\x1b[31m[bold]evil[/bold] :fire:\x07")
    text = run_fine("history")
    assert "[31m[bold]evil[/bold] :fire:" in text
    assert "\x1b" not in text
    assert "\x07" not in text
