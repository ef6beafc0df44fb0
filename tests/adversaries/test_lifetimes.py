"""Adversaries against lifetimes, who choose later terms by the outputs of earlier ones.

The first term is a Gaussian that fills its budget of (e, d). Its loss decides about the
second term, under a lifetime of (2e, 2d). The value is the true delta at the lifetime's
epsilon over the promised one, an integral over the first term's loss in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, ndtr

from dpflow.ledger.decisions.lifetimes import lifetime_error
from dpflow.ledger.decisions.terms import view_policy
from dpflow.policy import Policy
from dpflow.policy.lifetime import Opened, fits, room
from dpflow.rounding import from_units
from tests.ledger.support import make_policy

#: Points of a standard normal variable, and their weights.
POINTS = np.linspace(-14, 14, 40_001)
WEIGHTS = np.exp(-(POINTS**2) / 2) / np.sqrt(2 * np.pi) * (POINTS[1] - POINTS[0])
PAIRS = [(3, "1e-6", 6, "2e-6"), (1, "1e-6", 2, "2e-6")]


def excess(epsilon: Any) -> Any:
    """Return what a loss of zero adds to the delta at an epsilon, perhaps below 0."""
    return np.maximum(0, -np.expm1(epsilon))


def gaussian(epsilon: Any, mu_squared: float) -> Any:
    """Return the delta of a Gaussian at an epsilon, perhaps below 0."""
    mu = np.sqrt(mu_squared)
    far = np.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)
    return ndtr(-epsilon / mu + mu / 2) - far


def response(epsilon: Any, own: float, delta: float) -> Any:
    """Return the delta of the worst (own, delta)-DP step at an epsilon."""
    up = expit(own)
    leaks = up * excess(epsilon - own) + (1 - up) * excess(epsilon + own)
    return delta + (1 - delta) * leaks


def policy(epsilon: object, delta: str, theorem: str, lifetime: str = "") -> Policy:
    """Make a policy of one theorem."""
    fields = {"lifetime": lifetime} if lifetime else {}
    budget = f"{{epsilon: {epsilon}, delta: {delta}}}"
    return make_policy(budget=budget, filter=theorem, **fields)


def mu_squared_of(file: Policy) -> float:
    """Return the threshold of a policy's filter."""
    return float(from_units(file.dataset_filter().limit.amounts[0]))


def value(first: Policy, options: Sequence[Callable[[Any], Any]], most: float) -> float:
    """Return the true delta over the promised one, of the best choice by outputs.

    Args:
        first: The first term.
        options: The delta of each possible second term, given the epsilon that the
            first term leaves to it; stopping is one more.
        most: Epsilon of the lifetime.
    """
    mu_squared = mu_squared_of(first)
    left = most - mu_squared / 2 - np.sqrt(mu_squared) * POINTS
    best = np.max([excess(left), *(option(left) for option in options)], axis=0)
    return float((WEIGHTS * best).sum())


def second_terms(epsilon, delta, most, whole):
    """Return a first term, and possible second ones with their deltas."""
    lifetime = f"{{epsilon: {most}, delta: {whole}}}"
    first = policy(epsilon, delta, "gdp", lifetime)
    counted = view_policy(first).counted
    limits = {"epsilon": str(most), "delta": whole}
    larger = room([counted], counted, limits)["epsilon"]
    fill = policy(larger, delta, "gdp", lifetime)
    plain = policy(epsilon, delta, "basic", lifetime)
    # A budget of four digits fills the lifetime nearly; the adversary fills all of it.
    mu_squared = mu_squared_of(policy(most, whole, "gdp")) - mu_squared_of(first)
    assert 0.97 * mu_squared < mu_squared_of(fill) <= mu_squared
    return first, [
        (fill, lambda left: gaussian(left, mu_squared)),
        (plain, lambda left: response(left, epsilon, float(delta))),
    ]


@pytest.mark.parametrize("pair", PAIRS)
def test_no_choice_of_terms_loses_more_than_the_lifetime(pair: Any) -> None:
    """A Gaussian fills the lifetime; the worst step of another filter is refused.

    Two Gaussians are one Gaussian, so the ratio is 1 up to rounding of floats.
    """
    first, ((fill, gaussian), (plain, _)) = second_terms(*pair)
    terms = [view_policy(first)]
    assert lifetime_error("a", terms, view_policy(fill, 2)) is None
    assert lifetime_error("a", terms, view_policy(plain, 2)) is not None
    ratio = value(first, [gaussian], pair[2]) / float(pair[3])
    assert ratio == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(
    ("pair", "basic", "either"), [(PAIRS[0], 0.976, 1.836), (PAIRS[1], 0.866, 1.701)]
)
def test_a_method_chosen_by_an_output_is_caught(pair, basic, either):
    """Control: each method alone is sound, and whichever fits is not."""
    first, files = second_terms(*pair)
    for file, _ in files:
        # Under the wrong rule either sum is within the lifetime.
        lifetime = {"epsilon": str(pair[2]), "delta": pair[3]}
        counted = [view_policy(each).counted for each in (first, file)]
        budgets = [Opened(*term[:3], None) for term in counted]
        assert fits(counted, lifetime) or fits(budgets, lifetime)
    fill, plain = (option for _, option in files)
    promised = float(pair[3])
    assert value(first, [plain], pair[2]) / promised == pytest.approx(basic, abs=5e-4)
    found = value(first, [fill, plain], pair[2]) / promised
    assert found == pytest.approx(either, abs=5e-4)


def test_a_lifetime_raised_by_an_output_is_caught() -> None:
    """Control: the lifetime that is in force at the end is no guarantee.

    Both lifetimes have a delta of 1e-6. The adversary raises the first one where the
    loss may pass the second one, and so breaks one of both with nearly 2e-6.
    """
    first = policy(3, "1e-6", "gdp", "{epsilon: 3, delta: 1e-6}")
    terms = [view_policy(first)]
    raised = policy(3, "1e-6", "gdp", "{epsilon: 4.424, delta: 1e-6}")
    error = lifetime_error("a", terms, view_policy(raised, 2))
    assert "--raise-lifetime" in str(error)
    assert lifetime_error("a", terms, view_policy(raised, 2), raises=True) is None
    mu_squared = mu_squared_of(first)
    loss = mu_squared / 2 + np.sqrt(mu_squared) * POINTS
    stays, raises = excess(3 - loss), gaussian(4.424 - loss, mu_squared)
    assert (WEIGHTS * stays).sum() <= 1e-6
    assert (WEIGHTS * raises).sum() <= 1e-6
    assert (WEIGHTS * np.maximum(stays, raises)).sum() > 1.9e-6
