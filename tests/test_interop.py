"""Declared costs are compared with what libraries report."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dp_accounting
import opendp.prelude as dp
import pytest
from diffprivlib import BudgetAccountant
from hypothesis import given
from hypothesis import strategies as st

import dpflow
from dpflow import (
    Composed,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    PureDP,
    guarded,
    interop,
    release,
    spend,
)
from dpflow.exceptions import BudgetRefused, DPStepFailed, PublicError, ReleaseError
from dpflow.interop import check_spent, from_opendp, tool_error
from tests.projects import NOISY, POLICY, ROOT, TENTH, kinds, make_project, outcome
from tests.tables import read_tables

NOISE = Gaussian(sensitivity=1, sigma=20)
ANOTHER = Laplace(sensitivity=1, scale=9)
STEP = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier="1.1")
EVENT = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(20), 4)
ROWS = read_tables(__file__)
#: Names in the expressions of the rows, with those of this module.
NAMES = {name: getattr(dpflow, name) for name in dpflow.__all__} | vars(interop)
NAMES |= {"Fields": SimpleNamespace, "Fraction": Fraction}


def value_of(text: str, **names: Any) -> Any:
    """Return the value of an expression."""
    return eval(text, {**NAMES, **globals(), **names})


def laplace() -> Any:
    """Return a measurement of OpenDP."""
    dp.enable_features("contrib")
    space = dp.atom_domain(T=int), dp.absolute_distance(T=int)
    return dp.m.make_laplace(*space, scale=4.0)


def noise_of(spec: Any) -> Gaussian:
    """Return the cost of a mechanism spec of PipelineDP."""
    return Gaussian(sensitivity=1, sigma=spec.noise_standard_deviation)


def accountant() -> BudgetAccountant:
    """Return the accountant of diffprivlib after two models."""
    result = BudgetAccountant(epsilon=1)
    for _ in range(2):
        result.spend(0.25, 0)
    return result


@pytest.mark.parametrize(("declared", "spent"), ROWS["equal"])
def test_equal_costs_are_equal_in_every_form(declared, spent):
    """Without a policy, by their parts; a smaller number of them is enough."""
    check_spent(value_of(declared), value_of(spent))


def test_the_order_of_parts_does_not_count():
    """A sum is a sum."""
    for order in permutations([NOISE, ANOTHER, STEP]):
        check_spent(Composed(NOISE, ANOTHER, STEP), Composed(*order))


@given(st.lists(st.sampled_from([NOISE, ANOTHER, STEP]), min_size=2, max_size=6))
def test_a_part_that_is_not_declared_is_noticed(parts):
    """Whatever the others are; outside of a body there is no filter to ask."""
    with pytest.raises(ReleaseError):
        check_spent(Composed(*parts[1:]), Composed(*parts))


def spend_in_a_body(declared: Any, spent: Any, **more: Any) -> None:
    """Compare in a step of the declared cost."""
    with spend(dataset="shop", cost=declared, step="count", noise="own"):
        check_spent(declared, spent, **more)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes a project under a filter."""

    def make(rule: str, relation: str = "add-or-remove") -> None:
        text = POLICY.replace("epsilon: 1", 'epsilon: 30, delta: "1e-5"')
        text = text.replace("basic", rule).replace("add-or-remove", relation)
        make_project(tmp_path, monkeypatch, text)

    return make


@pytest.mark.parametrize(("rule", "declared", "smaller", "larger"), ROWS["other"])
def test_other_costs_are_compared_by_their_price(
    project, rule, declared, smaller, larger
):
    """A step that spent more fails, charged in full, and does not say how much."""
    project(rule)
    declared = value_of(declared)
    spend_in_a_body(declared, value_of(smaller))
    assert outcome()["outcome"] == "completed"
    with pytest.raises(PublicError, match="The library spent another cost") as error:
        spend_in_a_body(declared, value_of(larger))
    assert repr(declared) in error.value.message
    assert "1.2" not in error.value.message
    assert kinds()[-2:] == ["reserve", "settle"]
    assert outcome()["outcome"] == "failed"


