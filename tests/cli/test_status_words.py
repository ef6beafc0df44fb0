"""What `status` says of flows: one word, and one epsilon."""

from __future__ import annotations

from fractions import Fraction

from dpflow.accounting import make_filter
from dpflow.accounting.costs.notions import PureDP
from tests.cli.support import CDNOW, STEP, Shop, run, run_fine, run_json


def overview(dataset: str = "cdnow") -> dict:
    """Return what `dpflow status --json` says of a dataset's newest term."""
    (found,) = run_json("status", dataset)["datasets"]
    return found


def test_what_was_spent_is_told_as_an_epsilon(shop: Shop) -> None:
    """A budget of it admits what was charged, and one of 98 % does not."""
    for _ in range(5):
        shop.charge()
    (spent,) = overview()["overview"]["spent"]
    for factor, admitted in ((1, True), (Fraction(98, 100), False)):
        epsilon = Fraction(spent["used"]) * factor
        rule = make_filter("gdp", epsilon=epsilon, delta="1e-6")
        assert rule.admits(rule.price(STEP).times(5)) is admitted
    assert (spent["epsilon"], spent["delta"]) == ("3", "0.000001")
    assert "of 3 at delta 1e-6" in run_fine("status", "--details")


def test_a_new_term_answers_what_the_former_one_refused(shop: Shop) -> None:
    """The status is that of the newest term."""
    shop.write(CDNOW + "lifetime: {epsilon: 9, delta: 1e-5}\n")
    for _ in range(18):
        shop.charge()
    shop.refuse(STEP)
    assert overview()["overview"]["state"]["word"] == "halted"
    run_fine("policy", "apply", "cdnow", "--new-term", "--reason", "a new year")
    assert overview()["standing"]["term"] == 2
    assert overview()["overview"]["state"]["word"] == "not started"
    shop.charge()
    assert overview()["overview"]["state"]["word"] == "running"


def test_a_charge_by_hand_above_the_budget_overdraws_it(shop: Shop) -> None:
    """The state of the dataset says so."""
    shop.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    reservation = run_json("history", "adult")["entries"][0]["reservation"]
    amend = ("--cost", "PureDP(epsilon=2)", "--reason", "a wrong sensitivity")
    assert (
        run("ledger", "charge", "adult", "--charge", reservation, *amend).exit_code == 0
    )
    assert overview("adult")["overview"]["state"]["word"] == "overdrawn"
