"""What a list of steps asks of each theorem: how much of it fits, and what it needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

from dpflow.accounting import FILTERS, Filter, Odometer, make_filter, make_odometer
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import PoissonSampledGaussian
from dpflow.accounting.rules.rule import Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError, InvalidCost, UnsupportedCost
from dpflow.forecast.counts import (
    NO_END,
    Workload,
    WorkloadStep,
    count_admitted,
    in_turn,
    repeated,
    round_of,
)
from dpflow.rounding import float_up, number_from_text, number_text, short_up

#: Budgets between which a theorem's need is searched, and how closely.
_LEAST, _MOST, _CLOSE = Fraction(1, 10**6), Fraction(10**4), Fraction(1005, 1000)
#: A share of a budget from which on it is called used up, and how often it is searched.
_FULL, _ALMOST, _TRIES = 0.99, 0.995, 20
#: Orders that are tried for sampled steps, whose prices are exact at whole ones.
_ORDERS = (*range(2, 33), 40, 48, 64)
_NO_SUM = "it keeps a tally for each person, so a list of steps does not say what fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a filter makes of a workload.

    Attributes:
        theorem: The filter's name.
        admitted: Steps before the first refusal.
        rounds: How often the whole workload fits; None if there is no end, or if
            nothing was asked.
        needs: The least epsilon at the same delta for which all of it fits, rounded
            up; None where it is not known.
        problem: Why the theorem has no price for it, or "".
        order: The best whole order of `renyi`, tried for sampled steps.
    """

    theorem: str
    admitted: int = 0
    rounds: int | None = None
    needs: Fraction | None = None
    problem: str = ""
    order: int | None = None

    @property
    def filter(self) -> str:
        """What a policy writes after `filter:`."""
        if self.order is None:
            return self.theorem
        return f"{{theorem: {self.theorem}, order: {self.order}}}"

    def as_json(self) -> dict[str, Any]:
        """Return what it makes of the workload, for programs."""
        return {
            "theorem": self.theorem,
            "order": self.order,
            "priced": not self.problem,
            "steps_admitted": None if self.problem else self.admitted,
            "runs": self.rounds,
            "needs_epsilon": None if self.needs is None else float_up(self.needs),
            "problem": self.problem or None,
        }


def merged(steps: Iterable[WorkloadStep]) -> Workload:
    """Write equal steps in a row as one."""
    found: list[WorkloadStep] = []
    for (cost, outcome), group in itertools.groupby(
        steps, key=lambda step: (step.cost, step.outcome)
    ):
        found.append(WorkloadStep(cost, sum(step.times for step in group), outcome))
    return tuple(found)


def length(workload: Workload) -> int:
    """Count the steps of a workload."""
    return sum(step.times for step in workload)


def priced(
    rule: Rule, step: WorkloadStep, used: Tally | None = None
) -> tuple[Tally, Tally]:
    """Return what a step reserves and what it posts, with nothing beside it.

    Raises:
        UnsupportedCost: If the theorem has no sound price for it.
    """
    cost = step.cost
    return rule.price(cost, used), rule.price_realised(cost, step.outcome, used)


def trace(pairs: Iterable[tuple[Tally, Tally, int]], zero: Tally) -> Iterator[Tally]:
    """Yield what must be admitted, before each step's last time, then the sum.

    Steps run one after the other, so what is asked at a step is all that was posted
    before it, and its own worst case.
    """
    total = zero
    for reserved, posted, count in pairs:
        yield total + posted.times(count - 1) + reserved
        total = total + posted.times(count)
    yield total


def steps_admitted(rule: Filter, workload: Workload) -> int:
    """Count the steps, in their order, that fit an empty tally.

    Raises:
        UnsupportedCost: If the theorem has no sound price for one.
    """
    total, found = rule.zero(), 0
    if not rule.steady:
        for step in workload:
            once = in_turn(partial(priced, rule), rule.admits, step)
            total, fit = repeated(once, total, step.times)
            found += fit
            if fit < step.times:
                break
        return found
    for (reserved, posted), count in [(priced(rule, s), s.times) for s in workload]:
        fit = _admitted_of(rule, total, reserved, posted, count)
        found += fit
        if fit < count:
            break
        total = total + posted.times(count)
    return found


