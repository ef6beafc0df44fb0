"""`dpflow status` says what was spent, what is left, and what to do next."""

from __future__ import annotations

from datetime import date

import pytest

from dpflow.accounting.costs.base import _KINDS
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.forecast.coming import coming_runs
from dpflow.forecast.outlook import outlooks
from tests.cli.support import (
    CDNOW,
    STEP,
    Shop,
    flow_row,
    run,
    run_fine,
    run_json,
)


def account(data: dict, dataset: str, kind: str) -> dict:
    """Find one account in the JSON of a status."""
    (found,) = (d for d in data["datasets"] if d["dataset"] == dataset)
    (match,) = (a for a in found["accounts"] if a["kind"] == kind)
    return match


# Empty states


def test_without_a_ledger_it_fails_and_says_how_to_make_one(empty: Shop) -> None:
    """A missing ledger is never made by itself."""
    result = run("status")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "dpflow ledger init" in result.stderr


def test_without_policies_it_shows_how_to_write_one(empty: Shop) -> None:
    """A new project is led to its first policy."""
    run_fine("ledger", "init")
    text = run_fine("status")
    assert "No policies yet" in text
    assert "policies/sales.yaml" in text
    assert "dpflow policy check" in text


def test_before_the_first_charge_it_shows_the_whole_budget(shop: Shop) -> None:
    """The accounts that policies announce are there, untouched."""
    text = run_fine("status", "--details")
    assert "Nothing was charged yet" in text
    assert "not pinned yet" in text
    assert "share of weekly-report" in text
    dataset = account(run_json("status"), "cdnow", "dataset")
    assert (dataset["id"], dataset["state"]) == (None, "not opened")
    assert dataset["budget"] == dataset["left"]


# What was charged


def test_shares_are_compared_in_the_theorems_currency(shop: Shop) -> None:
    """Epsilons 2.5 and 0.5 are less than 3; a share is a limit, and keeps nothing."""
    text = CDNOW.replace("epsilon: 2, delta: 5e-7", "epsilon: 2.5, delta: 1e-6")
    shop.write(text + "  ad-hoc: {epsilon: 0.5, delta: 1e-6}\n")
    told = "The flows' shares can use 75.6% of the budget (epsilon = 3, delta = 1e-06)"
    for command in (["status"], ["policy", "check"]):
        text_shown = " ".join(run_fine(*command).split())
        assert told in text_shown
        assert "no flow can use the rest" in text_shown
        assert "may be gone" not in text_shown
    shop.write(text + "  daily: {epsilon: 2.5, delta: 1e-6}\n")
    told = "The flows' shares can use 143.8% of the budget (epsilon = 3, delta = 1e-06)"
    for command in (["status"], ["policy", "check"]):
        text_shown = " ".join(run_fine(*command).split())
        assert told in text_shown
        assert "it may be gone before a flow has used its share" in text_shown
    known = {p["dataset"]: p for p in run_json("policy", "check")["policies"]}
    assert known["adult"]["shares_reach"] is None
    assert 1.4 < known["cdnow"]["shares_reach"] < 1.5


def test_it_names_the_guarantee_in_one_sentence(shop: Shop) -> None:
    """The sentence is the policy's own, with its assumptions, and stands there once."""
    shop.charge()
    text = run_fine("status", "cdnow")
    assert text.count("differentially private") == 1
    assert "differentially private" not in run_fine("status")
    assert "Every customer (add-or-remove): all releases from dataset 'cdnow'" in text
    assert "(epsilon = 3, delta = 1e-06)-differentially private, if every" in text


def test_spent_and_left_add_up_to_the_budget(shop: Shop) -> None:
    """Amounts are exact decimal text in the theorem's own currency."""
    shop.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    shop.reserve(PureDP(epsilon="0.25"), dataset="adult", flow=None)
    found = account(run_json("status"), "adult", "dataset")
    assert found["budget"] == {"epsilon": "1", "delta": "0"}
    assert found["spent"] == {"epsilon": "0.1", "delta": "0"}
    assert found["reserved"] == {"epsilon": "0", "delta": "0"}
    assert found["forfeited"] == {"epsilon": "0.25", "delta": "0"}
    assert found["left"] == {"epsilon": "0.65", "delta": "0"}
    assert found["used_fraction"] == pytest.approx(0.35)


def test_a_running_step_is_reserved_and_a_dead_one_forfeited(shop: Shop) -> None:
    """What nobody will settle stands apart."""
    ledger = shop.ledger()
    cost = PureDP(epsilon="0.1")
    owner = ledger.owners.mine()
    shop.reserve(cost, dataset="adult", flow=None, owner=owner)
    found = account(run_json("status"), "adult", "dataset")
    assert (found["reserved"]["epsilon"], found["forfeited"]["epsilon"]) == ("0.1", "0")
    ledger.close()
    found = account(run_json("status"), "adult", "dataset")
    assert (found["reserved"]["epsilon"], found["forfeited"]["epsilon"]) == ("0", "0.1")


