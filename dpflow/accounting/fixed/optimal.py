"""Optimal composition of a sequence of steps that is fixed in advance, exactly.

Every (epsilon, delta)-DP step is a randomized response after post-processing, and
Gaussians add up to one Gaussian. So a fixed sequence of both has finitely many losses
of randomized responses, each smeared by one Gaussian: no grid, no truncation.

Never use these functions on parameters that were chosen adaptively
(docs/derivations/fixed.md#natural-filter). They are for sequences fixed in advance, and
for stopping those early through `early_stopping`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import GaussianDP
from dpflow.accounting.curves.conversions import NEGLIGIBLE_DELTA, falling_root, is_far
from dpflow.accounting.curves.prices import approx_dp
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import (
    UnsettledBound,
    arithmetic,
    bound_above,
    evaluate,
    short_down,
    to_fraction,
    to_real,
)

#: Costs and how often each runs; their order does not matter.
Parts = tuple[tuple[Cost, int], ...]

#: Limits of distinct losses, without and with a Gaussian that smears them.
MOST_LOSSES, MOST_SMEARED = 20_000, 2_000

_ROOT_DIGITS = 25
_WIDEN = Fraction(1, 10**13)
_NEGLIGIBLE = 40.0  # in logs: 4e-18 of delta


@dataclass(frozen=True)
class FixedSequence:
    """The normal form of a sequence of Gaussians and (epsilon, delta)-DP steps.

    Args:
        mu_squared: Sum of the squared mus of the Gaussians.
        responses: Pairs (epsilon, count) of randomized responses.
        lost: Pairs (delta, count) of the deltas of the steps.
    """

    mu_squared: Fraction
    responses: tuple[tuple[Fraction, int], ...]
    lost: tuple[tuple[Fraction, int], ...]

    @classmethod
    def of(cls, parts: Parts) -> FixedSequence:
        """Bring costs into the normal form.

        Raises:
            UnsupportedCost: If a step is neither a Gaussian nor (epsilon, delta)-DP.
        """
        mu_squared = Fraction(0)
        responses: Counter[Fraction] = Counter()
        lost: Counter[Fraction] = Counter()
        for cost, count in without_substeps(parts):
            if isinstance(cost, Gaussian):
                mu_squared += count * (cost.sensitivity / cost.sigma) ** 2
                continue
            if isinstance(cost, GaussianDP):
                mu_squared += count * cost.mu**2
                continue
            epsilon, delta = approx_dp(cost)
            responses[epsilon] += count
            lost[delta] += count
        del responses[Fraction(0)], lost[Fraction(0)]
        return cls(mu_squared, _pairs(responses), _pairs(lost))

    @property
    def highest(self) -> Fraction:
        """The largest loss of the responses together."""
        return sum((loss * count for loss, count in self.responses), Fraction(0))

    @property
    def losses(self) -> int:
        """Number of combinations of the responses' outcomes."""
        return math.prod(count + 1 for _, count in self.responses)

    @property
    def is_small(self) -> bool:
        """Whether the exact functions below take this sequence."""
        return self.losses <= (MOST_SMEARED if self.mu_squared else MOST_LOSSES)


def _pairs(counts: Counter[Fraction]) -> tuple[tuple[Fraction, int], ...]:
    return tuple(sorted((number, n) for number, n in counts.items() if n))


def without_substeps(parts: Parts) -> Parts:
    """Write iterated and composed costs as their steps, and equal costs once."""
    counts: Counter[Cost] = Counter()
    for cost, count in parts:
        for step, times in _steps(cost):
            counts[step] += count * times
    return tuple((cost, n) for cost, n in counts.items() if n)


def _steps(cost: Cost) -> Parts:
    if isinstance(cost, Composed):
        return tuple(pair for part in cost.costs for pair in _steps(part))
    iterated = getattr(cost, "substeps", None)
    if iterated is None:
        return ((cost, 1),)
    return tuple((step, n * iterated[1]) for step, n in _steps(iterated[0]))


def optimal_delta(parts: Parts, epsilon: Fraction) -> Fraction:
    """Return the delta at epsilon of a fixed sequence, rounded up.

    Source: Kairouz, Oh, Viswanath 2015 (arXiv 1311.0776v4) Thm 3.3 and its
    heterogeneous form, Murtagh, Vadhan 2016 (arXiv 1507.03113v3) Thm 1.5; with
    Gaussians, the hockey-stick divergence of the product, conditioned on the responses
    (docs/derivations/fixed.md#fixed-sequences).

    Assumes: the costs are fixed in advance; mechanisms and order may adapt.
    Attained by randomized responses and Gaussians.

    Rounding: up by a relative 1e-30; never below `conversions.NEGLIGIBLE_DELTA` where
    Gaussians are alone or with pure steps.

    Checked by: tests/accounting/fixed/test_optimal.py.

    Raises:
        UnsupportedCost: If a step is neither a Gaussian nor (epsilon, delta)-DP.
        InvalidCost: If the steps have too many different epsilons.
    """
    return _delta(_check_sequence(FixedSequence.of(parts)), epsilon, -math.inf)


