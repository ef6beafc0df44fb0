"""`dpflow compare` sets the theorems side by side on one workload."""

from __future__ import annotations

import pytest

from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from tests.cli.support import Shop, run, run_fine, run_json, run_terminal
from tests.cli.support import without_colour as plain
from tests.projects import ROOT

STOPPING = "EarlyStopping(PureDP(epsilon=0.01), stops=(25, 50, 100))"
BUDGET = ("--epsilon", "1", "--delta", "1e-6")


def by_theorem(rows: list[dict]) -> dict[str, dict]:
    """Index the rows of a comparison."""
    return {row["theorem"]: row for row in rows}


def test_the_journal_is_the_workload(shop: Shop) -> None:
    """All that the newest term charged, in order."""
    for _ in range(3):
        shop.charge(Gaussian(sensitivity=100, noise_multiplier=20))
    shop.charge(PureDP(epsilon="0.1"))
    data = run_json("compare", "cdnow")
    assert data["workload"] == [
        {"cost": "Gaussian(sensitivity=100, sigma=2000)", "times": 3, "outcome": None},
        {"cost": "PureDP(epsilon=0.1)", "times": 1, "outcome": None},
    ]
    assert data["budget"] == {"epsilon": "3", "delta": "0.000001"}
    rows = by_theorem(data["filters"])
    assert rows["gaussian"]["steps_admitted"] == 4
    assert 0 < rows["gaussian"]["needs_epsilon"] < 3
    assert rows["basic"]["priced"] is False
    assert len(data["odometers"]) == 9
    text = run_fine("compare", "cdnow")
    assert "cdnow  4 steps of term 1, at (epsilon = 3, delta = 1e-06)" in text
    assert "the policy's" in text
    for kind in ("filters", "odometers"):
        without = sorted(e["theorem"] for e in data[kind] if e["problem"])
        line = f"{len(without)} theorems without a price for it: {', '.join(without)}."
        assert f"{line} --json says why." in " ".join(text.split())
    assert "no price (" not in text
    assert data["stopping"] == []


def test_a_workload_file_is_a_list_of_costs_with_counts(empty: Shop) -> None:
    """Ten tenths fit one, and the eleventh does not."""
    path = empty.root / "work.yaml"
    path.write_text("- {cost: PureDP(epsilon=0.1), times: 11}\n")
    data = run_json("compare", "--workload", "work.yaml", *BUDGET)
    basic = by_theorem(data["filters"])["basic"]
    assert (basic["steps_admitted"], basic["runs"]) == (10, 0)
    assert basic["needs_epsilon"] == pytest.approx(1.1)
    assert "11 steps in work.yaml" in run_fine(
        "compare", "--workload", "work.yaml", *BUDGET
    )


def test_a_workload_file_can_bring_its_budget_and_outcomes(empty: Shop) -> None:
    """What stopped early is charged as the theorem allows."""
    path = empty.root / "work.yaml"
    path.write_text(
        f"budget: {{epsilon: 1, delta: 1e-6}}\nsteps:\n"
        f"  - cost: {STOPPING}\n    outcome: 25\n  - PureDP(epsilon=0.25)\n"
    )
    data = run_json("compare", "--workload", "work.yaml")
    basic = by_theorem(data["filters"])["basic"]
    # One hundredth for each of 25 sub-steps, and a quarter; the worst case is 1.
    assert (basic["steps_admitted"], basic["runs"]) == (2, 1)
    assert basic["needs_epsilon"] == 1
    assert data["stopping"][0]["stop"] == 25


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no list"),
        ("[]", "no list"),
        ("a: b", "no list"),
        ("[[1]]", "item 1"),
        ("[{cost: PureDP(epsilon=1), times: 0}]", "times"),
        ("[{cost: PureDP(epsilon=1), time: 3}]", "item 1"),
        ("[PureDP(epsilon=nan)]", "no cost"),
        ("[{cost: PureDP(epsilon=1), outcome: 3}]", "always costs the same"),
        (f"[{{cost: '{STOPPING}', outcome: 101}}]", "100"),
        ("steps: [PureDP(epsilon=1)]\nbudget: {epsilon: -1}", "-1"),
        ("[!!python/object:os.system {}]", "item 1"),
        ("[a: [", "no YAML"),
    ],
)
def test_a_bad_workload_file_is_refused(empty: Shop, text: str, told: str) -> None:
    """With the place or the value, and no trace."""
    (empty.root / "work.yaml").write_text(text)
    result = run("compare", "--workload", "work.yaml", *BUDGET)
    assert (result.exit_code, result.stdout) == (1, "")
    assert told in result.stderr.replace("\n", " ")


