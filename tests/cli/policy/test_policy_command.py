"""`dpflow policy` checks every file and says how many steps fit."""

from __future__ import annotations

import pytest

from tests.cli.support import ADULT, CDNOW, Shop, run, run_fine, run_json

pytestmark = pytest.mark.quick

WEAK = """\
dataset: weak
unit: person
relation: add-or-remove
budget: {epsilon: 12, delta: 1e-3}
filter: basic
"""


def test_weak_choices_are_warned_of_and_fail_with_strict(shop: Shop) -> None:
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
    assert "run `dpflow init`" in result.stderr
    run_fine("ledger", "init")
    result = run("policy", "check")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there are no policy files" in result.stderr


def test_another_ledger_fails_the_check(shop: Shop) -> None:
    """The files are still shown."""
    (shop.policies / "ledger.lock").write_text("f" * 32 + "\n")
    result = run("policy", "check")
    assert result.exit_code == 1
    assert "dataset cdnow  valid" in result.stdout
    assert "would forget what has been spent" in result.stderr
