"""Costs from what other libraries already know about a mechanism.

Both functions refuse what they cannot translate exactly. Neither imports the other
library until it is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed, Repeated
from dpflow.accounting.costs.noise import (
    DiscreteLaplace,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    RandomizedResponse,
)
from dpflow.accounting.costs.notions import ZCDP, ApproxDP, ApproxZCDP, PureDP
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import exact


def from_dp_event(event: Any) -> Cost:
    """Translate an event of dp-accounting into a cost.

    Numbers of the event mean the shortest decimal that names them, as everywhere.

    Args:
        event: A `dp_accounting.DpEvent`: Gaussian, Laplace, discrete Laplace,
            (epsilon, delta)-DP, zCDP, randomized response, Poisson-sampled Gaussian
            (or of a composition of one), and compositions of these.

    Returns:
        The cost of the event. A Poisson-sampled event holds for add-or-remove
        neighbours only, a randomized response for replace-one
        (`mechanism_costs.relations_of`).

    Raises:
        UnsupportedCost: If the event has no exact translation.
        InvalidCost: If a number of it cannot be used.

    Examples:
        >>> import dp_accounting
        >>> step = dp_accounting.PoissonSampledDpEvent(
        ...     0.01, dp_accounting.GaussianDpEvent(1.1)
        ... )
        >>> from_dp_event(dp_accounting.SelfComposedDpEvent(step, 100))
        Repeated(PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1.1), 100)
    """
    events = import_module("dp_accounting.dp_event")
    translated = _without_nothing(event, events)
    if translated is None:
        msg = (
            "an event that does nothing costs nothing: there is no step to charge. "
            "Leave it out."
        )
        raise UnsupportedCost(msg, theorem="any", mechanism="NoOpDpEvent")
    return translated


def _without_nothing(event: Any, events: Any) -> Cost | None:
    """Translate an event; None if it does nothing."""
    name = type(event).__name__
    known = getattr(events, name, None)
    # A subclass may mean anything: only the library's own classes are known.
    if known is None or type(event) is not known:
        raise _unknown_event(event)
    if name == "NoOpDpEvent":
        return None
    if name == "SelfComposedDpEvent":
        return _repeated(event, events)
    if name == "ComposedDpEvent":
        parts = [_without_nothing(part, events) for part in event.events]
        costs = [cost for cost in parts if cost is not None]
        return Composed(*costs) if costs else None
    if name == "PoissonSampledDpEvent":
        return _sampled(event, events)
    translate = _EVENTS.get(name)
    if translate is None:
        raise _unknown_event(event)
    return translate(event)


def _repeated(event: Any, events: Any) -> Cost | None:
    cost = _without_nothing(event.event, events)
    if cost is None or event.count == 0:
        return None
    return Repeated(cost, event.count)


def _sampled(event: Any, events: Any) -> Cost | None:
    """Translate one Gaussian over one sample; several share their sample."""
    inner = event.event
    if type(inner) is events.NoOpDpEvent or event.sampling_probability == 0:
        return None
    if type(inner) is not events.GaussianDpEvent:
        raise _unknown_event(event)
    return PoissonSampledGaussian(
        sampling_rate=event.sampling_probability,
        noise_multiplier=inner.noise_multiplier,
    )


def _from_zcdp(event: Any) -> Cost:
    if event.xi != 0:
        raise _unknown_event(event)
    return ZCDP(rho=event.rho)


def _from_randomized_response(event: Any) -> Cost:
    # The event's parameter is the probability of an answer drawn from all buckets.
    noise = exact(event.noise_parameter, name="noise_parameter")
    buckets = event.num_buckets
    return RandomizedResponse(truth=1 - noise + noise / buckets, categories=buckets)


def _from_discrete_laplace(event: Any) -> Cost:
    rate = exact(event.noise_parameter, name="noise_parameter")
    if rate <= 0:
        msg = f"noise_parameter must be positive, got {event.noise_parameter!r}"
        raise InvalidCost(msg, name="noise_parameter", value=event.noise_parameter)
    return DiscreteLaplace(sensitivity=event.sensitivity, scale=1 / rate)


_EVENTS: dict[str, Callable[[Any], Cost]] = {
    "DiscreteLaplaceDpEvent": _from_discrete_laplace,
    "EpsilonDeltaDpEvent": lambda event: _approximate(event.epsilon, event.delta),
    "GaussianDpEvent": lambda event: Gaussian(
        sensitivity=1, noise_multiplier=event.noise_multiplier
    ),
    "LaplaceDpEvent": lambda event: Laplace(
        sensitivity=1, scale=event.noise_multiplier
    ),
    "RandomizedResponseDpEvent": _from_randomized_response,
    "ZCDpEvent": _from_zcdp,
}


def _unknown_event(event: Any) -> UnsupportedCost:
    msg = (
        f"no cost is known to be exactly the event {event!r}. Declare what you can "
        "prove of it: PureDP, ApproxDP, ZCDP, RenyiDP or GaussianDP."
    )
    return UnsupportedCost(msg, theorem="any", mechanism=type(event).__name__)


def from_opendp(measurement: Any, d_in: Any) -> Cost:
    """Translate an OpenDP measurement into the cost of running it once.

    The measurement's own map says what it costs at the input distance; its answer is
    an upper bound in floating point and is taken to the last bit.

    Args:
        measurement: An `opendp` Measurement whose privacy measure is MaxDivergence,
            ZeroConcentratedDivergence, or Approximate of one of these.
        d_in: How far apart neighbouring inputs are, in its input metric.

    Raises:
        UnsupportedCost: If the measure has no exact translation.
        InvalidCost: If the loss is zero, infinite or otherwise no cost.
    """
    opendp = import_module("opendp.mod")
    if not isinstance(measurement, opendp.Measurement):
        kind = type(measurement).__name__
        msg = f"from_opendp takes an OpenDP measurement, got {kind}"
        raise UnsupportedCost(msg, theorem="any", mechanism=kind)
    measure = str(measurement.output_measure)
    translate = _MEASURES.get(measure)
    if translate is None:
        msg = (
            f"no cost is known for the privacy measure {measure}. For a privacy "
            "profile, fix a delta first (opendp's make_fix_delta)."
        )
        raise UnsupportedCost(msg, theorem="any", mechanism=measure)
    return translate(measurement.map(d_in))


def _bits(value: float) -> Fraction:
    """Return exactly the float: the bound holds for it, not for a shorter decimal."""
    if not isinstance(value, float) or not math.isfinite(value):
        msg = f"the measurement promises no finite loss at this d_in: {value!r}"
        raise InvalidCost(msg, name="d_out", value=repr(value))
    return Fraction(value)


def _approximate(epsilon: Any, delta: Any) -> Cost:
    return ApproxDP(epsilon=epsilon, delta=delta) if delta else PureDP(epsilon=epsilon)


def _approximate_zcdp(rho: Fraction, delta: Fraction) -> Cost:
    return ApproxZCDP(rho=rho, delta=delta) if delta else ZCDP(rho=rho)


_MEASURES: dict[str, Callable[[Any], Cost]] = {
    "MaxDivergence": lambda out: PureDP(epsilon=_bits(out)),
    "ZeroConcentratedDivergence": lambda out: ZCDP(rho=_bits(out)),
    "Approximate(MaxDivergence)": lambda out: _approximate(*map(_bits, out)),
    "Approximate(ZeroConcentratedDivergence)": lambda out: _approximate_zcdp(
        *map(_bits, out)
    ),
}