def _admitted_of(
    rule: Filter, total: Tally, reserved: Tally, posted: Tally, count: int
) -> int:
    def admits(number: int) -> bool:
        fits = rule.admits(total + posted.times(number - 1) + reserved)
        return number <= count and fits

    return count_admitted(admits) or 0


def rounds_admitted(rule: Filter, workload: Workload) -> int | None:
    """Count how often a whole workload fits an empty tally; None if without end.

    Raises:
        UnsupportedCost: If the theorem has no sound price for a step.
    """
    if not rule.steady:
        once = round_of(partial(priced, rule), rule.admits, workload)
        rounds = repeated(once, rule.zero())[1]
        return rounds if rounds < NO_END else None
    prices = [(*priced(rule, step), step.times) for step in workload]
    *peaks, total = trace(prices, rule.zero())
    return count_admitted(
        lambda number: all(
            rule.admits(total.times(number - 1) + peak) for peak in (*peaks, total)
        )
    )


def fit_of(
    theorem: str,
    workload: Workload,
    *,
    epsilon: Fraction,
    delta: Fraction,
    options: Mapping[str, Any] | None = None,
    needs: bool = True,
) -> Fit:
    """Say what a filter, made anew for a budget, makes of a workload.

    Args:
        theorem: A name in `FILTERS`.
        workload: At least one step.
        epsilon: The budget's.
        delta: The budget's.
        options: The theorem's own options; default: its defaults.
        needs: Whether to search the least epsilon, which takes a second or so.
    """

    def make(budget: Fraction) -> Filter:
        return make_filter(theorem, epsilon=budget, delta=delta, **(options or {}))

    try:
        if theorem == "individual":
            return Fit(theorem=theorem, problem=_NO_SUM)
        if theorem == "sequence":
            return _fit_of_sequence(workload, epsilon, delta)
        rule = make(epsilon)
        return Fit(
            theorem=theorem,
            admitted=steps_admitted(rule, workload),
            rounds=rounds_admitted(rule, workload),
            needs=_least_epsilon(make, workload, epsilon) if needs else None,
        )
    except (UnsupportedCost, InvalidCost, ConfigurationError) as error:
        return Fit(theorem=theorem, problem=error.message)


def fits(
    workload: Workload,
    *,
    epsilon: Fraction,
    delta: Fraction,
    own: Mapping[str, object] | None = None,
    needs: bool = True,
) -> list[Fit]:
    """Say what every filter makes of a workload, the one that goes furthest first.

    For sampled steps `renyi` is there twice: as it is, and with its best whole order.

    Args:
        workload: At least one step.
        epsilon: The budget's.
        delta: The budget's.
        own: A policy's `theorem` with its options; others have their defaults.
        needs: As for `fit_of`.
    """
    chosen = dict(own or {})
    theorem = chosen.pop("theorem", None)
    options = {k: v for k, v in chosen.items() if k not in ("epsilon", "delta")}
    found = [
        fit_of(
            name,
            workload,
            epsilon=epsilon,
            delta=delta,
            options=options if name == theorem else {},
            needs=needs,
        )
        for name in FILTERS
    ]
    if any(_is_sampled(step.cost) for step in workload):
        found += _with_best_order(workload, epsilon, delta, needs=needs)
    return sorted(found, key=_furthest)


def _is_sampled(cost: Cost) -> bool:
    parts = getattr(cost, "costs", getattr(cost, "substeps", (cost,))[:1])
    if parts == (cost,):
        return isinstance(cost, PoissonSampledGaussian)
    return any(map(_is_sampled, parts))


