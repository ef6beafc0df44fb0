"""Costs from other libraries' descriptions of a mechanism.

Both functions refuse a description without an exact translation. Neither imports the
other library until it is called.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from dpflow.accounting.costs.base import Cost, whole_number
from dpflow.accounting.costs.composed import Composed, Repeated
from dpflow.accounting.costs.library_curves import batch_divergence, library_curve
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    RandomizedResponse,
)
from dpflow.accounting.costs.notions import (
    ZCDP,
    ApproxDP,
    ApproxZCDP,
    PureDP,
    exact_order,
)
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.interrupts import without_interrupts
from dpflow.rounding import (
    RATIO_HIGH,
    RATIO_LOW,
    SCALE_HIGH,
    Number,
    bound_below,
    exact,
    number_from_text,
    short_down,
    to_real,
)

_DIGITS = 12  # of a noise that is rounded down
_WRITTEN = ("module_name", "class_name", "_fields")
#: Fields of events that releases of dp-accounting up to 0.6 lack.
_FIELDS = {
    "DiscreteGaussianDpEvent": {"sensitivity", "sigma"},
    "EpsilonDeltaDpEvent": {"epsilon", "delta"},
    "ExponentialMechanismDpEvent": {"epsilon"},
}


#: Makes the library's curve of an event; None if only exact costs are wanted.
_Curve = Callable[..., Cost] | None


def from_dp_event(
    event: Any, orders: Iterable[Number] | None = None, *, zero_out: bool = False
) -> Cost:
    """Translate an event of dp-accounting into a cost.

    Numbers of the event mean the shortest decimal that names them, as everywhere. With
    `orders`, an event without a cost of its own becomes a `RenyiCurve` that the
    library's RDP accountant computes: fixed-size batches without replacement, tree
    aggregation, the best of a random number of runs, and others that it knows.

    Args:
        event: A `dp_accounting.DpEvent`: Gaussian, Laplace, discrete Laplace,
            discrete Gaussian, exponential mechanism, (epsilon, delta)-DP, zCDP,
            randomized response, Gaussians on one Poisson sample, and compositions of
            these. A mapping with `class_name` and the fields is read as that event.
        orders: Orders of computed curves: those of the filter `rdp`.
        zero_out: Promise that removing a record has the effect of zeroing it, with all
            other records in their places. Curves are then those of the library's
            zero-out neighbours (REPLACE_SPECIAL), for add-or-remove.

    Returns:
        The cost of the event. A Poisson-sampled event holds for add-or-remove
        neighbours only, a randomized response and batches of fixed size for
        replace-one (`mechanism_costs.relations_of`).

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
    curve = None
    if isinstance(orders, str) or not isinstance(orders, Iterable | None):
        msg = f"orders= takes a list of numbers, such as [8, 16], got {orders!r:.60}."
        raise InvalidCost(msg, name="orders", value=repr(orders))
    if orders is not None:
        chosen = [exact_order(order) for order in orders]
        curve = partial(library_curve, orders=chosen, zero_out=zero_out)
    translated = _without_nothing(event, curve)
    if translated is None:
        msg = (
            "an event that does nothing costs nothing: there is no step to charge. "
            "Leave it out."
        )
        raise UnsupportedCost(msg, theorem="any", mechanism="NoOpDpEvent")
    return translated


def _without_nothing(event: Any, curve: _Curve) -> Cost | None:
    """Translate an event; None if it does nothing."""
    name, event = _read_event(event)
    if name == "NoOpDpEvent":
        return None
    if name == "SelfComposedDpEvent":
        return _translate_repeated(event, curve)
    if name == "ComposedDpEvent":
        parts = [_without_nothing(part, curve) for part in _parts(event)]
        costs = [cost for cost in parts if cost is not None]
        return Composed(*costs) if costs else None
    if name == "PoissonSampledDpEvent":
        return _translate_sampled(event)
    translate = _EVENTS.get(name)
    if translate is not None and not getattr(event, "xi", 0):
        return translate(event)
    if curve is None:
        raise _unknown_event(event)
    if name == "SampledWithoutReplacementDpEvent":
        return _batch(event, curve)
    # The library believes the numbers and classes of the parts.
    if hasattr(event, "event") and _without_nothing(event.event, curve) is None:
        return None
    return curve(event)


