"""Steps with a guarantee that their author proved, notion by notion.

Use these for a mechanism that dpflow does not have. Each has only the prices that its
notion implies: a pair without a sound price is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.base import RELATIONS, Cost
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    Number,
    exact,
    exact_delta,
    exact_epsilon,
    exact_rho,
    number_text,
    short_down,
)

ORDER_LOW, ORDER_HIGH = Fraction(10001, 10000), Fraction(10**6)
#: As many as a filter takes.
_MOST_ORDERS = 256
_MU_LOW, _MU_HIGH = Fraction(1, 10**12), Fraction(10**6)


def exact_order(value: object) -> Fraction:
    """Read an order: from 1.0001 to a million."""
    return exact(value, name="order", low=ORDER_LOW, high=ORDER_HIGH)


@dataclass(frozen=True, init=False, repr=False)
class _Proven(Cost, named=False):
    """A step with a guarantee that may hold for one neighbouring relation only."""

    relation: str | None

    @property
    def relations(self) -> tuple[str, ...]:
        """The neighbouring relations that the guarantee holds for."""
        return RELATIONS if self.relation is None else (self.relation,)

    def _set_for(self, relation: str | None, **values: Fraction) -> None:
        if relation not in (None, *RELATIONS):
            msg = f"relation is one of {', '.join(RELATIONS)}; got {relation!r:.60}."
            raise InvalidCost(msg, name="relation", value=repr(relation)[:60])
        object.__setattr__(self, "relation", relation)
        self._set(**values)

    def _numbers(self) -> Iterator[tuple[str, Any]]:
        yield from sorted(super()._numbers(), key=lambda pair: pair[0] == "relation")


@dataclass(frozen=True, init=False, repr=False)
class WithEpsilon(_Proven, named=False):
    """A step that one epsilon describes."""

    noise_powers = (("epsilon", -1),)

    epsilon: Fraction

    def __init__(self, *, epsilon: Number, relation: str | None = None) -> None:
        self._set_for(relation, epsilon=exact_epsilon(epsilon))


@dataclass(frozen=True, init=False, repr=False)
class _WithDelta(WithEpsilon, named=False):
    delta: Fraction

    def __init__(
        self, *, epsilon: Number, delta: Number, relation: str | None = None
    ) -> None:
        if exact(epsilon, name="epsilon") == 0:
            msg = (
                "epsilon must be positive, got 0. Declare a (0, delta)-DP step as "
                f"OutputDP({{'any': 0}}, delta={delta})."
            )
            raise InvalidCost(msg, name="epsilon", value="0")
        exact_numbers = {"epsilon": exact_epsilon(epsilon), "delta": exact_delta(delta)}
        self._set_for(relation, **exact_numbers)


@dataclass(frozen=True, init=False, repr=False)
class _WithRho(_Proven, named=False):
    noise_powers = (("rho", -2),)

    rho: Fraction

    def __init__(self, *, rho: Number, relation: str | None = None) -> None:
        self._set_for(relation, rho=exact_rho(rho))


@dataclass(frozen=True, init=False, repr=False)
class PureDP(WithEpsilon):
    """Any (epsilon, 0)-differentially private step.

    Args:
        epsilon: Its guarantee.
        relation: The neighbouring relation that the guarantee holds for. Default: the
            policy's, whichever it is.

    Raises:
        InvalidCost: If epsilon is not a positive finite number of sane size.
    """


@dataclass(frozen=True, init=False, repr=False)
class ApproxDP(_WithDelta):
    """Any (epsilon, delta)-differentially private step.

    Args:
        epsilon: Its epsilon.
        delta: Its delta; zero makes it a `PureDP` step.
        relation: The neighbouring relation that the guarantee holds for. Default: the
            policy's, whichever it is.

    Raises:
        InvalidCost: If a number is out of range.
    """


@dataclass(frozen=True, init=False, repr=False)
class ZCDP(_WithRho):
    """Any rho-zero-concentrated differentially private step.

    Args:
        rho: Its guarantee: the Renyi divergence of each order a is at most a * rho.
        relation: The neighbouring relation that the guarantee holds for. Default: the
            policy's, whichever it is.

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
        relation: The neighbouring relation that the guarantee holds for. Default: the
            policy's, whichever it is.

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
        relation: The neighbouring relation that the guarantee holds for. Default: the
            policy's, whichever it is.

    Raises:
        InvalidCost: If a number is out of range.
    """

    delta: Fraction

    def __init__(
        self, *, rho: Number, delta: Number, relation: str | None = None
    ) -> None:
        self._set_for(relation, rho=exact_rho(rho), delta=exact_delta(delta))


@dataclass(frozen=True, init=False, repr=False)
class RenyiDP(_Proven):
    """Any step with a bound on its Renyi divergence of one order.

    The bound holds for lower orders too, since the divergence grows with the order.
    It says nothing about higher orders.

    Args:
        order: The order, in [1.0001, 1e6].
        epsilon: The bound on the divergence of that order, both ways round.
        relation: The neighbouring relation that the guarantee holds for. Default: the
            policy's, whichever it is.

    Raises:
        InvalidCost: If a number is out of range.
    """

    noise_powers = (("epsilon", -2),)

    order: Fraction
    epsilon: Fraction

    def __init__(
        self, *, order: Number, epsilon: Number, relation: str | None = None
    ) -> None:
        bound = exact_rho(epsilon, name="epsilon")
        self._set_for(relation, order=exact_order(order), epsilon=bound)


@dataclass(frozen=True, init=False, repr=False)
class RenyiCurve(_Proven):
    """Any step with bounds on its Renyi divergence of several orders.

    It has a price at exactly these orders: name the orders of the filter, which are
    fixed before the first charge. `dpflow.interop.from_dp_event` makes such curves.

    Args:
        curve: Order -> bound on the divergence of that order, both ways round; at most
            256 orders, each in [1.0001, 1e6].
        relation: The neighbouring relation that the bounds hold for. Default: the
            policy's, whichever it is.
        source: Origin of the numbers, such as a library and its version. The journal
            stores 300 characters; two curves that differ in it alone are equal.

    Raises:
        InvalidCost: If a number is out of range, two orders are equal, or there is no
            such relation.

    Examples:
        >>> RenyiCurve({8: "0.02", 16: "0.05"})
        RenyiCurve({8: 0.02, 16: 0.05})
    """

    curve: tuple[tuple[Fraction, Fraction], ...]
    source: str | None = field(compare=False)

    def __init__(
        self,
        curve: Mapping[Any, Number],
        *,
        relation: str | None = None,
        source: str | None = None,
    ) -> None:
        bounds: dict[Fraction, Fraction] = {}
        if isinstance(curve, Mapping):
            for order, bound in curve.items():
                name = f"epsilon of order {order}"
                bounds[exact_order(order)] = exact_rho(bound, name=name)
        if not 0 < len(bounds) == len(curve) <= _MOST_ORDERS:
            msg = (
                f"a RenyiCurve maps 1 to {_MOST_ORDERS} different orders to bounds, "
                f"got {curve!r:.60}."
            )
            raise InvalidCost(msg, name="curve", value=repr(curve)[:60])
        object.__setattr__(self, "curve", tuple(sorted(bounds.items())))
        self._set_for(relation)
        object.__setattr__(self, "source", source and str(source)[:300])

    def noisier(self, factor: Fraction) -> RenyiCurve:
        """Return the step with all bounds divided by the square of `factor`."""
        curve = {order: bound / factor**2 for order, bound in self.curve}
        return self.but(curve=curve, source=None)

    def round_noise(self) -> RenyiCurve:
        """Return the step with all bounds rounded down to four digits."""
        curve = {order: short_down(bound) for order, bound in self.curve}
        return self.but(curve=curve)

    def _numbers(self) -> Iterator[tuple[str, Any]]:
        yield "curve", {number_text(order): bound for order, bound in self.curve}
        yield "relation", self.relation
        yield "source", self.source

    def __repr__(self) -> str:
        """Write the cost as it would be constructed, without its source."""
        pairs = [f"{number_text(o)}: {number_text(bound)}" for o, bound in self.curve]
        relation = self.relation and f", relation={self.relation!r}"
        return f"RenyiCurve({{{', '.join(pairs)}}}{relation or ''})"


@dataclass(frozen=True, init=False, repr=False)
class GaussianDP(_Proven):
    """Any mu-Gaussian differentially private step.

    Its trade-off function is nowhere below that of N(0, 1) against N(mu, 1). The mu
    that the central limit theorem gives for sampled Gaussians is no such mu.

    Args:
        mu: Its guarantee.
        relation: The neighbouring relation that the guarantee holds for. Default: the
            policy's, whichever it is.

    Raises:
        InvalidCost: If mu is not a positive finite number of sane size.
    """

    noise_powers = (("mu", -1),)

    mu: Fraction

    def __init__(self, *, mu: Number, relation: str | None = None) -> None:
        self._set_for(relation, mu=exact(mu, name="mu", low=_MU_LOW, high=_MU_HIGH))
