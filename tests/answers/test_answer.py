"""Answers from releases, from the outside: the command, and each condition."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dpflow
from dpflow import Clip, Contributions, Gaussian, Laplace, Refined, guarded, release
from dpflow.exceptions import ConfigurationError, ReleaseError
from dpflow.testing import ledger_for_tests
from tests.cli.support import run, run_fine, run_json

pytestmark = pytest.mark.quick

SHOP = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: auto
"""
#: Private visits of five weeks and two regions.
VISITS = {f"2026-W0{n}": 100 * n + 0.125 for n in range(1, 6)}
NOISE = Gaussian(sensitivity=1, sigma=20)
VISITED = {"dataset": "shop", "measures": "visits"}


@pytest.fixture
def ledger() -> Iterator[Any]:
    """Make a ledger without noise."""
    with ledger_for_tests() as made:
        made.use(SHOP)
        made.silence_noise()
        yield made


def visits(cost: Any = NOISE, **declared: Any) -> Callable[..., float]:
    """Return a step that releases the visits of a week."""
    given = {"cost": cost, "name": "visits", "release_key": "visits/{week}"}

    @guarded(**{**VISITED, **given, **declared})
    def step(week: str) -> float:
        return release(VISITS[week])

    return step


def release_all(step: Callable[..., float], *weeks: str) -> None:
    """Run a step for some weeks, by default for all."""
    for week in weeks or VISITS:
        step(week)


def released(name: str, value: Any, measures: str = "", **options: Any) -> None:
    """Release a value for the first week, by default under a measure of its own."""
    length = len(value) if isinstance(value, list) else None
    key = {"release_key": name + "/{week}", "ignore": ("value", "options")}
    given = {"name": name, "measures": measures or name, "length": length, **key}

    @guarded(dataset="shop", cost=NOISE, **given)
    def step(week: str) -> Any:
        return release(value, **options)

    step("2026-W01")


def asked(**question: Any) -> Any:
    """Return an answer about visits."""
    return dpflow.answer("visits", **question)


def refused(**question: Any) -> str:
    """Return the message with which an answer is refused."""
    with pytest.raises(ReleaseError) as error:
        asked(**question)
    return error.value.message


def test_the_command_derives_a_sum_and_says_what_a_new_release_costs(ledger):
    """At no cost: the budget is as before; JSON holds the same record."""
    release_all(visits())
    before = run_json("status", "shop")
    question = ("answer", "visits", "--from", "2026-W02", "--to", "2026-W04")
    text = run_fine(*question)
    assert "900.375, 832.479 to 968.271 at 95 %" in text
    anew = "Gaussian(sensitivity=3, sigma=34.64)"
    assert f"A new release of a sum with an equal interval is {anew}" in text
    assert re.search(r"The remaining budget of shop pays for \d+ of these", text)
    data = run_json(*question)
    assert data["value"] == 900.375
    assert data["terms"] == {f"visits/2026-W0{n}": [1, 0] for n in (4, 3, 2)}
    assert data["anew"] == {anew: "shop"}
    assert run_json("status", "shop") == before
    (newest, *_) = run_json("releases", "list", "shop")["releases"]
    measures = newest["facts"]["measures"]
    assert newest["facts"]["as_drawn"] is True
    assert re.fullmatch("[0-9a-f]{64}", measures.pop("bounds"))
    assert measures | {"name": "visits", "fields": {"week": "2026-W05"}} == measures
    for wrong in (["--where", "region"], ["--from", "2026-W04", "--to", "2026-W02"]):
        assert run("answer", "visits", *wrong).exit_code in (1, 2)


