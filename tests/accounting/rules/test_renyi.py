"""The Renyi odometer: divergences of one order add up to a running bound."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import flint
import pytest
from flint import arb, fmpq
from hypothesis import given
from hypothesis import strategies as st

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting import ODOMETERS, Odometer, make_odometer
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS

RULE = make_odometer("renyi", delta="1e-6", order=8)
TWENTY = Gaussian(sensitivity=1, sigma=20)

costs = st.one_of(
    st.builds(lambda n: ZCDP(rho=Fraction(n, 10**6)), st.integers(1, 10**6)),
    st.builds(lambda n: PureDP(epsilon=Fraction(n, 10**4)), st.integers(1, 2000)),
    st.builds(lambda n: Laplace(sensitivity=1, scale=n), st.integers(5, 5000)),
    st.builds(lambda n: Gaussian(sensitivity=1, sigma=n), st.integers(5, 5000)),
)
steps = st.lists(costs, min_size=1, max_size=8)


def total(rule: Odometer, costs: list[Cost]) -> Tally:
    """Return the tally after charging every cost."""
    return sum((rule.charge(cost) for cost in costs), rule.zero())


def reading_ends(divergence: Fraction, delta: Fraction, order: Fraction) -> tuple:
    """Return rigorous bounds of R + log(1/delta)/(order-1) as floats."""
    with flint.ctx.workprec(300):
        balls = [arb(fmpq(v.numerator, v.denominator)) for v in (divergence, delta)]
        excess = order - 1
        reading = balls[0] - balls[1].log() / arb(
            fmpq(excess.numerator, excess.denominator)
        )
        ends = [end.man_exp() for end in (reading.lower(), reading.upper())]
    return tuple(Fraction(int(m)) * Fraction(2) ** int(e) for m, e in ends)


@pytest.mark.parametrize("steps_taken", [0, 1, 10, 1000])
@pytest.mark.parametrize("delta", ["1e-35", "1e-6", "0.5", "0.999"])
@pytest.mark.parametrize("order", ["1.0001", "8", "63.25", "1e6"])
def test_a_reading_is_the_theorem_rounded_up(order, delta, steps_taken):
    """The float is the first one that is not below R + log(1/delta)/(order-1)."""
    rule = make_odometer("renyi", delta=delta, order=order)
    tally = sum([rule.price(TWENTY)] * steps_taken, rule.zero())
    divergence = steps_taken * Fraction(order) / 800
    low, high = reading_ends(divergence, Fraction(delta), Fraction(order))
    reading = Fraction(rule.read(tally))
    assert high <= reading
    assert Fraction(math.nextafter(rule.read(tally), 0)) < low * (
        1 + Fraction(1, 10**25)
    )


def test_known_readings():
    """Ten steps of 0.1 at order 8 read ten known divergences and the idle term."""
    tally = total(RULE, [PureDP(epsilon=0.1)] * 10)
    assert RULE.read(tally) == pytest.approx(
        0.367166597013116 + math.log(10**6) / 7, rel=1e-14
    )
    assert RULE.read(RULE.zero()) == pytest.approx(math.log(10**6) / 7, rel=1e-15)


@pytest.mark.parametrize(("target", "count"), [(1, 13), (5, 308)])
def test_the_derived_order_reads_the_target_after_the_known_number_of_steps(
    target, count
):
    """Tuned for a target, the odometer passes it when Mironov's best order would."""
    rule = make_odometer("renyi", delta="1e-6", halt_at_epsilon=target)
    readings = (
        rule.read(Tally((rule.price(TWENTY).amounts[0] * n, 0)))
        for n in itertools.count()
    )
    taken = sum(1 for _ in itertools.takewhile(lambda r: r <= target, readings)) - 1
    assert taken == count


@pytest.mark.parametrize("target", ["1e-12", "0.01", "1", "10000"])
@pytest.mark.parametrize("delta", ["1e-35", "1e-6", "0.999"])
def test_the_derived_order_is_legal_and_short(delta, target):
    """Every target derives an order within the limits that people can read."""
    rule = make_odometer("renyi", delta=delta, halt_at_epsilon=target)
    assert Fraction(10001, 10000) <= rule.order <= 10**6
    assert len(rule.parameters()["order"]) <= 7
    assert math.isfinite(rule.read(rule.zero()))


@pytest.mark.parametrize("target", ["0.1", "1", "5"])
def test_no_other_order_leaves_much_more_room(target):
    """The derived order holds 99 % of the rho that any order on a grid holds."""
    delta, epsilon = Fraction("1e-6"), Fraction(target)

    def room(order: Fraction) -> Fraction:
        rule = make_odometer("renyi", delta=delta, order=order)
        return (epsilon - Fraction(rule.read(rule.zero()))) / order

    derived = make_odometer("renyi", delta=delta, halt_at_epsilon=epsilon).order
    grid = [1 + Fraction(11, 10) ** n for n in range(-50, 140)]
    assert room(derived) >= max(room(order) for order in grid) * Fraction(99, 100)


# -- steps without a theorem -------------------------------------------------------


@pytest.mark.parametrize("delta", ["1e-35", "1e-6", "0.5"])
def test_a_step_with_a_delta_makes_the_reading_undefined_for_ever(delta):
    """One uncovered step reads infinity, whatever follows, and is counted."""
    leak = ApproxDP(epsilon=0.1, delta=delta)
    with pytest.raises(UnsupportedCost, match="ApproxDP"):
        RULE.price(leak)
    tally = RULE.zero() + RULE.charge(leak)
    assert tally == Tally((0, 1))
    assert RULE.read(tally) == math.inf
    assert RULE.read(tally + RULE.charge(TWENTY)) == math.inf
    assert RULE.named(tally + RULE.charge(leak))["uncovered"] == "2"


