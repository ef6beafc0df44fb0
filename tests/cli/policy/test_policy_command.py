"""`dpflow policy` checks every file and says how many steps fit."""

from __future__ import annotations

import json

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.costs.text import cost_from_text
from dpflow.policy import policy_schema
from tests.cli.support import ADULT, CDNOW, Shop, run, run_fine, run_json

pytestmark = pytest.mark.quick

SEQUENCE = """
dataset: cdnow
unit: customer
relation: add-or-remove
budget: {epsilon: 1, delta: 1e-6}
filter:
  theorem: sequence
  accountant: gdp
  steps:
    - {cost: {mechanism: Gaussian, sensitivity: 1, sigma: 50}, times: 2}
    - {cost: {mechanism: Gaussian, sensitivity: 1, sigma: 1000}, times: 5}
"""


def fits(data: dict, title: tuple[str, str]) -> list[int | None]:
    """Return how many steps fit one gate of the first policy."""
    gates = {(g["kind"], g["name"]): g for g in data["policies"][0]["gates"]}
    return [count["steps"] for count in gates[title]["fits"]]


# policy check: what it says


def test_check_names_the_guarantee_and_the_constants(shop: Shop) -> None:
    """Derived numbers are shown, for they will be pinned."""
    text = run_fine("policy", "check")
    assert "policies/cdnow.yaml  dataset cdnow  valid" in text
    assert "Every customer (add-or-remove): all releases from dataset" in text
    assert "delta 1e-6, order 10.7" in text
    assert "halts at 3, idle 1.425" in text
    assert "policies/adult.yaml  dataset adult  valid" in text


def test_check_counts_the_steps_that_fit_each_gate(shop: Shop) -> None:
    """The count is exact: one more would be refused."""
    data = run_json("policy", "check", "policies/cdnow.yaml")
    assert fits(data, ("dataset", "")) == [167, 26]
    assert fits(data, ("flow", "weekly-report")) == [75, 12]
    assert fits(data, ("odometer", "weekly-report")) == [117, 34]


def test_a_budget_of_tenths_fits_exactly_ten(shop: Shop) -> None:
    """Ten steps of 0.1 fit a budget of 1, and a Gaussian has no price there."""
    data = run_json("policy", "check", "policies/adult.yaml")
    assert fits(data, ("dataset", "")) == [None, 10]
    (gaussian, pure) = data["policies"][0]["gates"][0]["fits"]
    assert (gaussian["priced"], pure["priced"]) == (False, True)
    rule = make_filter("basic", epsilon=1)
    tally = rule.zero()
    for _ in range(10):
        tally = tally + rule.price(PureDP(epsilon="0.1"))
    assert rule.admits(tally)
    assert "no price" in run_fine("policy", "check", "policies/adult.yaml")


def test_a_sequence_is_shown_briefly(shop: Shop) -> None:
    """Its lines count their steps; all of it would be a table of 490 columns."""
    shop.write(SEQUENCE)
    text = run_fine("policy", "check", "policies/cdnow.yaml")
    assert "2 + 5 steps" in text
    table = text.split("differentially private", 1)[1].partition("The last columns")[0]
    assert max(map(len, table.split("declares.")[1].splitlines())) < 200


def test_a_folder_elsewhere_can_be_checked(empty: Shop) -> None:
    """As continuous integration does, without a ledger."""
    elsewhere = empty.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "adult.yaml").write_text(ADULT)
    text = run_fine("policy", "check", "elsewhere")
    assert "elsewhere/adult.yaml  dataset adult  valid" in text
    assert "There is no ledger yet to compare with" in text
    assert run_json("policy", "check", "elsewhere")["policies"][0]["ledger"] is None


# policy check: what is weak, and what would be better

WEAK = """\
dataset: weak
unit: person
relation: add-or-remove
budget: {epsilon: 12, delta: 1e-3}
filter: basic
"""
GAUSSIAN = "Gaussian(sensitivity=1, sigma=20)"


def test_weak_choices_are_warned_of_and_fail_only_if_that_is_asked(shop: Shop) -> None:
    """A warning is no refusal; CI may make it one."""
    shop.write(WEAK, "weak.yaml")
    arguments = ("policy", "check", "policies/weak.yaml", "--people", "5000")
    text = run_fine(*arguments)
    assert text.count("weak: ") == 2
    assert "epsilon 12 promises little to one person" in text
    assert "delta 0.001 is above 1 / people (1 / 5000)" in text
    data = run_json(*arguments)
    assert data["fine"] is True
    codes = [each["code"] for each in data["policies"][0]["warnings"]]
    assert codes == ["large-epsilon", "large-delta"]
    assert run_json(*arguments, "--strict", exit_code=1)["fine"] is False
    shop.write(f"source: shop.cdnow\n{CDNOW}")
    assert run("policy", "check", "policies/cdnow.yaml", "--strict").exit_code == 0