def test_early_stopping_is_asked_of_filters_and_output_dp(empty: Shop) -> None:
    """Section 5.3 of Hartmann et al.: which leaves more for the rest."""
    arguments = ("--cost", STOPPING, "--stop", "50", *BUDGET)
    (found,) = run_json("compare", *arguments)["stopping"]
    assert (found["stop"], found["rest"]) == (50, "PureDP(epsilon=0.01)")
    counts = [each["rest"] for each in found["ways"] if not each["problem"]]
    assert counts == sorted(counts, reverse=True)
    ways = {(each["theorem"], each["accountant"]): each for each in found["ways"]}
    assert ways["output", "basic"]["rest"] == 50
    assert ways["renyi", ""]["rest"] > ways["output", "kov"]["rest"] > 50
    text = run_fine("compare", *arguments)
    assert "After 50 of at most 100 sub-steps, filter" in text
    assert "The best of output DP, output DP by" in text


def test_without_a_stop_the_last_one_is_taken(empty: Shop) -> None:
    """The worst case."""
    (found,) = run_json("compare", "--cost", STOPPING, *BUDGET)["stopping"]
    assert found["stop"] == 100


def test_the_rest_can_be_said(empty: Shop) -> None:
    """In a cost of one's own."""
    arguments = ("--cost", STOPPING, "--stop", "50", "--rest", "PureDP(epsilon=0.1)")
    (found,) = run_json("compare", *arguments, *BUDGET)["stopping"]
    ways = {(each["theorem"], each["accountant"]): each for each in found["ways"]}
    assert ways["basic", ""]["rest"] == 5


def test_a_stop_in_the_journal_is_used(shop: Shop) -> None:
    """What it reported when it settled."""
    cost = EarlyStopping(PureDP(epsilon="0.01"), stops=(25, 50))
    reservation = shop.reserve(cost, dataset="adult", flow=None)
    ledger = shop.ledger()
    ledger.settle(reservation, reported=25)
    ledger.close()
    data = run_json("compare", "adult")
    assert data["workload"][0]["outcome"] == 25
    assert data["stopping"][0]["stop"] == 25


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--workload", "a", "--cost", "b"), 2, "not both"),
        (("cdnow",), 1, "no step of dataset"),
        ((), 1, "adult, cdnow"),
        (("nowhere",), 1, "nowhere"),
        (("--workload", "nowhere.yaml", *BUDGET), 1, "nowhere.yaml"),
        (("--cost", "PureDP(epsilon=1)", "--stop", "3", *BUDGET), 1, "EarlyStopping"),
        (("--cost", STOPPING, "--stop", "0", *BUDGET), 1, "0"),
        (("cdnow", "--cost", STOPPING, "--delta", "1e-6"), 1, "--epsilon"),
        (("--cost", STOPPING, "--epsilon", "nan"), 1, "nan"),
    ],
)
def test_wrong_questions_get_clear_answers(
    shop: Shop, arguments: tuple[str, ...], code: int, told: str
) -> None:
    """Naming what was wrong."""
    result = run("compare", *arguments)
    assert result.exit_code == code
    assert told in plain(result.stderr).replace("\n", " ")


def test_without_a_ledger_a_workload_is_asked_for(empty: Shop) -> None:
    """There is no journal to take."""
    result = run("compare")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--workload" in result.stderr


def test_it_fits_eighty_columns(empty: Shop) -> None:
    """What has no price is named below the tables, and its reasons left to --json."""
    text = run_terminal("compare", "--cost", STOPPING, *BUDGET, columns=80)
    lines = [plain(line) for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert not any("for each person" in line for line in lines)
    assert sum("individual" in line for line in lines) >= 2


def test_the_shortest_sequences_are_table_1() -> None:
    """In the terminal, for programs, and on the page of the derivation."""
    data = run_json("compare", "--shortest")
    rows = {name: list(map(str, row)) for name, row in data["steps"].items()}
    assert rows["0.1"] == ["9", "12", "16", "19", "23", "26", "30", "34"]
    assert rows["5"] == ["1029", "1372", "1715", "2058", "2401", "2744", "3086", "3429"]
    text = run_fine("compare", "--shortest")
    page = (ROOT / "docs/derivations/fixed.md").read_text("utf-8")
    assert f"| epsilon | {' | '.join(data['deltas'])} |" in page
    for epsilon, row in rows.items():
        assert f"| {epsilon} | {' | '.join(row)} |" in page
        assert [epsilon, *row] in [line.split() for line in text.splitlines()]