def _with_best_order(
    workload: Workload, epsilon: Fraction, delta: Fraction, *, needs: bool
) -> Iterator[Fit]:
    """Yield the fit of the whole order that admits most, if one admits anything."""
    budget = {"epsilon": epsilon, "delta": delta}

    def fit(order: int, *, needs: bool) -> Fit:
        options = {"order": order}
        found = fit_of("renyi", workload, **budget, options=options, needs=needs)
        return replace(found, order=order)

    tried = [fit(order, needs=False) for order in _ORDERS]
    best = min(tried, key=lambda fit: (_furthest(fit)[:2], -fit.admitted))
    if best.admitted and best.order is not None:
        yield fit(best.order, needs=needs)


def _furthest(fit: Fit) -> tuple[bool, int, Fraction, str]:
    endless = fit.rounds is None and not fit.problem and fit.theorem != "sequence"
    rounds = NO_END if endless else (fit.rounds or 0)
    return bool(fit.problem), -max(rounds, 0), fit.needs or _MOST, fit.theorem


def _least_epsilon(
    make: Callable[[Fraction], Filter], workload: Workload, start: Fraction
) -> Fraction | None:
    """Search the least epsilon for which all of a workload fits.

    What is returned was tried; it is within half a percent of the least.
    """

    def enough(epsilon: Fraction) -> bool:
        try:
            return steps_admitted(make(epsilon), workload) == length(workload)
        except (UnsupportedCost, InvalidCost):
            return False

    low = high = start
    if enough(start):
        while enough(low) and low > _LEAST:
            low, high = low / 2, low
    else:
        while not enough(high):
            if high > _MOST:
                return None
            low, high = high, 2 * high
    while high / low > _CLOSE:
        middle = _rough((low + high) / 2)
        low, high = (low, middle) if enough(middle) else (middle, high)
    for digits in (1, 2, 3):
        round_one = number_from_text(short_up(low, digits))
        if low < round_one < high and enough(round_one):
            return round_one
    return high


def _rough(number: Fraction) -> Fraction:
    """Shorten a number between two others that are half a percent apart."""
    return Fraction(f"{float(number):.5g}")


@lru_cache(maxsize=512)
def epsilon_used(rule: Filter, used: Tally) -> Fraction | None:
    """Return the least epsilon of which a budget would have admitted so much.

    It is the theorem's own reading of a tally, as if that budget had been set in
    advance: the same theorem, delta and constants. It is no bound of its own at a time
    that outputs chose; what is guaranteed is the budget of the rule.

    Args:
        rule: The filter.
        used: What is settled and held under it.

    Returns:
        An epsilon that was tried and admits it, within about a percent of the least;
        zero for nothing, and None if no budget is known that admits it.
    """
    if not any(used.amounts):
        return Fraction(0)
    # By its name, for to import a theorem takes long.
    if rule.theorem == "sequence":
        if not rule.admits(used):
            return None
        known: Fraction = rule.spent(used)  # type: ignore[attr-defined]
        return known
    if rule.theorem == "portfolio":
        # Any member may admit, with its own part of delta.
        covering: list[tuple[Filter, Tally]] = rule.covering(used)  # type: ignore[attr-defined]
        each = [epsilon_used(member, own) for member, own in covering]
        return min((e for e in each if e is not None), default=None)
    constants = {k: v for k, v in rule.parameters().items() if k != "epsilon"}

    def share(epsilon: Fraction) -> float:
        try:
            return make_filter(**constants, epsilon=epsilon).used_fraction(used)
        except InvalidCost:
            return float("inf")

    high, of_high = rule.epsilon, share(rule.epsilon)
    while of_high > 1:
        if high > _MOST:
            return None
        high, of_high = 2 * high, share(2 * high)
    return _least_share(share, high, of_high)