def test_voiding_an_uncovered_step_restores_the_reading():
    """A reservation of such a step that never ran leaves no trace."""
    leak = RULE.charge(ApproxDP(epsilon=0.1, delta="1e-6"))
    before = RULE.charge(TWENTY)
    assert RULE.read(before + leak - leak) == RULE.read(before) < math.inf


@given(costs)
def test_charge_is_the_price_where_there_is_one(cost):
    """A covered step adds its price and counts nothing as uncovered."""
    assert RULE.charge(cost) == RULE.price(cost)
    assert RULE.charge(cost).amounts[1] == 0


# -- laws --------------------------------------------------------------------------


@given(steps, st.randoms(use_true_random=False))
def test_the_order_of_charges_is_irrelevant(costs, random):
    """Any order of the same steps reads the same."""
    assert total(RULE, costs) == total(RULE, random.sample(costs, len(costs)))


@given(steps, costs)
def test_readings_never_fall(costs, extra):
    """Another step never lowers the bound."""
    tally = total(RULE, costs)
    assert RULE.read(tally) <= RULE.read(tally + RULE.charge(extra))


@given(steps, costs, costs)
def test_reserve_then_settle_equals_charge(costs, worst, realised):
    """Holding the worst case and posting another reads as posting alone reads."""
    before = total(RULE, costs)
    settled = before + RULE.charge(worst) - RULE.charge(worst) + RULE.charge(realised)
    assert settled == before + RULE.charge(realised)


@given(steps, st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_smaller_delta_never_reads_less(costs, one, two):
    """A rarer failure is a larger bound, at the same order and the same steps."""
    rare, often = sorted((Fraction(one, 10**7), Fraction(two, 10**7)))
    strict = make_odometer("renyi", delta=rare, order=8)
    loose = make_odometer("renyi", delta=often, order=8)
    tally = total(strict, costs)
    assert tally == total(loose, costs)
    assert loose.read(tally) <= strict.read(tally)


# -- parameters --------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"delta": "1e-6", "order": 8},
        {"delta": 1e-6, "order": "1.0001"},
        {"delta": "1e-6", "halt_at_epsilon": 1},
        {"delta": "1e-35", "halt_at_epsilon": "0.3"},
        {"delta": Fraction(1, 7), "order": Fraction(7, 3)},
    ],
    ids=repr,
)
def test_parameters_make_an_equal_rule_again(options):
    """What a ledger pins rebuilds the rule through JSON, derived order included."""
    rule = make_odometer("renyi", **options)
    again = make_odometer(**json.loads(json.dumps(rule.parameters())))
    assert again == rule
    assert hash(again) == hash(rule)
    assert again.read(again.price(TWENTY)) == rule.read(rule.price(TWENTY))


def test_a_given_order_is_kept_whatever_the_target():
    """An order that is stated is not tuned away."""
    given_order = make_odometer("renyi", delta="1e-6", order=8, halt_at_epsilon=1)
    assert given_order == RULE
    assert make_odometer("renyi", delta="1e-6", order=9) != RULE


def test_a_rule_names_its_tally_in_its_own_currency():
    """Journals show the divergence as an exact decimal and the count as a count."""
    named = RULE.named(RULE.price(TWENTY))
    assert Fraction(named["renyi"]) == Fraction(1, 100)
    assert named["uncovered"] == "0"
    assert RULE.price(TWENTY) == Tally((UNITS // 100, 0))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("order", {"order": None}),
        ("order", {"order": 1}),
        ("order", {"order": "1.00009"}),
        ("order", {"order": 0.5}),
        ("order", {"order": -2}),
        ("order", {"order": 10**6 + 1}),
        ("order", {"order": float("inf")}),
        ("order", {"order": float("nan")}),
        ("order", {"order": True}),
        ("delta", {"delta": 0}),
        ("delta", {"delta": 1}),
        ("delta", {"delta": float("nan")}),
        ("halt_at_epsilon", {"order": None, "halt_at_epsilon": 0}),
        ("halt_at_epsilon", {"order": None, "halt_at_epsilon": -1}),
        ("halt_at_epsilon", {"order": None, "halt_at_epsilon": float("nan")}),
        ("halt_at_epsilon", {"order": None, "halt_at_epsilon": "soon"}),
        ("halt_at_epsilon", {"halt_at_epsilon": float("nan")}),
        ("halt_at_epsilon", {"halt_at_epsilon": -1}),
    ],
    ids=repr,
)
def test_a_bad_option_is_refused_by_name(name, options):
    """Each option that is no number or out of range names itself, used or not."""
    with pytest.raises(InvalidCost, match=name) as caught:
        make_odometer("renyi", **{"delta": "1e-6", "order": 8, **options})
    assert caught.value.name == name


@pytest.mark.parametrize("option", ["orders", "epsilon", "kind"])
def test_an_unknown_option_is_refused(option):
    """A misspelt option is InvalidCost with its name."""
    with pytest.raises(InvalidCost, match=option):
        make_odometer("renyi", delta="1e-6", order=8, **{option: 1})


@pytest.mark.parametrize("theorem", ["", "Renyi", "gaussian", None, ["renyi"]])
def test_an_unknown_odometer_is_refused_with_the_known_ones(theorem):
    """An odometer that does not exist, or is a filter, lists those that do."""
    with pytest.raises(InvalidCost, match=", ".join(sorted(ODOMETERS))) as caught:
        make_odometer(theorem, delta="1e-6")
    assert caught.value.value == theorem
