"""A population pays for all its datasets: who is in two of them is seen twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    DpflowError,
    PolicyError,
)
from dpflow.ledger.decision.office import Freeze
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Replayed
from dpflow.ledger.views import accounts
from dpflow.policy import load_policies, parse_policy
from tests.ledger.support import granted, request

# ---- populations

PEOPLE = """
population: people
unit: customer
relation: add-or-remove
budget: {epsilon: 1}
filter: basic
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with two datasets of one population."""
    found = tmp_path / "policies"
    found.mkdir()
    (found / "people.yaml").write_text(PEOPLE)
    for name in ("shop", "web"):
        text = PEOPLE.replace("population: people", f"dataset: {name}")
        (found / f"{name}.yaml").write_text(f"{text}population: people\n")
    return found


def step_on(folder: Path, *names: str) -> dict[str, Any]:
    """Return what a request on some datasets names."""
    policies = load_policies(folder)
    used = [policies[name] for name in names]
    return {"policies": used, "populations": policies.populations_of(used)}


def on(ledger: Ledger, folder: Path, *names: str, **fields: Any) -> dict[str, str]:
    """Run a step on some datasets, and return what each was charged by now."""
    given = {**step_on(folder, *names), **fields}
    ledger.settle(granted(ledger, "0.3", **given))
    return {v.dataset: v.spent["epsilon"] for v in accounts(ledger) if v.charged}


def test_a_population_pays_for_all_its_datasets(ledger: Ledger, folder: Path) -> None:
    """Each has room of its own, and together they have no more than the cap."""
    for name in ("shop", "web", "shop"):
        totals = on(ledger, folder, name)
    with pytest.raises(BudgetExhausted, match="population 'people'"):
        on(ledger, folder, "web")
    assert totals == {"shop": "0.6", "web": "0.3", "population/people": "0.9"}
    with pytest.raises(PolicyError, match="begins with"):
        parse_policy(PEOPLE.replace("population: people", "dataset: population/a"))


def test_a_join_sees_a_person_in_both_datasets(ledger: Ledger, folder: Path) -> None:
    """It costs the population a group of two."""
    totals = on(ledger, folder, "shop", "web")
    assert totals == {"shop": "0.3", "web": "0.3", "population/people": "0.6"}


@pytest.mark.parametrize(
    ("by", "unit", "population"),
    [("week", "customer-week", "0.6"), ("region", "customer", "0.3")],
    ids=["time", "people"],
)
def test_a_population_sees_a_person_in_every_week(
    ledger: Ledger, folder: Path, by: str, unit: str, population: str
) -> None:
    """Two weeks of one person are a group of two; of two regions a person is in one."""
    shop = folder / "shop.yaml"
    text = shop.read_text().replace("unit: customer", f"unit: {unit}")
    shop.write_text(f"{text}partition: {{by: {by}}}\n")
    totals = on(ledger, folder, "shop", partitions=("2026-W05", "2026-W06"))
    assert totals["population/people"] == population


def test_a_frozen_population_answers_no_replay(ledger: Ledger, folder: Path) -> None:
    """Nothing of its datasets goes out, be it free; others go on."""
    step = step_on(folder, "shop")
    ledger.settle(granted(ledger, "0.1", key="week/1", **step), value="1")
    ledger.ask(Freeze(book="population/people", reason="wrong sigma"))
    for key in ("week/1", "week/2"):
        with pytest.raises(BudgetRefused, match="Population 'people' is frozen by"):
            granted(ledger, "0.1", key=key, **step)
    ledger.ask(Freeze(book="population/people", reason="it was right", unfreeze=True))
    assert isinstance(
        ledger.reserve(request(ledger, "0.1", key="week/1", **step)), Replayed
    )


def test_a_request_cannot_leave_the_population_out(
    ledger: Ledger, folder: Path
) -> None:
    """Nor bring one that it does not belong to."""
    policies = load_policies(folder)
    with pytest.raises(DpflowError, match="belong to the populations"):
        granted(ledger, policies=(policies["shop"],))
    with pytest.raises(DpflowError, match="belong to the populations"):
        granted(ledger, populations=(policies["population/people"],))


def test_a_member_must_fit_its_population(folder: Path) -> None:
    """Or the cap would protect somebody else."""
    shop = folder / "shop.yaml"
    text = shop.read_text()
    for old, new, message in (
        ("population: people", "population: persons", "no file of the population"),
        ("unit: customer", "unit: household", "the same unit and relation"),
        ("add-or-remove", "replace-one", "the same unit and relation"),
    ):
        shop.write_text(text.replace(old, new))
        with pytest.raises(PolicyError, match=message):
            load_policies(folder)
