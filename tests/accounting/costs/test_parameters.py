"""No parameter of a public cost is declared in vain.

A new parameter fails until it has a row with two values and what differs between them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dpflow
from dpflow import costs
from dpflow.accounting import FILTERS, make_filter
from dpflow.accounting.costs.base import Cost, relations_of
from dpflow.accounting.costs.text import cost_from_text
from dpflow.exceptions import DpflowError, InvalidCost

pytestmark = pytest.mark.quick


def price(text: str) -> object:
    """Return the prices under each filter, or why there is none."""
    prices: list[object] = []
    plain = {*FILTERS} - {"individual", "sequence"}
    options: list[dict[str, Any]] = [{"theorem": each} for each in sorted(plain)]
    options += [{"theorem": "rdp", "order": order} for order in (8, 16)]
    options += [{"theorem": "zcdp", "delta_loss": "5e-7"}]
    for option in options:
        rule = make_filter(**option, epsilon=3, delta="1e-6")
        try:
            prices.append(rule.price(cost_from_text(text)))
        except DpflowError as error:
            prices.append(type(error))
    return prices


def relation(text: str) -> object:
    """Return the relations under which a policy admits the cost."""
    return relations_of(cost_from_text(text))


def noise(text: str) -> object:
    """Return what its mechanism draws with."""
    cost: Any = cost_from_text(text)
    names = ("threshold_scale", "answer_scale", "margin")
    return [getattr(cost, name, None) for name in names]


def kept(text: str) -> object:
    """Return what the journal keeps of it."""
    return cost_from_text(text).describe()


def read(text: str) -> object:
    """Return the cost; None of a mechanism without noise yet."""
    try:
        return cost_from_text(text)
    except InvalidCost:
        return None


Row = tuple[str, str, Callable[[str], object]]
#: Two costs by the parameter in which they differ, and what shows it.
ROWS: dict[str, Row] = {}


def add(
    kind: str,
    base: dict[str, str],
    show: Callable[[str], object] = price,
    **changed: str,
) -> None:
    """Add a row for each changed parameter of a cost."""
    for name, value in changed.items():
        texts = (
            ", ".join(f"{key}={text}" for key, text in numbers.items())
            for numbers in (base, {**base, name: value})
        )
        before, after = (f"{kind}({text})" for text in texts)
        ROWS[f"{kind}.{name}"] = before, after, show


for kind in ("Gaussian", "DiscreteGaussian"):
    add(kind, {"sensitivity": "1", "sigma": "2"}, sensitivity="2", sigma="3")
    multiplied = {"sensitivity": "1", "noise_multiplier": "2"}
    add(kind, multiplied, noise_multiplier="3")
for kind in ("Laplace", "DiscreteLaplace"):
    add(kind, {"sensitivity": "1", "scale": "2"}, sensitivity="2", scale="3")
    add(kind, {"sensitivity": "1", "epsilon": "2"}, epsilon="3")
for kind, spread in (("Gaussian", "sigma=2"), ("Laplace", "scale=2")):
    texts = (f"{kind}(sensitivity=1, {each})" for each in (spread, "noise='planned'"))
    ROWS[f"{kind}.noise"] = (*texts, read)
SAMPLED = {"sampling_rate": "0.1", "noise_multiplier": "2"}
add("PoissonSampledGaussian", SAMPLED, sampling_rate="0.2", noise_multiplier="3")
add("RandomizedResponse", {"epsilon": "1"}, epsilon="2", categories="9")
add("RandomizedResponse", {"truth": "0.7"}, truth="0.8")
ONE, TWO = "PureDP(epsilon=1)", "PureDP(epsilon=2)"
ROWS["Composed.costs"] = f"Composed({ONE})", f"Composed({TWO})", price
add("Repeated", {"cost": ONE, "times": "2"}, cost=TWO, times="3")
STEP = "Gaussian(sensitivity=1, sigma=%s)"
STOPS = {"step": STEP % 9, "stops": "[2, 4]"}
add("EarlyStopping", STOPS, step=STEP % 8, stops="[2, 5]")
STOPS |= {"accountant": "'rdp'", "delta": "1e-7"}
add("EarlyStopping", STOPS, accountant="'gdp'", delta="1e-8")
add("Refined", {"finest": STEP % 2, "coarsest": "8"}, finest=STEP % 3)
add("Refined", {"finest": STEP % 2, "coarsest": "8"}, kept, coarsest="16")
add("Refined", {"finest": STEP % 2, "spreads": "[8]"}, kept, spreads="[8, 4]")
add("OutputDP", {"cells": "{'a': 1}"}, cells="{'a': 2}", delta="1e-7")
SPARSE = {"positives": "1", "epsilon": "1"}
add("SparseVector", SPARSE, epsilon="2")
add("SparseVector", SPARSE, noise, positives="2", sensitivity="2")
add("SparseVector", SPARSE, relation, monotone="True")
HALVES = {"positives": "1", "epsilon_threshold": "1", "epsilon_answers": "1"}
add("SparseVector", HALVES, epsilon_threshold="2", epsilon_answers="2")
TRIES = {"epsilon": "1", "delta": "1e-7"}
add("ProposeTestRelease", TRIES, epsilon="2", delta="1e-8", tries="2")
PICKS = {**TRIES, "most": "2"}
add("TopK", PICKS, epsilon="2", delta="1e-8")
add("TopK", PICKS, noise, most="3", among="9")
add("RenyiCurve", {"curve": "{8: 1}"}, curve="{8: 2}")
add("RenyiCurve", {"curve": "{8: 1}"}, kept, source="'x'")
for kind in ("PureDP", "ExponentialMechanism"):
    add(kind, {"epsilon": "1"}, epsilon="2")
for kind in ("ApproxDP", "ProbabilisticDP"):
    add(kind, TRIES, epsilon="2", delta="1e-8")
add("ZCDP", {"rho": "0.1"}, rho="0.2")
add("ApproxZCDP", {"rho": "0.1", "delta": "1e-7"}, rho="0.2", delta="1e-8")
add("RenyiDP", {"order": "16", "epsilon": "1"}, order="8", epsilon="2")
add("GaussianDP", {"mu": "1"}, mu="2")
NOTIONS = ["PureDP", "ApproxDP", "ProbabilisticDP", "ZCDP", "ApproxZCDP", "RenyiDP"]
for kind in (*NOTIONS, "GaussianDP", "RenyiCurve", "ExponentialMechanism"):
    text = next(row[0] for name, row in ROWS.items() if name.startswith(f"{kind}."))
    held = text.removesuffix(")") + ", relation='replace-one')"
    ROWS[f"{kind}.relation"] = text, held, relation


def parameters() -> Iterator[str]:
    """Yield each parameter of each public cost."""
    for module in (dpflow, costs):
        for name in module.__all__:
            kind = getattr(module, name)
            if inspect.isclass(kind) and issubclass(kind, Cost) and kind is not Cost:
                names = list(inspect.signature(kind.__init__).parameters)[1:]
                yield from (f"{name}.{parameter}" for parameter in names)


def test_each_parameter_of_a_cost_has_a_row() -> None:
    """Of each public class."""
    assert {*parameters()} == {*ROWS}


@pytest.mark.parametrize("name", ROWS)
def test_each_parameter_of_a_cost_is_consulted(name: str) -> None:
    """Two values of it show a difference, and one value shows none."""
    before, after, show = ROWS[name]
    assert show(before) == show(before)
    assert show(before) != show(after)