def test_differences_shares_and_ratios(ledger):
    """A range, a measure or both are subtracted and divided by."""
    release_all(visits())
    release_all(visits(measures="orders", release_key="orders/{week}"))
    first = {"start": "2026-W01", "end": "2026-W02"}
    assert asked(**first, minus="2026-W04..2026-W05").value == -600
    assert asked(**first, over="2026-W01..2026-W05").value == 300.25 / 1500.625
    assert asked(**first, over="orders").value == 1
    assert asked(**first, over="orders 2026-W03..2026-W03").value > 1
    assert asked(**first, minus="2026-W01..2026-W02").interval == (0, 0)
    share = asked(start="2026-W01", over="2026-W01..2026-W01")
    assert share.interval[0] <= 1 <= share.interval[1] < 1 + 1e-12
    with pytest.raises(ConfigurationError, match="no range of periods"):
        asked(start="2026-W01", end="2026-02")
    with pytest.raises(ConfigurationError, match="no range of periods"):
        asked(end="2026-W01")


def test_parts_must_cover_the_range(ledger):
    """A week without a release is named; so are the measures that there are."""
    release_all(visits(), "2026-W01", "2026-W03")
    assert "no usable release for 2026-W02" in refused(start="2026-W01", end="2026-W03")
    assert "name some by --from" in refused()
    with pytest.raises(ReleaseError, match="Measures here: visits"):
        dpflow.answer("customers", start="2026-W01")


def test_a_key_of_two_periods_and_a_list_are_no_part(ledger):
    """The first names no one part, and the second is no one number."""

    @guarded(**VISITED, cost=NOISE, release_key="two/{day}/{week}")
    def two(day: str, week: str) -> float:
        return release(VISITS[week])

    two("2026-01-02", "2026-W01")
    released("list", [VISITS["2026-W01"], 1.5], measures="visits")
    message = refused(start="2026-W01")
    assert "two/2026-01-02/2026-W01 has several periods in its key" in message
    assert "list/2026-W01 is a list" in message


def test_undeclared_steps_are_refused(ledger):
    """Customers of a quarter are not the sum of weekly customers: no step says so."""
    release_all(visits(measures=None))
    assert "Measures here: none" in refused(start="2026-W01", end="2026-W03")


def test_a_release_is_used_once_and_the_least_noise_is_chosen(ledger, monkeypatch):
    """Two draws of a week are averaged by noise, and a replay adds nothing."""
    less = Gaussian(sensitivity=1, sigma=10)
    coarse, fine = visits(), visits(less, release_key="fine/{week}")
    for step in (coarse, fine, coarse, fine):
        step("2026-W01")
    result = asked(start="2026-W01")
    assert result.terms == {"fine/2026-W01": (0.8, 0), "visits/2026-W01": (0.2, 0)}
    monkeypatch.setitem(VISITS, "2026-W01", 1e6 + 0.125)
    visits(less, release_key="far/{week}")("2026-W01")
    terms = asked(start="2026-W01").terms
    far, near, old = (terms[f"{key}/2026-W01"][0] for key in ("far", "fine", "visits"))
    assert far == near == 4 * old