def test_the_odometer_reads_at_its_delta_and_says_where_it_halts(shop: Shop) -> None:
    """Each flow has a line of its own."""
    shop.charge()
    odometer = account(run_json("status"), "cdnow", "odometer")["odometer"]
    assert (odometer["delta"], odometer["halt_at_epsilon"]) == ("0.000001", "3")
    assert 1.4 < odometer["epsilon"] < 1.5
    row = next(
        line
        for line in run_fine("status", "--details").splitlines()
        if line.startswith("weekly-report  rdp")
    )
    assert row.split() == ["weekly-report", "rdp", "1.478", "1e-6", "3", "open"]


def test_an_undefined_reading_is_told_and_is_null_in_json(shop: Shop) -> None:
    """JSON has no infinity."""
    shop.write(
        CDNOW.replace("gdp", "{theorem: zcdp, delta_loss: 5e-7}").replace(
            "delta: 5e-7, halt_at_epsilon: 3", "delta: 6e-7"
        )
    )
    shop.charge(ApproxDP(epsilon="0.1", delta="1e-9"))
    assert "undefined (1 uncovered)" in run_fine("status", "--details")
    odometer = account(run_json("status"), "cdnow", "odometer")["odometer"]
    assert odometer["epsilon"] is None


def test_runs_left_are_told_with_what_limits_them(shop: Shop) -> None:
    """And until when, as the keys of the releases tell; then none are left."""
    for week in range(13, 18):
        shop.charge(key=f"revenue/1997-W{week}")
    (outlook,) = run_json("status", "cdnow")["datasets"][0]["outlooks"]
    assert outlook == {
        "dataset": "cdnow",
        "flow": "weekly-report",
        "runs_left": 13,
        "counts": "runs",
        "limited_by": "share of weekly-report",
        "per_run": "1 step, mu_squared 0.01",
        "every": "7 days",
        "every_from": "release keys",
        "exhausted_on": "1997-07-28",
        "run": outlook["run"],
        "run_completed": True,
        "older_runs_not_read": False,
    }
    row = flow_row("weekly-report")
    assert row == "weekly-report running 1.692 at 1e-6 13 1997-07-28"
    for _ in range(13):
        shop.charge()
    shop.refuse(STEP)
    (outlook,) = run_json("status", "cdnow")["datasets"][0]["outlooks"]
    assert outlook["runs_left"] == 0


def test_a_mechanism_of_someone_elses_hides_nothing(shop: Shop) -> None:
    """Runs left need tallies only, no class that this process lacks."""

    class Elsewhere(PureDP):
        """A cost that only the flow's own code knows."""

    try:
        shop.charge(Elsewhere(epsilon="0.1"), dataset="adult", flow=None)
    finally:
        _KINDS.pop("Elsewhere")
    (outlook,) = run_json("status", "adult")["datasets"][0]["outlooks"]
    assert outlook["runs_left"] == 9
    run_fine("policy", "check")


def test_an_unknown_dataset_is_an_error_with_a_suggestion(shop: Shop) -> None:
    """A mistyped name does not look like an empty one."""
    result = run("status", "cdnew")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Did you mean 'cdnow'?" in result.stderr


# Files that do not agree with the ledger


def test_an_edited_policy_is_warned_about_and_the_ledger_shown(shop: Shop) -> None:
    """The ledger's copy governs; the guarantee shown is the pinned one."""
    shop.charge()
    shop.write(CDNOW.replace("epsilon: 3,", "epsilon: 4,"))
    result = run("status", "cdnow")
    assert result.exit_code == 0
    assert "epsilon = 3" in result.stdout
    assert "budget.epsilon: ledger 3, file 4" in result.stderr
    assert "undo the edit" in result.stderr
    assert len(run_json("status")["warnings"]) == 1


def test_a_broken_policy_hides_nothing(shop: Shop) -> None:
    """What the ledger knows is shown, whatever the files say."""
    shop.charge()
    shop.write("dataset: [")
    result = run("status")
    assert result.exit_code == 0
    assert "weekly-report" in result.stdout
    assert "cdnow.yaml" in result.stderr