def _delta(sequence: FixedSequence, epsilon: Fraction, floor: float) -> Fraction:
    gaussian = sequence.mu_squared and not sequence.lost
    # With all responses at their highest, so far out that no digit matters.
    if gaussian and is_far(epsilon - sequence.highest, sequence.mu_squared):
        return NEGLIGIBLE_DELTA

    def value(mp: Any) -> Any:
        lost, eps = _lost(mp, sequence.lost), to_real(mp, epsilon)
        return lost + (1 - lost) * _divergence(mp, sequence, eps, floor)

    return min(bound_above(value), Fraction(1))


@lru_cache(maxsize=4096)
def optimal_epsilon(parts: Parts, delta: Fraction) -> Fraction:
    """Return the smallest epsilon of a fixed sequence at delta, rounded up.

    Source, assumes: as `optimal_delta`. Between KOV's lattice points the exact curve is
    inverted: it is the maximum over j of the lines A_j - e^epsilon B_j, where A_j and
    B_j are the masses of the j largest losses.

    Rounding: up; within a relative 1e-12 of the exact inverse.

    Checked by: tests/accounting/fixed/test_optimal.py.

    A delta that the steps use up exactly leaves nothing for losses: epsilon is then the
    largest loss, the sum of the epsilons.

    Raises:
        UnsupportedCost: If a step is neither a Gaussian nor (epsilon, delta)-DP.
        InvalidCost: If delta does not cover the deltas of the steps, or the steps have
            too many different epsilons.
    """
    sequence = _check_sequence(FixedSequence.of(parts))
    room = _room(sequence, delta)
    if room < 0 or (room == 0 and sequence.mu_squared):
        lost = bound_above(lambda mp: _lost(mp, sequence.lost))
        gaussian_hint = "" if room else ", and Gaussian noise needs more"
        msg = (
            f"delta {short_down(delta)} does not cover the steps: their own deltas "
            f"come to {short_down(lost)}, 1 minus the product of all 1 - delta"
            f"{gaussian_hint}. Give more delta or use fewer steps."
        )
        raise InvalidCost(msg, name="delta", value=delta, low=lost)

    def spare(mp: Any) -> Any:
        return _spare(mp, sequence, delta)

    if sequence.mu_squared:
        return _root(sequence, delta, spare)
    if room == 0:
        return sequence.highest
    epsilon = bound_above(lambda mp: _inverse(mp, sequence, spare(mp)))
    return min(epsilon, sequence.highest)


def largest_loss(parts: Parts, delta: Fraction) -> Fraction | None:
    """Return the sum of the epsilons if they are finite and delta covers the deltas."""
    try:
        sequence = FixedSequence.of(parts)
    except UnsupportedCost:
        return None
    finite = not sequence.mu_squared and _room(sequence, delta) >= 0
    return sequence.highest if finite else None


def _spare(mp: Any, sequence: FixedSequence, delta: Fraction) -> Any:
    """Return the remaining part of delta for losses."""
    lost = _lost(mp, sequence.lost)
    return (to_real(mp, delta) - lost) / (1 - lost)


def _room(sequence: FixedSequence, delta: Fraction) -> Fraction:
    """Return `_spare`, about, of the right sign; zero for negligible amounts."""
    try:
        room = evaluate(lambda mp: _spare(mp, sequence, delta))
    except UnsettledBound:
        room = Fraction(0)
    if room:
        return room
    # No number of digits decides between equal numbers: fractions do.
    covered = math.prod((1 - lost) ** count for lost, count in sequence.lost)
    return Fraction(-1 if 1 - covered > delta else 0)


def _check_sequence(sequence: FixedSequence) -> FixedSequence:
    if not sequence.is_small:
        msg = (
            f"{sequence.losses} combinations of outcomes are too many to compose "
            "exactly; use equal epsilons for most steps, or the accountant pld."
        )
        raise InvalidCost(msg, name="steps", value=sequence.losses, high=MOST_LOSSES)
    return sequence


def _lost(mp: Any, lost: tuple[tuple[Fraction, int], ...]) -> Any:
    """Return 1 - prod (1 - delta)**count without cancellation."""
    return -mp.expm1(sum((n * mp.log1p(-to_real(mp, d)) for d, n in lost), mp.mpf(0)))


@lru_cache(maxsize=64)
def _sum_losses(
    responses: tuple[tuple[Fraction, int], ...],
) -> tuple[tuple[Fraction, tuple[int, ...]], ...]:
    """Return all losses, largest first, and how many tops each group lost for it."""
    losses = []
    for lows in itertools.product(*(range(count + 1) for _, count in responses)):
        loss = Fraction(0)
        for (epsilon, count), low in zip(responses, lows, strict=True):
            loss += (count - 2 * low) * epsilon
        losses.append((loss, lows))
    return tuple(sorted(losses, key=lambda pair: pair[0], reverse=True))