def _translate_repeated(event: Any, curve: _Curve) -> Cost | None:
    cost = _without_nothing(event.event, curve)
    if cost is None or event.count == 0:
        return None
    return Repeated(cost, event.count)


def _translate_sampled(event: Any) -> Cost | None:
    """Translate one Gaussian over one sample; several share their sample."""
    noise = _noise(event)
    if noise is None or event.sampling_probability == 0:
        return None
    return PoissonSampledGaussian(
        sampling_rate=event.sampling_probability, noise_multiplier=noise
    )


def _batch(event: Any, curve: Callable[..., Cost]) -> Cost | None:
    """Return the curve of Gaussians over a batch of fixed size."""
    noise = _noise(event)
    size = whole_number(event.source_dataset_size, name="size", low=1, high=10**12)
    batch = whole_number(event.sample_size, name="sample_size", low=0, high=size)
    if noise is None or batch == 0:
        return None
    least = partial(batch_divergence, rate=Fraction(batch, size), noise=noise)
    return curve(event, least=least)


def _noise(event: Any) -> Fraction | None:
    """Return the noise multiplier of all Gaussians on one sample; None without any."""
    noises = _noises(event.event, event)
    if noises.total() <= 1:
        return next(iter(noises), None)
    # On each sample they are one Gaussian of mu squared sum 1 / z^2.
    precision = sum(count / multiplier**2 for multiplier, count in noises.items())
    root = bound_below(lambda mp: 1 / mp.sqrt(to_real(mp, precision)))
    return number_from_text(short_down(root, _DIGITS))


def _noises(event: Any, outermost: Any) -> Counter[Fraction]:
    """Return the noise multipliers of some Gaussians, and how often each occurs."""
    name, event = _read_event(event)
    if name == "GaussianDpEvent":
        noise = exact(
            event.noise_multiplier,
            name="noise_multiplier",
            low=RATIO_LOW,
            high=RATIO_HIGH,
        )
        return Counter([noise])
    if name == "SelfComposedDpEvent":
        times = whole_number(event.count, name="count", low=0, high=10**9)
        inner = _noises(event.event, outermost)
        return Counter(
            {noise: count * times for noise, count in inner.items() if times}
        )
    if name == "ComposedDpEvent":
        parts = [_noises(part, outermost) for part in _parts(event)]
        return sum(parts, Counter())
    if name != "NoOpDpEvent":
        raise _unknown_event(outermost)
    return Counter()


def _read_event(event: Any) -> tuple[str, Any]:
    """Return an event and its name; a mapping becomes an event."""
    written = isinstance(event, Mapping)
    name = str(event.get("class_name")) if written else type(event).__name__
    events = import_module("dp_accounting.dp_event")
    kind = getattr(events, name, None) if name.endswith("DpEvent") else None
    fields = {k: event[k] for k in event if k not in _WRITTEN} if written else {}
    if kind is None and _FIELDS.get(name) == fields.keys() - {"dimension"}:
        return name, SimpleNamespace(**fields)
    if written and kind is not None:
        if "event" in fields:
            inner = _read_event(fields["event"])[1]
            # What has no class stays as it is written.
            if type(inner) is not SimpleNamespace:
                fields["event"] = inner
        try:
            event = kind(**fields)
        except without_interrupts(TypeError):
            raise _unknown_event(event) from None
    # A subclass may change the meaning: only the library's own classes are accepted.
    if kind is None or type(event) is not kind:
        raise _unknown_event(event)
    return name, event


def _parts(event: Any) -> Sequence[Any]:
    if isinstance(event.events, str) or not isinstance(event.events, Sequence):
        raise _unknown_event(event)
    return event.events


def _from_randomized_response(event: Any) -> Cost:
    # The event's parameter is the probability of an answer drawn from all buckets.
    noise = exact(event.noise_parameter, name="noise_parameter")
    buckets = whole_number(event.num_buckets, name="num_buckets", low=2, high=10**9)
    return RandomizedResponse(truth=1 - noise + noise / buckets, categories=buckets)


def _from_discrete_laplace(event: Any) -> Cost:
    rate = exact(event.noise_parameter, name="noise_parameter", low=1 / SCALE_HIGH)
    return DiscreteLaplace(sensitivity=event.sensitivity, scale=1 / rate)


