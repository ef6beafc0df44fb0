"""Early stopping: Lemma 11, Theorem 15 and the filter of fixed sequences."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ApproxDP, Cost, EarlyStopping, Gaussian, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.curves.prices import renyi
from dpflow.accounting.fixed.optimal import optimal_epsilon
from dpflow.accounting.fixed.sequence import SequenceFilter
from dpflow.accounting.fixed.stops import (
    best_epsilons,
    compose_epsilon,
    lemma_11,
    theorem_15,
)
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from tests.accounting.oracle import MP, assert_just_above, gaussian_delta, powers, real
from tests.sizes import scaled
from tests.tables import read_tables

TABLES = read_tables(__file__)
MILLIONTH = Fraction(1, 10**6)
TENTH = PureDP(epsilon="0.1")
TWENTY = Gaussian(sensitivity=1, sigma=20)


def fractions(*texts: str) -> list[Fraction]:
    """Return exact numbers."""
    return [Fraction(text) for text in texts]


def test_vectors_of_theorem_15() -> None:
    """The recursion and Lemma 11 give the deltas that enumeration found."""
    for stops, texts, epsilon, optimum, lemma in TABLES["stops"]:
        step, costs = (Fraction(epsilon), Fraction(0)), fractions(*texts)
        assert float(theorem_15(step, stops, costs)) == pytest.approx(optimum, 1e-12)
        alone = [theorem_15(step, [k], [e]) for k, e in zip(stops, costs, strict=True)]
        assert float(sum(alone)) == pytest.approx(lemma, 1e-12)


def exact_theorem_15(
    step: tuple[Fraction, Fraction], stops: list[int], epsilons: list[Fraction]
) -> Any:
    """Return the recursion's value in 60 digits, node by node on probabilities."""
    at = dict(zip(stops, epsilons, strict=True))
    epsilon, delta = step
    top, lost = 1 / (1 + MP.exp(-real(epsilon))), real(delta)

    @cache
    def value(depth: int, loss: Fraction) -> Any:
        size = real(loss)
        best = MP.mpf(0)
        if depth in at:
            best = max(best, -MP.expm1(real(at[depth]) - size))
        if depth < stops[-1]:
            later = top * value(depth + 1, loss + epsilon)
            later += (1 - top) * value(depth + 1, loss - epsilon)
            best = max(best, lost + (1 - lost) * later)
        return best

    return value(0, Fraction(0))


@settings(max_examples=scaled(12), deadline=None)
@given(st.data())
def test_theorem_15_in_60_digits(data: st.DataObject) -> None:
    """The float recursion is never below the exact one, and within 1e-9 of it."""
    count = data.draw(st.integers(1, 25))
    lost = st.sampled_from(fractions("0", "0", "1e-30", "1e-9", "0.1"))
    step = (data.draw(powers(-9, 3)), data.draw(lost))
    stops = sorted(data.draw(st.sets(st.integers(1, count), min_size=1, max_size=4)))
    shares = st.floats(0, 1).map(lambda x: Fraction(f"{x:.4g}"))
    epsilons = [data.draw(shares) * step[0] * k for k in stops]
    true = exact_theorem_15(step, stops, epsilons)
    computed = theorem_15(step, stops, epsilons)
    assert_just_above(computed, true, unit=Fraction(1, 10**299))


def test_accountants_by_hand() -> None:
    """Each accountant gives the number of its own formula."""
    parts, shifted = ((TWENTY, 50),), ((TENTH, 40),)
    assert compose_epsilon(shifted, MILLIONTH, "basic") == 4
    kov = optimal_epsilon(shifted, MILLIONTH)
    assert compose_epsilon(shifted, MILLIONTH, "kov") == kov
    exact = compose_epsilon(parts, MILLIONTH, "gdp")
    assert exact == compose_epsilon(parts, MILLIONTH, "pld")
    mu_squared = MP.mpf(50) / 400
    assert gaussian_delta(real(exact), mu_squared) <= MP.mpf("1e-6")
    assert gaussian_delta(real(exact) * (1 - MP.mpf("1e-9")), mu_squared) > 1e-6
    by_orders = [
        float(50 * renyi(TWENTY, Fraction(order)))
        + float(MP.log1p(-MP.mpf(1) / order))
        - float(MP.log(order / MP.mpf(10) ** 6)) / (order - 1)
        for order in (9, 13, 17)
    ]
    found_renyi = compose_epsilon(parts, MILLIONTH, "rdp")
    assert float(exact) < float(found_renyi) <= min(by_orders)


