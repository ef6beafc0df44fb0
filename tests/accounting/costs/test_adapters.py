"""Costs from dp-accounting events and OpenDP measurements."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import dp_accounting as dpa
import opendp.prelude as dp
import pytest
from dp_accounting import dp_event as events

from dpflow import ZCDP, ApproxDP, PureDP, Repeated
from dpflow.accounting.costs.adapters import from_dp_event, from_opendp
from dpflow.accounting.costs.base import RELATIONS, cost_from_description, relations_of
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.curves.prices import renyi
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.ledger.decisions.gates import check_holds
from tests.sizes import spread
from tests.tables import read_tables

pytestmark = pytest.mark.quick

TABLES = read_tables(__file__)

GAUSSIAN = dpa.GaussianDpEvent(1.1)
STEP = "PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.1)"
SAMPLED = dpa.PoissonSampledDpEvent(0.01, GAUSSIAN)
#: Events, and their costs.
EVENTS = [
    (GAUSSIAN, "Gaussian(sensitivity=1, sigma=1.1)"),
    (dpa.LaplaceDpEvent(10.0), "Laplace(sensitivity=1, scale=10)"),
    (events.DiscreteLaplaceDpEvent(0.25, 3), "DiscreteLaplace(sensitivity=3, scale=4)"),
    (dpa.ZCDpEvent(0.01), "ZCDP(rho=0.01)"),
    (dpa.RandomizedResponseDpEvent(0.5, 2), "RandomizedResponse(truth=0.75)"),
    (
        dpa.RandomizedResponseDpEvent(0.5, 10),
        "RandomizedResponse(truth=0.55, categories=10)",
    ),
    (SAMPLED, STEP),
    (dpa.SelfComposedDpEvent(SAMPLED, 100), f"Repeated({STEP}, 100)"),
    (
        dpa.ComposedDpEvent([GAUSSIAN, dpa.NoOpDpEvent(), SAMPLED]),
        f"Composed(Gaussian(sensitivity=1, sigma=1.1), {STEP})",
    ),
]


def written(name, **fields):
    """Return an event as engines without dp-accounting write it."""
    more = {"module_name": "dp_accounting.dp_event", "_fields": [*fields]}
    return {**more, "class_name": f"{name}DpEvent", **fields}


def test_events_become_costs(monkeypatch):
    """The numbers of the event, read as decimals; written ones and those to come, too.

    Discrete Gaussian and exponential mechanism have the names of the next release.
    """
    for event, cost in EVENTS:
        assert cost_from_text(cost) == from_dp_event(event)
    gaussian = written("Gaussian", noise_multiplier=1.1)
    sampled = written("PoissonSampled", sampling_probability=0.01, event=gaussian)
    event = written("Composed", events=[gaussian, written("NoOp"), sampled])
    assert from_dp_event(event) == cost_from_text(EVENTS[-1][1])
    discrete = {"sigma": 5.0, "sensitivity": 2.0, "dimension": None}
    for name, numbers, text in (
        ("DiscreteGaussian", discrete, "DiscreteGaussian(sensitivity=2, sigma=5)"),
        ("ExponentialMechanism", {"epsilon": 0.1}, "ExponentialMechanism(epsilon=0.1)"),
    ):
        kind = type(f"{name}DpEvent", (SimpleNamespace,), {})
        monkeypatch.setattr(events, f"{name}DpEvent", kind, raising=False)
        assert from_dp_event(kind(**numbers)) == cost_from_text(text)


def test_a_written_event_needs_no_class_of_the_library():
    """Alone, repeated and in a composition."""
    loss = written("EpsilonDelta", epsilon=0.25, delta=5e-7)
    discrete = written("DiscreteGaussian", sigma=5, sensitivity=2)
    cost = "ApproxDP(epsilon=0.25, delta=5e-7)"
    noise = "DiscreteGaussian(sensitivity=2, sigma=5)"
    for event, text in (
        ({"class_name": "EpsilonDeltaDpEvent", "epsilon": 0.25, "delta": 5e-7}, cost),
        (written("EpsilonDelta", epsilon=0.25, delta=0), "PureDP(epsilon=0.25)"),
        (
            written("ExponentialMechanism", epsilon=0.1),
            "ExponentialMechanism(epsilon=0.1)",
        ),
        (discrete, noise),
        (discrete | {"dimension": None}, noise),
        (written("SelfComposed", event=loss, count=3), f"Repeated({cost}, 3)"),
        (
            written("Composed", events=[loss, written("NoOp"), loss]),
            f"Composed({cost}, {cost})",
        ),
    ):
        expected = cost_from_text(text)
        assert from_dp_event(event) == from_dp_event(event, orders=[8]) == expected


def test_gaussians_on_one_sample_are_one():
    """Its noise is 1 / sqrt(sum 1 / z^2), rounded down, as dp-accounting's."""
    events_of = lambda *z: dpa.ComposedDpEvent([*map(dpa.GaussianDpEvent, z)])
    for inner, noise in (
        (events_of(1.1), "1.1"),
        (dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(2.0), 4), "1"),
        (events_of(3.0, 4.0), "2.4"),
        (events_of(1.1, 1.1), "0.777817459305"),
    ):
        event = dpa.PoissonSampledDpEvent(0.01, inner)
        cost = from_dp_event(event)
        assert Fraction(noise) - Fraction(1, 10**11) <= cost.noise_multiplier
        assert cost.noise_multiplier <= Fraction(noise)
        accountant = dpa.rdp.RdpAccountant([8])
        accountant.compose(event)
        (divergence,) = accountant._rdp
        assert float(renyi(cost, Fraction(8))) == pytest.approx(divergence, rel=1e-6)


