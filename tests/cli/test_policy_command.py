"""`dpflow policy check`, `diff` and `apply`."""

from __future__ import annotations

import pytest

from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.exceptions import UnknownDataset
from dpflow.policy import load_policies
from tests.cli.support import ADULT, CDNOW, Shop, run, run_fine, run_json
from tests.projects import ROOT

pytestmark = pytest.mark.quick

WEAK = """\
dataset: weak
unit: person
relation: add-or-remove
budget: {epsilon: 12, delta: 1e-3}
filter: basic
"""


STOPPING = (
    "{cost: {mechanism: EarlyStopping, stops: [64, 128], "
    "step: {mechanism: Gaussian, sensitivity: 1, sigma: 40}}}"
)
PURE = "{cost: {mechanism: PureDP, epsilon: 0.1}, times: 2}"


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


@pytest.mark.parametrize(
    ("theorem", "words"),
    [
        ("auto", "orders 7 and 10, weights 0.6 and 0.4, conversion tight) and zcdp ("),
        ("{theorem: rdp, orders: [8, 52]}", "1e-6, orders 8 and 52, weights 0.5 and"),
        (
            f"{{theorem: sequence, accountant: rdp, steps: [{STOPPING}, {PURE}]}}",
            "1 + 2 steps, stops 3, deltas 1e-6, accountant rdp",
        ),
    ],
)
def test_constants_of_a_rule_are_printed_as_words(
    shop: Shop, theorem: str, words: str
) -> None:
    """Lists of orders, weights, stops, deltas and members are no Python."""
    shop.write(CDNOW.replace("filter: gdp", f"filter: {theorem}"))
    text = run_fine("policy", "check", "policies/cdnow.yaml")
    gates = text[text.index("gate  ") : text.index("The last columns")]
    column = range(gates.index("constants"), gates.index("threshold"))
    lines = [line[column[0] : column[-1] + 1].strip() for line in gates.splitlines()]
    assert words in " ".join(lines)
    assert not set("[]{}'") & set(gates)


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


def adult(epsilon: str, *lines: str) -> str:
    """Write the policy of basic composition with another budget."""
    text = ADULT.replace("epsilon: 1", f"epsilon: {epsilon}")
    return text + "".join(f"{line}\n" for line in lines)


def charge(shop: Shop, epsilon: str = "0.1") -> None:
    """Charge a step to the adults."""
    shop.charge(PureDP(epsilon=epsilon), dataset="adult", flow=None)


def test_apply_tightens_and_prints_the_guarantee(shop: Shop) -> None:
    """The sentence keeps to the budget that was opened; the limit is lower."""
    charge(shop)
    shop.write(adult("0.5"), "adult.yaml")
    text = run_fine("policy", "apply", "adult", "--reason", "less is enough")
    assert "adult  term 1 was tightened in place" in text
    assert "Every person (replace-one)" in text
    assert "(epsilon = 1, delta = 0)-differentially private" in text
    assert "tightened to (epsilon = 0.5, delta = 0)" in text
    (account,) = run_json("status", "adult")["datasets"][0]["standing"]["accounts"]
    assert (account["epsilon"], account["left"]["epsilon"]) == ("0.5", "0.4")
    assert "same as the ledger's copy (term 1)" in run_fine("policy", "check")
    assert "less is enough" in run_fine("history", "adult")
    assert "basic: epsilon 1" in run_fine("history", "adult")


def test_apply_opens_a_term_with_its_flag_only(shop: Shop) -> None:
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
    assert done["terms"][0]["opened"] == {"epsilon": "1", "delta": "0"}
    charge(shop)
    text = run_fine("policy", "check", "policies/adult.yaml")
    # Who named it may have seen outputs of the first term.
    assert (
        "lifetime (epsilon = 3, delta = 0) limits further terms. It was named" in text
    )
    assert "add up to (epsilon = 3, delta = 0), if no term was" in text


def test_a_lifetime_is_raised_with_a_flag_only(shop: Shop) -> None:
    """It breaks a promise, so it needs a flag of its own."""
    shop.write(adult("1", "lifetime: {epsilon: 2}"), "adult.yaml")
    charge(shop)
    shop.write(adult("2", "lifetime: {epsilon: 3}"), "adult.yaml")
    new = ("policy", "apply", "adult", "--new-term", "--reason", "2027")
    result = run(*new)
    assert (result.exit_code, "--raise-lifetime" in result.stderr) == (1, True)
    assert "term 2 was opened" in run_fine(*new, "--raise-lifetime")


def test_terms_are_printed_in_the_tally_of_their_filter(shop: Shop) -> None:
    """`policy check`, `status` and the report say 4.288; a third term is refused."""
    shop.write(f"{CDNOW}lifetime: {{epsilon: 5, delta: 3e-6}}\n")
    shop.charge()
    new = ("policy", "apply", "cdnow", "--new-term", "--reason", "2027")
    assert "--raise-lifetime" not in run_fine(*new)
    shop.charge(key="second")
    total = "(epsilon = 4.288, delta = 2e-06) in the tally of their filter"
    run_fine("report")
    report = (shop.root / "report.html").read_text("utf-8")
    check = run_fine("policy", "check", "policies/cdnow.yaml")
    for text in (check, run_fine("status", "cdnow", "--details"), report):
        assert f"; those charged so far within {total}." in text
        assert f"Charged terms add up to {total}, if no term was opened" in text
    assert total in run_json("status", "cdnow")["datasets"][0]["guarantee"]
    result = run(*new)
    assert (result.exit_code, "(epsilon = 5.309," in result.stderr) == (1, True)