def _least_share(
    share: Callable[[Fraction], float], high: Fraction, of_high: float
) -> Fraction:
    """Search the least epsilon of which a tally uses at most all.

    The share falls about as a power of epsilon, which a line through logarithms finds.
    """
    low, of_low = Fraction(0), float("inf")
    power = 2.0
    for _ in range(_TRIES):
        if of_high > _FULL or (low and high / low < _CLOSE):
            break
        if math.isfinite(of_low):
            power = math.log(of_low / of_high) / math.log(high / low)
        guess = high * Fraction((of_high / _ALMOST) ** (1 / power))
        # What lies next to a budget that was tried tells nothing new.
        guess = _rough(guess if guess > low * _CLOSE else (low + high) / 2)
        of_guess = share(guess)
        if of_guess <= 1:
            power = math.log(of_guess / of_high) / math.log(high / guess)
            high, of_high = guess, of_guess
        else:
            low, of_low = guess, of_guess
    return high


# A sequence, which is made for its steps


def _fit_of_sequence(workload: Workload, epsilon: Fraction, delta: Fraction) -> Fit:
    """Say what a sequence of these steps, fixed in advance, makes of them."""
    needs = _sequence_needs(workload, delta)

    def fit(count: int) -> bool:
        return count <= length(workload) and (
            _sequence_needs(_first(workload, count), delta) <= epsilon
        )

    whole = needs <= epsilon
    return Fit(
        theorem="sequence",
        admitted=length(workload) if whole else count_admitted(fit) or 0,
        rounds=count_admitted(
            lambda n: _sequence_needs(workload * n, delta) <= epsilon
        ),
        needs=needs,
    )


def _sequence_needs(workload: Workload, delta: Fraction) -> Fraction:
    counts: dict[Cost, int] = {}
    for step in workload:
        counts[step.cost] = counts.get(step.cost, 0) + step.times
    steps = [{"cost": cost, "times": count} for cost, count in counts.items()]
    try:
        rule = make_filter("sequence", epsilon=_MOST, delta=delta, steps=steps)
    except InvalidCost as error:
        if error.name == "steps" and error.high == _MOST:
            # It fits no budget at all.
            return _MOST * 2
        raise
    needed: Sequence[Fraction] = rule.epsilons  # type: ignore[attr-defined]
    return needed[-1]


def _first(workload: Workload, count: int) -> Workload:
    """Return the first steps of a workload."""
    found: list[WorkloadStep] = []
    for step in workload:
        taken = min(step.times, count)
        count -= taken
        if taken:
            found.append(WorkloadStep(step.cost, taken, step.outcome))
    return tuple(found)


# Odometers


@dataclass(frozen=True, slots=True, kw_only=True)
class OdometerReading:
    """What an odometer reads after a workload; inf where it is undefined.

    Attributes:
        theorem: The odometer's name.
        epsilon: The bound on the loss, rounded up.
        problem: Why it has none, or "".
    """

    theorem: str
    epsilon: float = float("inf")
    problem: str = ""


def reading_of(
    theorem: str, workload: Workload, *, tuned_for: Fraction, delta: Fraction
) -> OdometerReading:
    """Say what an odometer reads after a workload.

    Args:
        theorem: A name in `ODOMETERS`.
        workload: The steps.
        tuned_for: The reading for which its constants are chosen in advance.
        delta: Probability with which the reading may fail.
    """
    if theorem == "individual":
        return OdometerReading(theorem=theorem, problem=_NO_SUM)
    try:
        odometer = _tuned(theorem, tuned_for, delta)
        total = odometer.zero()
        for step in workload:
            total = total + priced(odometer, step)[1].times(step.times)
        return OdometerReading(theorem=theorem, epsilon=odometer.read(total))
    except (UnsupportedCost, InvalidCost) as error:
        return OdometerReading(theorem=theorem, problem=error.message)


def _tuned(theorem: str, tuned_for: Fraction, delta: Fraction) -> Odometer:
    text = number_text(delta)
    try:
        halt = number_text(tuned_for)
        return make_odometer(theorem, delta=text, halt_at_epsilon=halt)
    except InvalidCost as error:
        if "does not take" not in error.message:
            raise
        return make_odometer(theorem, delta=text)