def test_a_declared_workload_gets_a_theorem_suggested(shop: Shop) -> None:
    """The one that goes furthest, with both counts."""
    shop.write(WEAK.replace("12", "3"), "weak.yaml")
    arguments = ("policy", "check", "policies/weak.yaml", "--cost", GAUSSIAN)
    data = run_json(*arguments)["policies"][0]
    assert [each["code"] for each in data["warnings"]] == ["large-delta", "no-price"]
    assert data["suggestion"]["filter"] == "gdp"
    assert data["suggestion"]["policy_runs"] is None
    rule = make_filter("gdp", epsilon=3, delta="1e-3")
    runs, price = data["suggestion"]["runs"], rule.price(cost_from_text(GAUSSIAN))
    assert rule.admits(price.times(runs))
    assert not rule.admits(price.times(runs + 1))
    assert "`filter: gdp` goes furthest" in run_fine(*arguments)


def test_the_journal_is_the_workload_where_there_is_one(shop: Shop) -> None:
    """One run of each flow, the last."""
    assert run_json("policy", "check")["policies"][0]["suggestion"] is None
    shop.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    data = run_json("policy", "check", "policies/adult.yaml")["policies"][0]
    assert data["workload"] == [{"cost": "PureDP(epsilon=0.1)", "times": 1}]
    assert (data["suggestion"]["filter"], data["suggestion"]["runs"]) == ("basic", 10)
    assert "No adaptive filter admits more" in run_fine("policy", "check")


HALT = "halt_at_epsilon: 3"


# policy check: what it refuses


def test_every_bad_file_is_reported_with_its_line_and_a_hint(shop: Shop) -> None:
    """One bad file stops the check of none."""
    shop.write(CDNOW.replace("gdp", "gpd"))
    shop.write(ADULT.replace("epsilon: 1", "epsilon: -1"), "adult.yaml")
    shop.write(ADULT.replace("adult", "other"), "other.yaml")
    result = run("policy", "check")
    assert result.exit_code == 1
    assert "policies/other.yaml  dataset other  valid" in result.stdout
    assert "policies/adult.yaml  refused" in result.stdout
    assert "policies/adult.yaml:4: budget.epsilon" in result.stderr
    assert "policies/cdnow.yaml:5: filter" in result.stderr
    assert "Did you mean 'gdp'?" in result.stderr


def test_a_folder_without_policies_fails(empty: Shop) -> None:
    """A check that checks nothing must not look like success."""
    result = run("policy", "check")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "make a project with `dpflow init`" in result.stderr
    run_fine("ledger", "init")
    result = run("policy", "check")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there are no policy files" in result.stderr


# policy check: the ledger's copy


def test_a_policy_that_the_ledger_pinned_is_the_same(shop: Shop) -> None:
    """The check says so."""
    assert "not pinned in the ledger yet" in run_fine("policy", "check")
    shop.charge()
    text = run_fine("policy", "check", "policies/cdnow.yaml")
    assert "same as the ledger's copy (term 1)" in text


def test_an_edit_after_the_first_charge_fails_the_check(shop: Shop) -> None:
    """Steps would be refused, so this is better known before."""
    shop.charge()
    shop.write(CDNOW.replace("epsilon: 3,", "epsilon: 4,"))
    result = run("policy", "check")
    assert result.exit_code == 1
    assert "differs from the ledger: budget.epsilon: ledger 3, file 4" in result.stdout
    data = run_json("policy", "check", "policies/cdnow.yaml", exit_code=1)
    told = data["policies"][0]["ledger"]
    assert (told["term"], told["refused"]) == (1, True)
    assert "budget.epsilon: ledger 3, file 4" in told["differences"]


def test_another_ledger_fails_the_check(shop: Shop) -> None:
    """The files are still shown."""
    (shop.policies / "ledger.lock").write_text("f" * 32 + "\n")
    result = run("policy", "check")
    assert result.exit_code == 1
    assert "dataset cdnow  valid" in result.stdout
    assert "would forget what has been spent" in result.stderr


# policy schema


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_schema_prints_what_editors_need(empty: Shop, options: tuple[str, ...]) -> None:
    """It is JSON with and without --json, as policy.schema.json holds it."""
    text = run_fine("policy", "schema", *options)
    assert json.dumps(policy_schema(), indent=2) + "\n" == text