def test_a_check_takes_the_name_of_a_dataset(shop: Shop) -> None:
    """As `diff`, `apply` and `registry` do; a path that is missing stays an error."""
    (policy,) = run_json("policy", "check", "cdnow")["policies"]
    assert policy == run_json("policy", "check", "policies/cdnow.yaml")["policies"][0]
    result = run("policy", "check", "cdnwo")
    assert (result.exit_code, "Did you mean 'cdnow'?" in result.stderr) == (1, True)
    assert "no such file" in run("policy", "check", "cdnwo.yaml").stderr


def test_the_projects_own_policies_pass_its_hook(monkeypatch, tmp_path) -> None:
    """The hook that the project ships is a strict check."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DPFLOW_LEDGER_URL", f"sqlite:///{tmp_path}/none.db")
    assert "check --strict" in (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8")
    assert run("policy", "check", "policies", "--strict").exit_code == 0


def test_a_ledger_keeps_to_its_environment(empty, monkeypatch):
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


def test_a_witness_inside_the_project_is_weak(empty: Shop) -> None:
    """`ledger init`, `init` and a strict check warn of it; a plain check does not."""
    config = empty.root / "pyproject.toml"
    config.write_text('[tool.dpflow]\nwitness = "seen"\n', "utf-8")
    warning = "is inside the project: a restore of the project"
    assert warning in " ".join(run("ledger", "init").stderr.split())
    empty.write(CDNOW + "source: shop\n")
    result = run("policy", "check", "--strict", "--people", "20000")
    assert warning in " ".join(result.stderr.split())
    assert result.exit_code == 1
    result = run("policy", "check")
    assert (result.exit_code, result.stderr) == (0, "")
    config.write_text('[tool.dpflow]\nwitness = "none"\n', "utf-8")
    assert run("policy", "check", "--strict", "--people", "20000").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "--out=~/here"),
        ("policy", "check", "~/here"),
        ("ledger", "verify", "~/here"),
        ("ledger", "export", "--out=~/here"),
    ],
)
def test_paths_of_commands_are_expanded(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """A shell expands no `~` after `=`; a variable is refused."""
    home = shop.root / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    text = run(*arguments).stderr
    assert "~" not in text
    assert not (shop.root / "~").exists()
    assert (home / "here").exists() is ("--out=~/here" in arguments)
    refused = run(*(word.replace("~", "$HOME") for word in arguments))
    assert refused.exit_code == 1
    assert f"Write the absolute path: {home}/here." in " ".join(refused.stderr.split())


def test_policies_in_subfolders_are_said_not_to_be_read(shop: Shop) -> None:
    """By the check, also where it finds no file, and where a dataset is unknown."""
    (shop.policies / "team" / "eu").mkdir(parents=True)
    shop.write(CDNOW.replace("cdnow", "sales"), "team/eu/sales.yaml")
    said = "Subfolders are not read: team/eu. Move their policies up."
    assert said in " ".join(run("policy", "check").stderr.split())
    with pytest.raises(UnknownDataset, match=said):
        load_policies(shop.policies).policy_for("sales")
    for path in shop.policies.glob("*.yaml"):
        path.unlink()
    result = run("policy", "check")
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())


def test_a_cost_that_changed_in_code_is_named(shop: Shop) -> None:
    """No policy has it: the last charge of a step is compared with the one before."""
    shop.charge(cost=Gaussian(sensitivity=1, noise_multiplier=20))
    shop.charge(cost=Gaussian(sensitivity=1, noise_multiplier=20))
    assert run_json("policy", "diff", "cdnow")["changed_costs"] == {"cdnow": []}
    shop.charge(cost=Gaussian(sensitivity=1, noise_multiplier=10))
    text = " ".join(run_fine("policy", "diff", "cdnow").split())
    assert "Step 'weekly_revenue' of flow 'weekly-report': its last charge is" in text
    assert "sigma=10), and the one before was Gaussian(sensitivity=1, sigma=20)" in text


def test_a_second_report_is_applied_with_a_reason(shop: Shop) -> None:
    """The words are about access, and the guarantee stays."""
    shop.charge()
    before = run_json("status", "cdnow")["datasets"][0]
    shop.write(CDNOW + "  second-report: {share: 10%}\n")
    text = run("policy", "diff", "cdnow").stdout
    assert "changes access to term 1" in text
    assert "the guarantee of the dataset stays" in text
    result = run("policy", "apply", "cdnow")
    assert (result.exit_code, "needs a reason" in result.stderr) == (1, True)
    done = ("policy", "apply", "cdnow", "--reason", "a second report")
    assert "access to term 1 was changed" in run_fine(*done)
    shop.charge(flow="second-report")
    after = run_json("status", "cdnow")["datasets"][0]
    for field in ("guarantee", "odds", "terms"):
        assert after[field] == before[field]
    assert run_json("ledger", "verify")["bad"] == []
    assert "access changed" in run_fine("history", "cdnow", "--decisions")
    assert "access" in run_fine("history", "cdnow")