@pytest.mark.parametrize("way", ["withdrawn", "changed", "mutated", "abridged", "own"])
def test_releases_without_the_declared_noise_are_not_used(ledger, way):
    """A withdrawn or changed value names its reason; an unchanged one is used."""
    release_all(visits())
    assert asked(start="2026-W01", end="2026-W05").value == 1500.625
    if way == "withdrawn":
        run_fine("releases", "withdraw", "visits/2026-W03", "--reason", "a test")
        assert "visits/2026-W03 is withdrawn" in refused(start="2026-W03")
        return
    if way == "own":
        with pytest.raises(ConfigurationError, match="noise that release"):
            visits(noise="own")("2026-W01")
        return
    given = {"release_key": "other/{week}", "measures": "other", "ignore": ("size",)}
    # The repr of a long array leaves out its middle.
    size = {"changed": None, "mutated": 1, "abridged": 1500}[way]

    @guarded(dataset="shop", cost=NOISE, **given, length=size)
    def other(week: str) -> Any:
        if size is None:
            return release(VISITS[week]) * 2
        noisy = release([1.5] if size == 1 else np.full(size, 1.5))
        noisy[len(noisy) // 2] = 0.0
        return noisy

    with pytest.warns(RuntimeWarning, match="not the object that release"):
        other("2026-W01")
    with pytest.raises(ReleaseError, match="is not the number that was drawn"):
        dpflow.answer("other", start="2026-W01")


def test_a_measure_needs_a_key_one_dataset_and_noise_with_an_interval(ledger):
    """Each is refused before anything is charged."""
    for declared in (
        {"release_key": None},
        {"dataset": ("shop", "other")},
        {"cost": dpflow.PureDP(epsilon="0.1")},
    ):
        with pytest.raises(dpflow.DpflowError):
            visits(**declared)("2026-W01")
    assert ledger.charges() == []
    with pytest.raises(ConfigurationError, match="measures= takes a text"):
        visits(measures="")


def limited(**bounds: Any) -> Callable[..., float]:
    """Return a step that names its bounds."""
    customers = {"unit": ("customer",), "relation": "add-or-remove"}
    limits = Contributions(**customers, **bounds)
    given = {"release_key": "visits/{week}", "name": "v", "ignore": ("limits",)}

    @guarded(**VISITED, cost=NOISE, **given)
    def step(week: str) -> float:
        return release(VISITS[week] * limits.max_rows / limits.max_rows)

    return step


@pytest.mark.parametrize(
    "condition", ["data_version", "clip", "bounds", "relation", "control"]
)
def test_terms_share_version_clip_bounds_and_relation(ledger, condition):
    """Each condition alone refuses the sum, and without a difference it is given."""
    pairs = {
        "data_version": (visits(), visits(data_version="2")),
        "clip": (visits(), visits(Gaussian(sensitivity=2, sigma=40))),
        "bounds": (limited(max_rows=2), limited(max_rows=1, clip={"a": Clip(0, 2)})),
    }
    one, other = pairs.get(condition, (visits(), visits()))
    release_all(one, "2026-W01", "2026-W02")
    if condition == "relation":
        text = SHOP.replace("add-or-remove", "replace-one")
        ledger.use(text + "lifetime: {epsilon: 9, delta: 1e-5}\n")
        run_fine("policy", "apply", "shop", "--new-term", "--reason", "a test")
    other("2026-W03")
    if condition == "control":
        assert asked(start="2026-W01", end="2026-W03").value == 600.375
        return
    names = dict.fromkeys(("bounds", "relation"), "bounds, unit or relation")
    message = refused(start="2026-W01", end="2026-W03")
    assert f"differ in ['{names.get(condition, condition)}']" in message
    assert asked(start="2026-W01", end="2026-W02").value == 300.25


def test_other_fields_of_the_key_are_chosen(ledger):
    """Regions are not added up silently."""

    @guarded(**VISITED, cost=NOISE, release_key="visits/{region}/{week}")
    def step(region: str, week: str) -> float:
        return release(VISITS[week])

    for where in itertools.product(("north", "south"), ("2026-W01", "2026-W02")):
        step(*where)
    assert "differ in ['region']" in refused(start="2026-W01", end="2026-W02")
    north = ("--where", "region=north")
    chosen = run_json("answer", "visits", "--from", "2026-W01", *north)
    assert list(chosen["terms"]) == ["visits/north/2026-W01"]
    for typo in ({"regoin": "north"}, {"region": "nroth"}):
        text = refused(start="2026-W01", where=typo)
        assert "Fields of the keys here: region=north, region=south." in text


def test_partitions_are_the_periods(ledger):
    """A release of three weeks and those of single ones; another clip is refused."""
    by_week = SHOP.replace("customer", "customer-week").replace("auto", "gdp")
    ledger.use(f"{by_week}partition: {{by: week}}\n")
    release_all(visits(partitions=("{week}",)))

    def quarter(bound: int, key: str) -> None:
        cost = Gaussian(sensitivity=bound, sigma=30)
        given = {"cost": cost, "release_key": key + "/{first}..{last}"}

        @guarded(**VISITED, **given, partitions=("{first}", "2026-W02", "{last}"))
        def step(first: str, last: str) -> float:
            return release(601.5)

        step("2026-W01", "2026-W03")

    assert asked(start="2026-W01", end="2026-W02").value == 300.25
    quarter(1, "sum")
    result = asked(start="2026-W01", end="2026-W02")
    assert {"sum/2026-W01..2026-W03", "visits/2026-W03"} < result.terms.keys()
    quarter(2, "wide")
    assert "differ in ['clip']" in refused(start="2026-W01", end="2026-W02")


def test_refined_and_laplace_noise_have_their_intervals(ledger):
    """Refined draws are wider, and the answer says so; a ratio of them is refused."""
    spread = Refined(Gaussian(sensitivity=1, sigma=10), coarsest=40)

    @guarded(dataset="shop", cost=spread, release_key="r/{week}", measures="refined")
    def refined(week: str) -> float:
        return release(VISITS[week], within="10%")

    release_all(refined, "2026-W04", "2026-W05")
    text = run_fine("answer", "refined", "--from", "2026-W04", "--to", "2026-W05")
    assert "2 releases have refined noise" in text
    result = dpflow.answer("refined", start="2026-W04", end="2026-W05")
    assert result.refined == 2
    assert result.interval[1] - result.value > 3 * 2**0.5 * 1.96 * 10
    with pytest.raises(ReleaseError, match="Gaussian and unrefined"):
        dpflow.answer("refined", start="2026-W04", over="2026-W04..2026-W05")
    given = {"measures": "laplace", "release_key": "l/{week}"}
    release_all(visits(Laplace(sensitivity=1, scale=10), **given))
    result = dpflow.answer("laplace", start="2026-W01", end="2026-W02")
    assert result.value == 300.25
    assert 41.13 < result.interval[1] - result.value < 41.14
    (cost,) = result.anew
    assert cost.startswith("Laplace(sensitivity=2, scale=13.7")


def test_numbers_were_rounded_where_the_step_says_so(ledger):
    """The interval is wider by half a unit, or by the digits of a float.

    A number that happens to be whole was not rounded.
    """
    half = {}
    for name, value in (("e", 1.1), ("f", 100.0), ("w", 100), ("l", 2.0**60 + 512)):
        released(name, value, as_int=name == "w")
        answer = dpflow.answer(name, start="2026-W01")
        half[name] = answer.interval[1] - answer.value
    assert half["f"] - half["e"] == pytest.approx(0)
    assert half["w"] - half["e"] == pytest.approx(0.5)
    assert half["l"] - half["e"] > 2**60 / 2**53


def test_a_count_and_its_baskets_are_made_consistent(ledger):
    """Least squares; no negative number; intervals of the free fit, cut at 0."""
    values = {"count": 100.25, "baskets": [70.25, 50.25, -10.25], "many": [1.5] * 99}
    for name, value in values.items():
        released(name, value)
    count, baskets = "count/2026-W01", "baskets/2026-W01"
    fit = dpflow.consistent(count, baskets)
    expected = pytest.approx([320.75 / 3, 190.5 / 3, 130.25 / 3, 0], rel=0.01)
    assert [float(each) for each in fit.values()] == expected
    free = {count: 102.75, f"{baskets}[0]": 67.75}
    for name, middle in free.items():
        low, high = fit[name].interval
        assert (low + high) / 2 == pytest.approx(middle)
        assert high - low == pytest.approx(2 * 1.959964 * 20 * 0.75**0.5)
    assert fit[f"{baskets}[2]"].interval[0] == 0
    assert len(dpflow.consistent(count, "many/2026-W01")) == 100
    for keys in ((count,), (count, count), (count, "nothing"), (baskets, count)):
        with pytest.raises(ReleaseError, match="cannot be fitted"):
            dpflow.consistent(*keys)
