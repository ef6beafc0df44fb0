"""A step over two datasets in a flow: both accounts are charged, or neither."""

from __future__ import annotations

from prefect import task

from dpflow import PureDP, dp_flow, dp_task
from dpflow.guard.project import current_project
from tests.prefect.conftest import POLICY
from tests.prefect.support import charges, kinds, spent

THIRD = PureDP(epsilon="0.3")


@dp_task(dataset=("shop", "web"), cost=THIRD)
def joined(week: int) -> int:
    """Stand for a step that reads two datasets."""
    return week


@dp_task(dataset="web", cost=THIRD)
def alone(week: int) -> int:
    """Stand for a step that reads one of them."""
    return week


@task
def publish(values):
    """Stand for what must not run after a refusal."""
    PUBLISHED.append(values)


PUBLISHED: list[object] = []


def test_a_join_charges_both_datasets_or_neither(make_project):
    """The dataset with less left refuses; the other one keeps its budget."""
    folder = make_project()
    web = POLICY.replace("dataset: shop", "dataset: web")
    (folder / "policies" / "web.yaml").write_text(web, "utf-8")

    @dp_flow(name="report")
    def report(weeks: int):
        alone(0)
        publish(joined.map(range(weeks)))

    PUBLISHED.clear()
    state = report(4, return_state=True)
    assert state.name == "BudgetExhausted"
    assert PUBLISHED == []
    project = current_project()
    assert (charges(project, "shop"), charges(project, "web")) == (2, 3)
    assert spent(project, "shop")["epsilon"] == "0.6"
    assert spent(project, "web")["epsilon"] == "0.9"
    assert kinds(project, "web").count("refuse") == 2
    assert state.result(raise_on_failure=False).dataset == "web"