def test_a_divided_dataset_has_no_row_without_a_budget(shop: Shop) -> None:
    """What opens and freezes all of its parts is not a budget that is left."""
    text = (
        "dataset: events\nunit: person\nrelation: add-or-remove\n"
        "budget: {epsilon: 1}\nfilter: basic\npartition: {by: region}\n"
    )
    shop.write(text, "events.yaml")
    (shop.root / "proof").touch()
    charged = ("--partition", "north", "--cost", "Laplace(sensitivity=1, scale=10)")
    how = ("--reason", "before dpflow", "--evidence", "proof")
    run_fine("ledger", "charge", "events", *charged, *how)
    (data,) = run_json("status", "events")["datasets"]
    assert "dataset" not in {each["kind"] for each in data["accounts"]}
    assert "north" in run_fine("status", "events")
    shop.write(
        text.replace("partition: {by: region}", "lifetime: {epsilon: 2}"), "events.yaml"
    )
    run_fine("policy", "apply", "events", "--new-term", "--reason", "undivided")
    newest, before = run_json("status", "events")["datasets"][::-1]
    assert newest["term"] == 2
    assert [each["kind"] for each in newest["accounts"]] == ["dataset"]
    assert "dataset" not in {each["kind"] for each in before["accounts"]}


def test_one_of_several_parts_is_read(shop: Shop) -> None:
    """The status says how many parts there are, and how to read one."""
    shop.write(
        "dataset: events\nunit: person\nrelation: add-or-remove\n"
        "budget: {epsilon: 1}\nfilter: basic\npartition: {by: region}\n",
        "events.yaml",
    )
    for part in ("east", "north", "south"):
        (shop.root / part).write_text(part)
        how = ("--reason", "before dpflow", "--evidence", part)
        charged = ("--partition", part, "--cost", "Laplace(sensitivity=1, scale=10)")
        run_fine("ledger", "charge", "events", *charged, *how)
    text = run_fine("status", "events", "--details")
    assert "3 parts; `--part NAME` reads one" in text
    text = run_fine("status", "events", "--details", "--part", "north")
    assert "partition north" in text
    assert "partition east" not in text
    (data,) = run_json("status", "events", "--part", "north")["datasets"]
    assert data["parts"] == 3
    refused = run("status", "events", "--part", "center")
    assert refused.exit_code == 1
    assert "nothing was charged to a part 'center'" in refused.stderr


# Next runs


MONDAYS = """\
deployments:
  - entrypoint: report.py:report
    schedules: [{cron: "0 6 * * 1", timezone: UTC}]
"""


def test_the_next_runs_have_days_and_what_is_refused_is_one_line(shop: Shop) -> None:
    """Days follow the release keys, and only runs that fit are listed."""
    for week in range(13, 18):
        shop.charge(key=f"revenue/1997-W{week}")
    (data,) = run_json("status", "cdnow", "--next", "3")["datasets"]
    assert [(run["date"], run["number"]) for run in data["runs"]] == [
        ("1997-04-28", 1),
        ("1997-05-05", 2),
        ("1997-05-12", 3),
    ]
    assert data["refused"] == data["undated"] == []
    text = run_fine("status", "cdnow", "--next", "20")
    assert "1997-07-21  weekly-report   13" in text
    refused = "Refused: weekly-report from 1997-07-28 on (share of weekly-report)."
    assert refused in text.splitlines()
    for _ in range(13):
        shop.charge()
    text = run_fine("status", "cdnow", "--next", "20")
    assert text.splitlines() == [
        "cdnow",
        "Refused: weekly-report now (share of weekly-report).",
    ]


def test_a_deployment_says_the_days_before_release_keys_do(shop: Shop) -> None:
    """A flow that has not run has days, too; without a deployment it has none."""
    text = run_fine("status", "cdnow", "--next", "2")
    assert "No day is known of weekly-report: schedule it in prefect.yaml." in text
    (shop.root / "prefect.yaml").write_text(MONDAYS)
    (shop.root / "report.py").write_text(
        "@dp_flow(name='weekly-report')\ndef report(): ...\n"
    )
    for week in (None, *range(13, 18)):
        if week is not None:
            shop.charge(key=f"revenue/1997-W{week}")
        ahead = coming_runs(
            outlooks(shop.ledger(), "cdnow"),
            ["weekly-report"],
            2,
            root=shop.root,
            today=date(2027, 1, 3),
        )
        days = [date(2027, 1, 4), date(2027, 1, 11)]
        assert [day for day, _, _ in ahead.runs] == days
    run_fine("policy", "apply", "cdnow")
    assert len(run_json("status", "--next", "2")["datasets"]) == 2


def test_an_ended_term_has_no_next_runs(shop: Shop) -> None:
    """Each dataset is listed once."""
    shop.write(CDNOW + "lifetime: {epsilon: 9, delta: 1e-5}\n")
    shop.charge()
    run_fine("policy", "apply", "cdnow", "--new-term", "--reason", "a new year")
    assert run_fine("status", "cdnow", "--next", "2").count("cdnow") == 1


def test_a_run_that_never_completed_is_marked(shop: Shop) -> None:
    """It may have been cut short."""
    shop.reserve()
    text = run_fine("status", "cdnow")
    assert "17*" in text
    assert "no run was completed yet" in text
    (outlook,) = run_json("status", "cdnow")["datasets"][0]["outlooks"]
    assert outlook["run_completed"] is False