def test_opendp_measurements():
    """Answers of their maps to the last bit; a profile needs a fixed delta."""
    dp.enable_features("contrib", "honest-but-curious")
    space = dp.atom_domain(T=int), dp.absolute_distance(T=int)
    pure = from_opendp(space >> dp.m.then_laplace(scale=10.0), 1)
    assert pure == PureDP(epsilon=Fraction(0.1))
    assert pure.epsilon >= Fraction(1, 10)
    gaussian = space >> dp.m.then_gaussian(scale=20.0)
    for each in (gaussian, dp.c.make_approximate(gaussian)):
        rho = from_opendp(each, 1)
        assert isinstance(rho, ZCDP)
        assert rho.rho == Fraction(gaussian.map(1)) >= Fraction(1, 800)
    profile = dp.c.make_zCDP_to_approxDP(gaussian)
    with pytest.raises(UnsupportedCost, match="make_fix_delta"):
        from_opendp(profile, 1)
    fixed = dp.c.make_fix_delta(profile, 1e-6)
    epsilon, delta = map(Fraction, fixed.map(1))
    assert from_opendp(fixed, 1) == ApproxDP(epsilon=epsilon, delta=delta)
    curve = dp.m.make_user_measurement(
        *space, dp.renyi_divergence(), lambda x: x, lambda d: lambda order: order * d
    )
    with pytest.raises(UnsupportedCost, match=r"RenyiDP\(order=a"):
        from_opendp(curve, 1)


def begin_query(unit, loss):
    """Return a query of a context with this unit and this loss for two queries."""
    dp.enable_features("contrib")
    context = dp.Context.compositor(
        data=[1, 2, 3],
        privacy_unit=dp.unit_of(**unit),
        privacy_loss=dp.loss_of(**loss),
        split_evenly_over=2,
        domain=dp.vector_domain(dp.atom_domain(T=int), size=3),
    )
    return context.query()


def test_a_query_knows_its_distance():
    """Its context's unit counts; another distance, or none, is refused."""
    query = begin_query({"contributions": 3}, {"epsilon": 1.0}).count().laplace()
    cost = from_opendp(query)
    stated = from_opendp(query, 3)
    assert cost.but(relation=None) == stated == from_opendp(query.resolve(), 3)
    assert cost.epsilon >= Fraction(1, 2)
    with pytest.raises(InvalidCost, match="distance of the query"):
        from_opendp(query, d_in=1)
    with pytest.raises(InvalidCost, match="needs d_in"):
        from_opendp(query.resolve())


@pytest.mark.parametrize(
    ("row", "loss"), spread(product(TABLES["units"], TABLES["losses"]), 6)
)
def test_a_query_holds_for_the_relation_of_its_context(row, loss):
    """An explicit distance is the caller's statement, for the policy's relation."""
    unit, steps, relation = row
    query = begin_query(unit, loss)
    for step in steps:
        query = getattr(query, step)()
    query = query.count()
    query = query.gaussian() if "rho" in loss else query.laplace()
    cost = from_opendp(query)
    for same in (cost, Repeated(cost, 2), cost.noisier(2), cost.round_noise()):
        assert relations_of(same) == (relation,)
    assert cost_from_description(cost.describe()) == cost_from_text(repr(cost)) == cost
    assert relations_of(from_opendp(query, query._d_in)) == RELATIONS
    (other,) = {*RELATIONS} - {relation}
    check_holds(cost, "a", relation)
    with pytest.raises(UnsupportedCost, match=f"is priced for {relation}"):
        check_holds(cost, "a", other)