@settings(max_examples=scaled(4), deadline=None)
@given(
    st.sampled_from(fractions("0.02", "0.1", "0.5")),
    st.sampled_from(fractions("0", "1e-10")),
    st.sets(st.integers(1, 60), min_size=1, max_size=4).map(sorted),
    st.sampled_from(fractions("1e-3", "1e-6", "1e-12")),
)
def test_solving_theorem_15_spends_what_lemma_11_leaves(epsilon, own, stops, delta):
    """The solved epsilons are certified, and never above those of Lemma 11."""
    if 2 * stops[-1] * own * len(stops) >= delta:
        own = Fraction(0)
    step = (epsilon, own)
    shares = (delta / len(stops),) * len(stops)
    solved = best_epsilons(step, tuple(stops), shares)
    parts = [((ApproxDP(epsilon=epsilon, delta=own), k),) for k in stops]
    lemma = lemma_11(parts, shares, "kov")
    # A single stop is Lemma 11 itself, and the recursion rounds up.
    assert theorem_15(step, stops, list(solved)) <= delta * (1 + Fraction(1, 10**9))
    assert all(a <= b for a, b in zip(solved, lemma, strict=True))


def sequence(*steps: Any, epsilon: int = 3, **options: Any) -> SequenceFilter:
    """Return a sequence at (epsilon, 1e-6)."""
    return SequenceFilter(epsilon=epsilon, delta="1e-6", steps=steps, **options)


def times(cost: Cost, count: int, spares: int = 0) -> dict[str, Any]:
    """Return one line of a sequence."""
    return {"cost": cost, "times": count, "spares": spares}


def test_a_sequence_reaches_the_optimum() -> None:
    """As many steps fit as optimal composition allows, and not one more."""
    cases = (1, TENTH, 10), (5, TENTH, 108), (1, TWENTY, 22), (5, TWENTY, 416)
    for epsilon, cost, count in cases:
        rule = sequence(times(cost, count), epsilon=epsilon)
        assert rule.admits(Tally((count,)))
        assert not rule.admits(Tally((count + 1,)))
        with pytest.raises(InvalidCost, match="sequence needs epsilon"):
            sequence(times(cost, count + 1), epsilon=epsilon)


def test_steps_are_counted_by_kind() -> None:
    """The tally holds one counter per distinct cost, in the order of the sequence."""
    rule = sequence(TENTH, TWENTY, TENTH)
    assert rule.price(TENTH) == Tally((1, 0))
    assert rule.price(TWENTY) == Tally((0, 1))
    assert rule.limit == Tally((2, 1))
    assert rule.label(Tally((2, 1))) == {
        "PureDP(epsilon=0.1)": "2",
        "Gaussian(sensitivity=1, sigma=20)": "1",
    }
    assert rule.used_fraction(Tally((1, 1))) == pytest.approx(2 / 3)
    assert rule.used_fraction(Tally((3, 0))) == 1.5
    # Another step has no price, not even a cheaper one.
    with pytest.raises(UnsupportedCost, match="not in the sequence"):
        rule.price(PureDP(epsilon="0.05"))


def test_a_crash_needs_a_spare() -> None:
    """A forfeited execution stays counted; running it again needs a spare."""
    without, with_spare = sequence(times(TENTH, 2)), sequence(times(TENTH, 2, spares=1))
    crashed = Tally((1,))
    assert not without.admits(crashed + Tally((2,)))
    assert with_spare.admits(crashed + Tally((2,)))
    assert not with_spare.admits(crashed + Tally((3,)))
    assert with_spare.epsilons[0] == compose_epsilon(((TENTH, 3),), MILLIONTH, "pld")


def test_stops_say_what_was_spent() -> None:
    """Ending early costs the epsilon of the smallest prefix that holds what ran."""
    rule = sequence(times(TWENTY, 10), times(TENTH, 5), stops=(4, 10))
    assert rule.stops == (4, 10, 15)
    assert rule.deltas == (MILLIONTH / 3,) * 3
    first, second, whole = rule.epsilons
    assert first == optimal_epsilon(((TWENTY, 4),), MILLIONTH / 3)
    assert second == optimal_epsilon(((TWENTY, 10),), MILLIONTH / 3)
    assert whole == optimal_epsilon(((TWENTY, 10), (TENTH, 5)), MILLIONTH / 3)
    assert rule.spent(rule.zero()) == 0
    assert rule.spent(Tally((4, 0))) == first
    assert rule.spent(Tally((5, 0))) == second
    assert rule.spent(Tally((1, 1))) == whole
    assert rule.spent(Tally((11, 0))) is None


def test_descriptions_from_yaml() -> None:
    """Steps may be written as a policy writes them, with plain numbers."""
    steps = TABLES["written"]
    rule = make_filter("sequence", epsilon=3, delta=1e-6, steps=steps)
    iterated = EarlyStopping(PureDP(epsilon="0.01"), stops=(2, 4))
    assert rule == sequence(TWENTY, times(TENTH, 3, spares=1), iterated)