_EVENTS: dict[str, Callable[[Any], Cost]] = {
    "DiscreteGaussianDpEvent": lambda event: DiscreteGaussian(
        sensitivity=event.sensitivity, sigma=event.sigma
    ),
    "DiscreteLaplaceDpEvent": _from_discrete_laplace,
    "EpsilonDeltaDpEvent": lambda event: _approximate(event.epsilon, event.delta),
    "ExponentialMechanismDpEvent": lambda event: ExponentialMechanism(
        epsilon=event.epsilon
    ),
    "GaussianDpEvent": lambda event: Gaussian(
        sensitivity=1, noise_multiplier=event.noise_multiplier
    ),
    "LaplaceDpEvent": lambda event: Laplace(
        sensitivity=1, scale=event.noise_multiplier
    ),
    "RandomizedResponseDpEvent": _from_randomized_response,
    "ZCDpEvent": lambda event: ZCDP(rho=event.rho),
}


def _unknown_event(event: Any) -> UnsupportedCost:
    msg = (
        f"no cost is exactly the event {event!r}. Pass orders=[...] to take the Renyi "
        "curve of dp-accounting's RDP accountant where it has one, or declare a "
        "guarantee that you can prove: PureDP, ApproxDP, ZCDP, RenyiDP or GaussianDP."
    )
    return UnsupportedCost(msg, theorem="any", mechanism=type(event).__name__)


def from_opendp(measurement: Any, d_in: Any = None) -> Cost:
    """Translate an OpenDP measurement into the cost of running it once.

    The measurement's own map is evaluated at the input distance; its answer is
    an upper bound in floating point and is taken to the last bit.

    Args:
        measurement: An `opendp` Measurement, or a query of a Context, whose privacy
            measure is MaxDivergence, ZeroConcentratedDivergence, or Approximate of one
            of these.
        d_in: Distance of neighbouring inputs, in its input metric. A query has its
            own, and its cost holds for the relation of its metric only, unless the
            distance is given.

    Raises:
        UnsupportedCost: If the measure has no exact translation.
        InvalidCost: If the loss is zero, infinite or otherwise no cost, if `d_in` is
            missing, or not the distance of the query.
    """
    opendp, relation = import_module("opendp.mod"), None
    if isinstance(measurement, import_module("opendp.context").Query):
        stated = d_in
        measurement, d_in = _of_query(measurement, d_in)
        if stated is None:
            relation = _relation_of(measurement.input_metric)
    if not isinstance(measurement, opendp.Measurement):
        kind = type(measurement).__name__
        msg = f"from_opendp takes an OpenDP measurement, got {kind}"
        raise UnsupportedCost(msg, theorem="any", mechanism=kind)
    measure = str(measurement.output_measure)
    translate = _MEASURES.get(measure)
    if translate is None:
        instead = "For a privacy profile, fix a delta first (opendp's make_fix_delta)."
        if "RenyiDivergence" in measure:
            instead = (
                "Choose an order a and declare RenyiDP(order=a, epsilon=m.map(d)(a)), "
                "m the measurement and d the distance."
            )
        msg = f"no cost exists for the privacy measure {measure}. {instead}"
        raise UnsupportedCost(msg, theorem="any", mechanism=measure)
    if d_in is None:
        msg = (
            "from_opendp needs d_in, the distance of neighbouring inputs: only a query "
            "of a Context has it. Pass d_in, or the query in place of its measurement."
        )
        raise InvalidCost(msg, name="d_in", value=None)
    cost = translate(measurement.map(d_in))
    return cost if relation is None else cost.but(relation=relation)


def _relation_of(metric: Any) -> str | None:
    """Return the neighbouring relation of a metric of OpenDP; None if it has none."""
    name = str(metric).removeprefix("FrameDistance(")
    if name.startswith(("Symmetric", "InsertDelete")):
        return "add-or-remove"
    return "replace-one" if name.startswith(("ChangeOne", "Hamming")) else None


def _of_query(query: Any, d_in: Any) -> tuple[Any, Any]:
    """Return a query's measurement and the distance that its Context gives it."""
    own = query._d_in  # noqa: SLF001
    if d_in is not None and d_in != own:
        msg = (
            f"d_in={d_in!r} is not the distance of the query, whose context has "
            f"{own!r}. Leave d_in out: the query's own is used."
        )
        raise InvalidCost(msg, name="d_in", value=repr(d_in))
    return query.resolve(), own


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