@pytest.mark.parametrize(("fields", "before", "declared"), ROWS["charged"])
def test_prices_are_those_of_each_charged_account(
    tmp_path, monkeypatch, fields, before, declared
):
    """As it was when the step was charged, and an odometer's as well."""
    text = POLICY.replace("epsilon: 1", 'epsilon: 1, delta: "1e-6"')
    text = re.sub("filter: .*", fields, text)
    make_project(tmp_path, monkeypatch, text)
    for cost in map(value_of, before):
        spend_in_a_body(cost, cost)
    declared = value_of(declared)
    step: Any = {"dataset": "shop", "step": "count", "noise": "own", "flow": "f"}
    with (
        pytest.raises(PublicError, match="The library spent another cost"),
        spend(cost=declared, **step),
    ):
        check_spent(declared, (0.1, 0))


def test_a_cost_of_another_relation_is_no_answer(project):
    """Its price is for other neighbours."""
    project("basic", "replace-one")
    declared = PureDP(epsilon="0.5")
    spend_in_a_body(declared, PureDP(epsilon="0.4", relation="replace-one"))
    with pytest.raises(PublicError):
        spend_in_a_body(declared, PureDP(epsilon="0.4", relation="add-or-remove"))


def test_the_map_of_opendp_is_evaluated(project):
    """At the distance of neighbours, or as a query of a Context has it."""
    project("basic")
    measurement = laplace()
    declared = from_opendp(measurement, d_in=1)
    spend_in_a_body(declared, measurement, d_in=1)
    with pytest.raises(PublicError):
        spend_in_a_body(declared, measurement, d_in=2)
    with pytest.raises(PublicError):
        spend_in_a_body(declared, measurement)
    context = dp.Context.compositor(
        data=[1, 2, 3],
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(epsilon=1.0),
        split_evenly_over=1,
    )
    query = context.query().count().laplace()
    spend_in_a_body(from_opendp(query), query)


LINES = {
    cells[1].strip(): re.findall("`(check_spent.*?)`", cells[3])
    for line in (ROOT / "docs/guides/libraries.md").read_text("utf-8").splitlines()
    if len(cells := line.split("|")) == 7 and "check_spent(" in cells[3]
}


def test_each_library_has_its_line():
    """In the table of the guide."""
    assert list(LINES) == list(ROWS["reports"])


@pytest.mark.parametrize("library", ROWS["reports"])
def test_the_line_of_each_library_compares(project, library):
    """As the guide has it, in a body: twice the declared noise fails."""
    project("basic")
    declared, names = ROWS["reports"][library]
    values = {name: value_of(text) for name, text in names.items()}
    values["COST"] = value_of(declared)
    (line,) = LINES[library]
    with spend(dataset="shop", cost=PureDP(epsilon="0.01"), step="s", noise="own"):
        value_of(line, **values)
        values["COST"] = values["COST"].noisier(2)
        with pytest.raises(PublicError):
            value_of(line, **values)


class ToolError(Exception):
    """The error of a server of tools, whose text the agent sees."""


async def test_a_tool_answers_a_refusal_with_what_remains(project):
    """Sync and async; replays are free, and all other errors stay as they are."""
    project("basic")

    @tool_error(ToolError)
    @guarded(dataset="shop", cost=NOISY.but(scale="0.05"), release_key="{week}")
    def buyers(week: str) -> float:
        """Count the buyers of a week."""
        return release(len(week))

    @tool_error(ToolError)
    @guarded(dataset="shop", cost=NOISY.but(scale="0.05"), release_key="later/{week}")
    async def buyers_later(week: str) -> float:
        return release(len(week))

    @tool_error(ToolError)
    @guarded(dataset="shop", cost=TENTH)
    def fail() -> float:
        raise ValueError

    assert [*inspect.signature(buyers).parameters] == ["week"]
    assert buyers.__doc__ == "Count the buyers of a week."
    assert inspect.iscoroutinefunction(buyers_later)
    with pytest.raises(DPStepFailed):
        fail()
    assert buyers("1") == buyers("1")
    with pytest.raises(ToolError, match=r"Remaining: epsilon 9\.9, delta") as error:
        buyers("2")
    assert error.value.__cause__ is None
    with pytest.raises(ToolError, match="Remaining: epsilon"):
        await buyers_later("1")


def test_what_remains_is_said_in_any_case():
    """Also where the text of the refusal lacks it."""
    refusal = BudgetRefused("No.", left={"mu_squared": "0.1", "delta": "0"})

    @tool_error(ToolError)
    def refuse() -> None:
        raise refusal

    with pytest.raises(
        ToolError, match=r"^No\. Remaining: mu_squared 0\.1, delta 0\.$"
    ):
        refuse()
