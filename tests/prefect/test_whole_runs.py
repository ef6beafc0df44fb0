"""No flow run begins to pay for a report that it cannot finish, on a real server."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from prefect.task_runners import ProcessPoolTaskRunner

from dpflow import BudgetExhausted, PureDP, dp_flow, dp_task
from dpflow.guard.project import current_project
from dpflow.ledger.views import refusals
from tests.projects import POLICY, spent
from tests.tables import read_tables

SEQUENCES = read_tables(__file__)
RAN: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()


def policy_of(epsilon: str, more: str = "") -> str:
    """Return a policy with a budget."""
    text = POLICY.replace("{epsilon: 1}", f'{{epsilon: "{epsilon}"}}')
    return f'{text}data_version: "1"\n{more}'


def make_step(name: str, epsilon: str = "0.3", key: str | None = None):
    """Make a step that stands for a mechanism of its own."""

    def body(week: int) -> int:
        RAN.append((name, week))
        return week

    return dp_task(
        dataset="shop",
        cost=PureDP(epsilon=epsilon),
        name=name,
        release_key=key and f"{name}/{key}",
        ignore=("name",) if key else (),
    )(body)


def make_report(*steps, **options):
    """Make a flow that calls steps for a week, and fails where a step is an error."""

    @dp_flow(name="report", **options)
    def report(week: int) -> str:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            step(week)
        return "whole"

    return report


def test_a_report_that_cannot_be_finished_is_not_begun(project):
    """Its first step is refused, in the journal too, and nothing is charged or run."""
    steps = [make_step(name, "0.2") for name in ("sales", "visits", "returns")]
    report = make_report(*steps)
    assert report(1) == "whole"
    state = report(2, return_state=True)
    assert state.name == "BudgetExhausted"
    assert "no whole run fits" in state.message
    assert "partial=True" in state.message
    assert Decimal(spent()) == Decimal("0.6")
    assert [week for _, week in RAN] == [1, 1, 1]
    (refusal,) = refusals(current_project().ledger)
    assert refusal.body["whole_run"]["epsilon"] == "0.6"
    assert refusal.body["left"]["epsilon"] == "0.4"
    assert (refusal.body["step"], refusal.is_exhausted) == ("sales", True)
    # It costs as much as before: the next run is asked again, and a part runs.
    with pytest.raises(BudgetExhausted):
        report(3)
    assert make_report(make_step("small", "0.1"), partial=True)(4) == "whole"


def test_a_process_of_a_task_runner_asks_as_well(project):
    """The flow's function runs elsewhere, and its first charge is made here."""
    steps = [make_step(name, "0.2") for name in ("sales", "visits", "returns")]
    assert make_report(*steps)(1) == "whole"
    runner: Any = ProcessPoolTaskRunner(max_workers=1)

    @dp_flow(name="report", task_runner=runner)
    def report(week: int) -> None:
        for step in steps:
            step.submit(week).result()

    state = report(2, return_state=True)
    assert state.name == "BudgetExhausted"
    assert Decimal(spent()) == Decimal("0.6")
    assert "no whole run fits" in state.message


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_run_is_held_to_whole_runs_before_it(make_project, name):
    """The reports of a sequence, one after the other: how they end, and the sum."""
    sequence = SEQUENCES[name]
    make_project(policy_of(sequence["budget"], sequence.get("policy", "")))
    for week, run in enumerate(sequence["reports"]):
        steps = [make_step(*step) for step in run["steps"].items()]
        report = make_report(*steps, partial=sequence.get("partial", False))
        assert report(week, return_state=True).name == run["ends"]
        assert Decimal(spent()) == Decimal(run["spent"])


def test_a_run_that_was_cut_can_be_repaired(make_project):
    """Its replays count: only the rest of a whole run must fit."""
    make_project(policy_of("1.8"))
    a, b, c = (make_step(name, key="{week}") for name in "abc")
    whole = make_report(a, b, c)
    assert whole(1) == "whole"
    with pytest.raises(OSError, match="a bug"):
        make_report(a, b, OSError("a bug"))(2)
    assert Decimal(spent()) == Decimal("1.5")
    assert whole(2) == "whole"
    assert Decimal(spent()) == Decimal("1.8")
    assert whole(3, return_state=True).name == "BudgetExhausted"
    assert RAN.count(("a", 2)) == 1


def test_a_step_of_that_name_elsewhere_changes_nothing(project):
    """Each flow of a process may have a step `visits`, with noise of its own."""
    report = make_report(make_step("sales"), make_step("visits"))
    assert report(1) == "whole"

    @dp_task(dataset="shop", cost=PureDP(epsilon="0.01"), name="visits")
    def visits() -> None:
        """Stand for a step of another report."""

    state = report(2, return_state=True)
    assert "no whole run fits" in state.message
    assert Decimal(spent()) == Decimal("0.6")


def test_parts_of_a_divided_dataset_are_not_asked_in_a_new_term(make_project):
    """Their common account has no budget; its units of before hold in a new term."""
    parts = 'partition: {by: store}\nlifetime: {epsilon: "1"}\n'
    make_project(policy_of("0.5", parts))

    def count(store: str) -> int:
        return len(store)

    step = dp_task(
        dataset="shop", cost=PureDP(epsilon="0.4"), partitions=["{store}"], noise="own"
    )(count)

    @dp_flow(name="report")
    def report(term: int) -> None:
        for store in ("north", "south"):
            step(f"{store}-{term}")

    report(1)
    ledger, policies = current_project().ledger, current_project().policies
    ledger.apply(policies["shop"], new_term=True, reason="a new year")
    report(2)
