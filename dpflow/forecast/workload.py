"""What a list of steps asks of each theorem: how often it fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

from dpflow.accounting import FILTERS, Filter, make_filter
from dpflow.accounting.costs.base import Cost, Outcome, Settling
from dpflow.accounting.costs.noise import PoissonSampledGaussian
from dpflow.accounting.rules.rule import Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError, InvalidCost, UnsupportedCost
from dpflow.forecast.counts import (
    NO_END,
    Workload,
    WorkloadStep,
    count_admitted,
    repeated,
    round_of,
)
from dpflow.ledger.entry import canonical
from dpflow.ledger.views.runs import RunStep

#: Budgets between which a theorem's need is searched, and how closely.
_MOST, _CLOSE = Fraction(10**4), Fraction(1005, 1000)
#: A share of a budget from which on it is called used up, and how often it is searched.
_FULL, _ALMOST, _TRIES = 0.99, 0.995, 20
#: Orders that are tried for sampled steps, whose prices are exact at whole ones.
_ORDERS = (*range(2, 33), 40, 48, 64)
#: Steps of a sequence, at most.
_LONGEST = 10**6
#: How a count is searched: the least share of the limit that is believed, how many
#: times farther the next guess is at most, and after how many the interval is halved.
_LEAST_SHARE, _FARTHER, _HALVE = 1e-6, 16, 3
_NO_SUM = "it keeps a tally for each person, so a list of steps does not say what fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How often a workload fits under one filter.

    Attributes:
        theorem: The filter's name.
        rounds: How often the whole workload fits; None if there is no end.
        problem: Why the theorem has no price for it, or "".
        order: The best whole order of `rdp`, tried for sampled steps.
    """

    theorem: str
    rounds: int | None = 0
    problem: str = ""
    order: int | None = None

    @property
    def filter(self) -> str:
        """What a policy writes after `filter:`."""
        if self.order is None:
            return self.theorem
        return f"{{theorem: {self.theorem}, order: {self.order}}}"

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "theorem": self.theorem,
            "order": self.order,
            "priced": not self.problem,
            "runs": None if self.problem else self.rounds,
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


def workload_of(steps: Iterable[RunStep]) -> Workload:
    """Return the charged steps of a run as a workload, as they came out.

    Raises:
        InvalidCost: If one has a mechanism that this process does not know.
    """
    known: dict[tuple[str, Outcome | None], WorkloadStep] = {}
    return merged(_journaled(step, known) for step in steps)


def _journaled(
    step: RunStep, known: dict[tuple[str, Outcome | None], WorkloadStep]
) -> WorkloadStep:
    """Return a step as it came out; a cost that recurs is made once."""
    name = canonical(step.description), step.reported
    if name not in known:
        cost = step.cost
        known[name] = WorkloadStep(cost, 1, _settled(step, cost))
    return known[name]


def _settled(step: RunStep, cost: Cost) -> Outcome | None:
    """Return the outcome by which a step settled; None if it settled in full."""
    if step.reported is None or not isinstance(cost, Settling):
        return None
    try:
        cost.realised(step.reported)
    except InvalidCost:
        return None
    return step.reported


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


def fits(
    workload: Workload,
    *,
    epsilon: Fraction,
    delta: Fraction,
    own: Mapping[str, Any] | None = None,
    sequence: bool = False,
) -> list[Fit]:
    """Return how often a workload fits under every filter, most often first.

    For sampled steps `rdp` is there twice: as it is, and with its best whole order.

    Args:
        workload: At least one step.
        epsilon: The budget's.
        delta: The budget's.
        own: A policy's `theorem` with its options; others have their defaults.
        sequence: Whether a fixed sequence of them is counted, too; it takes seconds.
    """
    options = dict(own or {})
    theorem = options.pop("theorem", None)

    def fit(name: str, options: Mapping[str, Any]) -> Fit:
        try:
            if name == "individual":
                return Fit(theorem=name, problem=_NO_SUM)
            if name == "sequence":
                furthest = max(each.rounds or 0 for each in found)
                return _fit_of_sequence(workload, epsilon, delta, furthest)
            rule = make_filter(name, **{**options, "epsilon": epsilon, "delta": delta})
            return Fit(theorem=name, rounds=rounds_admitted(rule, workload))
        except (UnsupportedCost, InvalidCost, ConfigurationError) as error:
            return Fit(theorem=name, problem=error.message)

    adaptive = [name for name in FILTERS if name != "sequence"]
    found = [fit(name, options if name == theorem else {}) for name in adaptive]
    if any(_is_sampled(step.cost) for step in workload):
        tried = [
            replace(fit("rdp", {"order": order}), order=order) for order in _ORDERS
        ]
        best = min(tried, key=_furthest)
        found += [best] if best.rounds != 0 else []
    if sequence:
        found.append(fit("sequence", {}))
    return sorted(found, key=_furthest)


def _is_sampled(cost: Cost) -> bool:
    parts = getattr(cost, "costs", getattr(cost, "substeps", (cost,))[:1])
    if parts == (cost,):
        return isinstance(cost, PoissonSampledGaussian)
    return any(map(_is_sampled, parts))


def _furthest(fit: Fit) -> tuple[bool, int, bool, str]:
    rounds = NO_END if fit.rounds is None else fit.rounds
    return bool(fit.problem), -rounds, fit.theorem == "auto", fit.theorem


def _fit_of_sequence(
    workload: Workload, epsilon: Fraction, delta: Fraction, start: int
) -> Fit:
    """Return how often a workload fits if it is fixed in advance.

    A sequence of many steps takes a second, so the count is not searched from 1 on: it
    starts at what a filter admits, and goes on where the line through two needs, in
    logarithms, meets the budget. Every count that is returned was tried, and so was
    the next one.
    """
    counts: dict[Cost, int] = {}
    for step in workload:
        counts[step.cost] = counts.get(step.cost, 0) + step.times

    def need(rounds: int) -> Fraction:
        steps = [{"cost": cost, "times": n * rounds} for cost, n in counts.items()]
        try:
            rule = make_filter("sequence", epsilon=_MOST, delta=delta, steps=steps)
        except InvalidCost as error:
            if error.name == "steps" and error.high == _MOST:
                # It fits no budget at all.
                return _MOST * 2
            raise
        needed: Sequence[Fraction] = rule.epsilons  # type: ignore[attr-defined]
        return needed[-1]

    most = _LONGEST // length(workload)
    return Fit(theorem="sequence", rounds=_most_below(need, epsilon, start, most))


def _most_below(
    need: Callable[[int], Fraction], limit: Fraction, start: int, most: int
) -> int:
    """Return the largest count, up to `most`, whose need is within a limit."""
    low, high, of_low, of_high = 0, most + 1, 0.0, 0.0
    guess, tries = min(max(start, 1), most), 0
    while high - low > 1:
        needed = need(guess)
        share = max(float(needed / limit), _LEAST_SHARE)
        if needed <= limit:
            low, of_low = guess, share
        else:
            high, of_high = guess, share
        tries += 1
        # Needs grow about as a power of the count.
        power = 0.5
        if of_low and of_high:
            power = math.log(of_high / of_low) / math.log(high / low)
        base, of_base = (low, of_low) if low else (high, of_high)
        guess = int(min(base * of_base ** (-1 / power), _FARTHER * base))
        if of_low and of_high and tries % _HALVE == 0:
            guess = (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
    return low


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
    if rule.theorem == "auto":
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
