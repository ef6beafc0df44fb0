"""`dpflow policy diff` and `apply`: what an edit does, and making it govern."""

from __future__ import annotations

import pytest

from dpflow.accounting.costs.notions import PureDP
from dpflow.exceptions import PolicyChanged
from tests.cli.support import ADULT, CDNOW, Shop, run, run_fine, run_json
from tests.projects import act_as

TENTH = PureDP(epsilon="0.1")


def adult(epsilon: str, *lines: str) -> str:
    """Write the policy of basic composition with another budget."""
    text = ADULT.replace("epsilon: 1", f"epsilon: {epsilon}")
    return text + "".join(f"{line}\n" for line in lines)


def charge(shop: Shop, epsilon: str = "0.1") -> None:
    """Charge a step to the adults."""
    shop.charge(PureDP(epsilon=epsilon), dataset="adult", flow=None)


# diff


def test_diff_says_what_apply_would_do_and_does_nothing(shop: Shop) -> None:
    """Exit code 1 while something differs, 0 when the ledger has it all."""
    result = run("policy", "diff")
    assert result.exit_code == 1
    assert "adult  apply pins this policy as term 1" in result.stdout
    assert run_json("ledger", "info")["datasets"] == []
    run_fine("policy", "apply")
    text = run_fine("policy", "diff")
    assert "cdnow  apply does nothing: the ledger has this copy (term 1)" in text


@pytest.mark.parametrize(
    ("epsilon", "verdict", "action", "told"),
    [
        ("0.5", "tighter", "tighten", "tightens term 1 in place; its tallies are kept"),
        ("2", "looser", "new term", "refused, unless --new-term --reason TEXT"),
    ],
)
def test_diff_judges_each_change(
    shop: Shop, epsilon: str, verdict: str, action: str, told: str
) -> None:
    """In a table for people, and by field for programs."""
    charge(shop)
    shop.write(adult(epsilon), "adult.yaml")
    result = run("policy", "diff", "adult")
    assert (result.exit_code, told in result.stdout) == (1, True)
    assert f"All in all the file is {verdict}" in result.stdout
    (found,) = run_json("policy", "diff", "adult", exit_code=1)["datasets"]
    assert (found["term"], found["verdict"], found["action"]) == (1, verdict, action)
    assert found["changes"] == [
        {
            "field": "budget.epsilon",
            "ledger": "1",
            "file": epsilon,
            "verdict": verdict,
            "why": None,
        }
    ]


# apply


def test_apply_tightens_and_tells_the_guarantee(shop: Shop) -> None:
    """The sentence keeps to the budget that was opened; the limit is lower."""
    charge(shop)
    shop.write(adult("0.5"), "adult.yaml")
    text = run_fine("policy", "apply", "adult", "--reason", "less is enough")
    assert "adult  term 1 was tightened in place" in text
    assert "Every person (replace-one)" in text
    assert "(epsilon = 1, delta = 0)-differentially private" in text
    assert "tightened to (epsilon = 0.5, delta = 0)" in text
    (account,) = run_json("status", "adult")["datasets"][0]["accounts"]
    assert (account["epsilon"], account["left"]["epsilon"]) == ("0.5", "0.4")
    assert "same as the ledger's copy (term 1)" in run_fine("policy", "check")
    assert "less is enough" in run_fine("history", "adult")
    assert "basic: epsilon 1" in run_fine("history", "adult")


def test_apply_opens_a_term_only_when_it_is_asked_to(shop: Shop) -> None:
    """With a reason, under a lifetime; and the words add the terms up."""
    charge(shop)
    shop.write(adult("2", "lifetime: {epsilon: 3}"), "adult.yaml")
    result = run("policy", "apply", "adult")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "budget.epsilon: ledger 1, file 2 (looser)" in result.stderr
    assert "--new-term --reason TEXT" in result.stderr
    result = run("policy", "apply", "adult", "--new-term")
    assert (result.exit_code, "needs a reason" in result.stderr) == (1, True)
    data = run_json("policy", "apply", "adult", "--new-term", "--reason", "2027")
    (done,) = data["applied"]
    assert (done["action"], done["term"]) == ("new term", 2)
    assert done["terms"][0]["opened_with"] == {"epsilon": "1", "delta": "0"}
    charge(shop)
    text = run_fine("policy", "check", "policies/adult.yaml")
    assert "All terms together are kept within (epsilon = 3, delta = 0)" in text
    assert "add up to (epsilon = 3, delta = 0) of the lifetime" in text
    status = run_fine("status", "adult")
    assert "adult  ended  (term 1)" in status
    assert "Terms so far: 1 (epsilon = 1, delta = 0)" in status


