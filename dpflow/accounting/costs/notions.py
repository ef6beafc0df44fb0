"""Steps with a guarantee that their author proved, notion by notion.

Use these for a mechanism that dpflow does not have. Each has only the prices that its
notion implies: a pair without a sound price is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import InvalidCost
from dpflow.rounding import Number, exact, exact_delta, exact_epsilon, exact_rho

_ORDER_LOW, _ORDER_HIGH = Fraction(10001, 10000), Fraction(10**6)
_MU_LOW, _MU_HIGH = Fraction(1, 10**12), Fraction(10**6)


@dataclass(frozen=True, init=False, repr=False)
class WithEpsilon(Cost, named=False):
    """A step that one epsilon describes."""

    noise_powers = (("epsilon", -1),)

    epsilon: Fraction

    def __init__(self, *, epsilon: Number) -> None:
        self._set(epsilon=exact_epsilon(epsilon))


@dataclass(frozen=True, init=False, repr=False)
class _WithDelta(WithEpsilon, named=False):
    delta: Fraction

    def __init__(self, *, epsilon: Number, delta: Number) -> None:
        if exact(epsilon, name="epsilon") == 0:
            msg = (
                "epsilon must be positive, got 0. Declare a (0, delta)-DP step as "
                f"OutputDP({{'any': 0}}, delta={delta})."
            )
            raise InvalidCost(msg, name="epsilon", value="0")
        self._set(epsilon=exact_epsilon(epsilon), delta=exact_delta(delta))


@dataclass(frozen=True, init=False, repr=False)
class _WithRho(Cost, named=False):
    noise_powers = (("rho", -2),)

    rho: Fraction

    def __init__(self, *, rho: Number) -> None:
        self._set(rho=exact_rho(rho))


@dataclass(frozen=True, init=False, repr=False)
class PureDP(WithEpsilon):
    """Any (epsilon, 0)-differentially private step.

    Args:
        epsilon: Its guarantee, for the dataset's neighbouring relation.

    Raises:
        InvalidCost: If epsilon is not a positive finite number of sane size.
    """


@dataclass(frozen=True, init=False, repr=False)
class ApproxDP(_WithDelta):
    """Any (epsilon, delta)-differentially private step.

    Args:
        epsilon: Its epsilon.
        delta: Its delta; zero makes it a `PureDP` step.

    Raises:
        InvalidCost: If a number is out of range.
    """


@dataclass(frozen=True, init=False, repr=False)
class ZCDP(_WithRho):
    """Any rho-zero-concentrated differentially private step.

    Args:
        rho: Its guarantee: the Renyi divergence of each order a is at most a * rho.

    Raises:
        InvalidCost: If rho is out of range.
    """


@dataclass(frozen=True, init=False, repr=False)
class ProbabilisticDP(_WithDelta):
    """Any step whose privacy loss exceeds epsilon with probability at most delta.

    This is stronger than `ApproxDP` of the same numbers, and odometers need it: they
    speak about the loss itself. It must hold for both orders of every two neighbouring
    datasets. For a Gaussian with mu = sensitivity / sigma the delta of a chosen epsilon
    is Phi(mu/2 - epsilon/mu), larger than its delta as `ApproxDP`.

    Args:
        epsilon: What the loss stays below.
        delta: Probability with which it does not; zero makes it a `PureDP` step.

    Raises:
        InvalidCost: If a number is out of range.
    """


@dataclass(frozen=True, init=False, repr=False)
class ApproxZCDP(_WithRho):
    """Any delta-approximately rho-zero-concentrated differentially private step.

    Closeness of delta in total variation to a rho-zCDP step is another notion, which
    this does not cover: there a delta larger by a factor of 1 + e**epsilon is needed.

    Args:
        rho: Its rho, once mass `delta` is removed from each side. Closeness up to delta
            in total variation is another notion, and a weaker one.
        delta: Its delta; zero makes it a `ZCDP` step.

    Raises:
        InvalidCost: If a number is out of range.
    """

    delta: Fraction

    def __init__(self, *, rho: Number, delta: Number) -> None:
        self._set(rho=exact_rho(rho), delta=exact_delta(delta))


@dataclass(frozen=True, init=False, repr=False)
class RenyiDP(Cost):
    """Any step with a bound on its Renyi divergence of one order.

    The bound holds for lower orders too, since the divergence grows with the order.
    It says nothing about higher orders.

    Args:
        order: The order, in [1.0001, 1e6].
        epsilon: The bound on the divergence of that order, both ways round.

    Raises:
        InvalidCost: If a number is out of range.
    """

    noise_powers = (("epsilon", -2),)

    order: Fraction
    epsilon: Fraction

    def __init__(self, *, order: Number, epsilon: Number) -> None:
        self._set(
            order=exact(order, name="order", low=_ORDER_LOW, high=_ORDER_HIGH),
            epsilon=exact_rho(epsilon, name="epsilon"),
        )


@dataclass(frozen=True, init=False, repr=False)
class GaussianDP(Cost):
    """Any mu-Gaussian differentially private step.

    Its trade-off function is nowhere below that of N(0, 1) against N(mu, 1). The mu
    that the central limit theorem gives for sampled Gaussians is no such mu.

    Args:
        mu: Its guarantee.

    Raises:
        InvalidCost: If mu is not a positive finite number of sane size.
    """

    noise_powers = (("mu", -1),)

    mu: Fraction

    def __init__(self, *, mu: Number) -> None:
        self._set(mu=exact(mu, name="mu", low=_MU_LOW, high=_MU_HIGH))