def _binomials(mp: Any, epsilon: Fraction, count: int) -> list[Any]:
    """Return the probabilities of 0, 1, ... bottoms among some responses."""
    ratio = mp.exp(-to_real(mp, epsilon))
    term = mp.exp(-count * mp.log1p(ratio))
    terms = [term]
    for low in range(count):
        term = term * ratio * (count - low) / (low + 1)
        terms.append(term)
    return terms


def _masses(mp: Any, sequence: FixedSequence) -> Callable[[tuple[int, ...]], Any]:
    tables = [_binomials(mp, epsilon, count) for epsilon, count in sequence.responses]

    def mass(lows: tuple[int, ...]) -> Any:
        product = mp.mpf(1)
        for table, low in zip(tables, lows, strict=True):
            product = product * table[low]
        return product

    return mass


@lru_cache(maxsize=64)
def _log_masses(responses: tuple[tuple[Fraction, int], ...]) -> tuple[float, ...]:
    """Return the log probabilities that `_sum_losses` orders, to a few digits."""

    def one(epsilon: Fraction, count: int, low: int) -> float:
        eps, ways = float(epsilon), math.lgamma(count + 1)
        ways -= math.lgamma(low + 1) + math.lgamma(count - low + 1)
        return ways - low * eps - count * math.log1p(math.exp(-eps))

    return tuple(
        sum(one(*group, low) for group, low in zip(responses, lows, strict=True))
        for _, lows in _sum_losses(responses)
    )


def _divergence(
    mp: Any, sequence: FixedSequence, epsilon: Any, floor: float = -math.inf
) -> Any:
    """Return the hockey-stick divergence at epsilon, without the lost mass.

    A Gaussian's delta is at most 1, and that is what losses of a log probability below
    the floor are given.
    """
    mass, total = _masses(mp, sequence), mp.mpf(0)
    mu = mp.sqrt(to_real(mp, sequence.mu_squared))
    likely = _log_masses(sequence.responses)
    for (loss, lows), size in zip(_sum_losses(sequence.responses), likely, strict=True):
        remaining = epsilon - to_real(mp, loss)
        if mu and size < floor:
            total += mass(lows)
        elif mu:
            total += mass(lows) * _gaussian_delta_at(mp, remaining, mu)
        elif remaining < 0:
            total += mass(lows) * -mp.expm1(remaining)
        else:
            break
    return total


def _gaussian_delta_at(mp: Any, epsilon: Any, mu: Any) -> Any:
    """Return the delta of a Gaussian at an epsilon of any sign."""
    root_two = mp.sqrt(2)
    upper = mp.erfc((epsilon / mu - mu / 2) / root_two) / 2
    lower = mp.erfc((epsilon / mu + mu / 2) / root_two) / 2
    return upper - mp.exp(epsilon) * lower


def _inverse(mp: Any, sequence: FixedSequence, spare: Any) -> Any:
    """Return the largest log((A_j - spare) / B_j), or zero."""
    mass = _masses(mp, sequence)
    upper, lower, best = mp.mpf(0), mp.mpf(0), mp.mpf(1)
    for loss, lows in _sum_losses(sequence.responses):
        if loss <= 0:
            break
        probability = mass(lows)
        upper += probability
        lower += probability * mp.exp(-to_real(mp, loss))
        if upper > spare:
            best = max(best, (upper - spare) / lower)
    return mp.log(best)


def _root(
    sequence: FixedSequence, delta: Fraction, spare: Callable[[Any], Any]
) -> Fraction:
    with arithmetic(_ROOT_DIGITS) as mp:
        target = mp.log(spare(mp))
        floor = float(target) - _NEGLIGIBLE - math.log(sequence.losses)
        nothing = mp.exp(floor)

        def excess(epsilon: Any) -> Any:
            # Far out all digits may cancel, and the difference be below zero.
            value = _divergence(mp, sequence, epsilon, floor)
            return mp.log(max(value, nothing)) - target

        if excess(mp.mpf(0)) <= 0 and _delta(sequence, Fraction(0), floor) <= delta:
            return Fraction(0)
        root = to_fraction(falling_root(excess, mp.mpf(0), mp.mpf(1)))
    widen = _WIDEN
    while _delta(sequence, root, floor) > delta:
        root += root * widen
        widen *= 2
    return root


def shortest_improvable(epsilon: Fraction, delta: Fraction) -> int:
    """Return the least number of steps for which optimal composition beats the sum.

    Source: Hartmann et al., Table 1: the first lattice point of Kairouz, Oh, Viswanath
    2015 Thm 3.3 below k * epsilon needs (1 - e^(-2 epsilon)) (1 + e^-epsilon)^-k
    <= delta (docs/derivations/fixed.md#shortest-improvable).

    Assumes: (epsilon, 0)-DP steps. Off the lattice tiny gains exist for every k.

    Rounding: up to a whole number.

    Checked by: tests/accounting/fixed/test_optimal.py.
    """

    def steps(mp: Any) -> Any:
        eps = to_real(mp, epsilon)
        drop = mp.log(-mp.expm1(-2 * eps)) - mp.log(to_real(mp, delta))
        return drop / mp.log1p(mp.exp(-eps))

    return max(2, math.ceil(evaluate(steps)))