def test_apply_goes_on_after_a_policy_that_it_refuses(shop: Shop) -> None:
    """Each dataset is applied or refused alone."""
    charge(shop)
    shop.write(adult("2"), "adult.yaml")
    data = run_json("policy", "apply", exit_code=1)
    assert [each["dataset"] for each in data["applied"]] == ["cdnow"]
    assert [each["dataset"] for each in data["errors"]] == ["adult"]


def test_a_lifetime_is_raised_with_a_flag_only(shop: Shop) -> None:
    """It breaks what was promised, so it is asked for in so many words."""
    shop.write(adult("1", "lifetime: {epsilon: 2}"), "adult.yaml")
    charge(shop)
    shop.write(adult("2", "lifetime: {epsilon: 3}"), "adult.yaml")
    new = ("policy", "apply", "adult", "--new-term", "--reason", "2027")
    result = run(*new)
    assert (result.exit_code, "--raise-lifetime" in result.stderr) == (1, True)
    assert "term 2 was opened" in run_fine(*new, "--raise-lifetime")


# Workers


def test_the_ledgers_copy_wins_over_a_worker_that_has_not_pulled(shop: Shop) -> None:
    """After an application, the old file is the one that is refused."""
    charge(shop)
    shop.write(adult("0.5"), "adult.yaml")
    run_fine("policy", "apply")
    charge(shop)
    shop.write(ADULT, "adult.yaml")
    with pytest.raises(PolicyChanged, match=r"ledger 0\.5, file 1"):
        charge(shop)
    result = run("status", "adult")
    assert "dpflow policy diff adult" in result.stderr


# Four eyes


# Freeze and unfreeze


def test_freeze_and_unfreeze(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is refused with who and why, until it is unfrozen."""
    act_as(monkeypatch, "ann")
    charge(shop)
    text = run_fine("freeze", "adult", "--reason", "wrong sensitivity")
    assert "Dataset adult is frozen by ann: 'wrong sensitivity'." in text
    refusal = shop.refuse(TENTH, dataset="adult", flow=None)
    assert "frozen by ann: 'wrong sensitivity'" in refusal.message
    assert "Frozen by ann: 'wrong sensitivity'" in run_fine("status", "adult")
    (dataset,) = run_json("status", "adult")["datasets"]
    assert dataset["frozen"]["who"] == "ann"
    data = run_json("freeze", "adult", "--reason", "again")
    assert data == {"dataset": "adult", "frozen": True, "accounts": []}
    assert "adult is open" in run_fine("unfreeze", "adult", "--reason", "it was right")
    text = run_fine("unfreeze", "adult", "--reason", "again")
    assert "was not frozen and is open" in text
    charge(shop)
    kinds = [each["entry"] for each in run_json("history", "adult")["entries"]]
    assert kinds[:5] == ["settle", "reserve", "unfreeze", "refuse", "freeze"]


@pytest.mark.parametrize("command", ["freeze", "unfreeze"])
def test_freezing_needs_a_reason_and_a_dataset(shop: Shop, command: str) -> None:
    """A typo freezes nothing and says so."""
    assert run(command, "adult").exit_code == 2
    assert run(command, "adult", "--reason", " ").exit_code == 2
    result = run(command, "adlut", "--reason", "x")
    assert (result.exit_code, "Did you mean 'adult'?" in result.stderr) == (1, True)
    result = run(command, "adult", "--reason", "x")
    assert (result.exit_code, "dpflow policy apply adult" in result.stderr) == (1, True)


# Environment


def test_a_ledger_keeps_to_its_environment(
    empty: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made for production, it is refused by a run that says nothing or else."""
    monkeypatch.setenv("DPFLOW_ENVIRONMENT", "production")
    run_fine("ledger", "init")
    assert run_json("ledger", "info")["environment"] == "production"
    empty.write(CDNOW)
    for other in ("test", ""):
        monkeypatch.setenv("DPFLOW_ENVIRONMENT", other)
        result = run("status")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "serves the environment 'production'" in result.stderr
    text = '[tool.dpflow]\nenvironment = "production"\n'
    (empty.root / "pyproject.toml").write_text(text)
    run_fine("status")
