"""Which groups there are, and which are the largest, as far as that is private.

A group is released with a chance that grows with its people. The largest ones are
picked one after the other until an end comes up.
"""

from __future__ import annotations

import heapq
import logging
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import date
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.costs.noise import DiscreteGaussian
from dpflow.accounting.costs.notions import ApproxDP, ApproxZCDP
from dpflow.accounting.costs.top_k import TopK
from dpflow.exceptions import PublicError
from dpflow.guard.charge import current_execution
from dpflow.interrupts import without_interrupts
from dpflow.mechanisms.drawn import Drawn, claimed, draws_for, is_replace_one
from dpflow.noise.draws import add_noise
from dpflow.noise.exact import choose, pick, toss
from dpflow.noise.sources import EXACT
from dpflow.rounding import bound_above, bound_below, float_up, to_real

logger = logging.getLogger("dpflow")

#: Chances are multiples of 2**-BITS, rounded down.
BITS = 256
_ONE = 2**BITS
#: Of people, until a group is released for certain.
LONGEST = 2**17

#: What a group may be called. Equal names of these are the same to the last bit, so
#: that a name tells nothing of who brought it.
_NAMES = (str, int, bool, float, date)
#: Starts of the names of types that hold times, in lower case.
_TIMES = ("datetime", "time", "duration")

#: Returns an index with a probability proportional to exp(-rate).
Choose = Callable[[Sequence[Fraction]], int]


def private_groups(
    people: Iterable[Any], groups: Iterable[Any], *, max_groups: int = 1
) -> list[Any]:
    """Say which groups there are, as far as that tells nothing of anybody.

    A person counts in at most `max_groups` groups, which are drawn. The running step
    must have declared `ApproxDP`, or for several groups `Repeated(ApproxDP(...),
    max_groups)`: epsilon and delta are of each group. Under replace-one it is twice as
    many, for who is replaced leaves groups and others come into new ones. With
    `ApproxZCDP(rho=..., delta=...)`, of the whole table, Gaussian noise and a threshold
    decide: fewer people are needed where one person is in more than a few groups.

    A group has even odds with log(1 + (e^epsilon - 1) / (2 delta)) / epsilon people, or
    with about 2 + sigma z of them, sigma^2 = max_groups / (2 rho) and z the normal
    quantile of 1 - delta / max_groups. The log says how many.

    Source: Desfontaines, Voss, Gipson, Mandayam 2020 (arXiv 2006.03684v2) Thm 1;
    docs/derivations/notions.md#groups-that-exist,
    docs/derivations/notions.md#groups-by-a-threshold.

    Assumes: epsilon and delta are of each group in which a person counts; rho and delta
    of the whole table, of which one person changes groups by one.

    Rounding: chances down, to multiples of 2**-256; the noise's sigma up, and then the
    threshold.

    Checked by: tests/mechanisms/test_private_groups.py.

    Args:
        people: The person of each row.
        groups: The group of each row: a text, an integer, a float, a bool, a date, or
            a tuple of them. Rows with anything else, or no person, do not count.
        max_groups: How many groups of one person count.

    Returns:
        The groups, sorted.

    Raises:
        ReleaseError: Outside a step with such a cost, if the step has drawn noise
            already, or if there are not as many people as groups.
    """
    who = "private_groups()"
    execution = current_execution(who)
    if type(max_groups) is not int or max_groups < 1:
        msg = "max_groups must be a whole number from 1"
        raise PublicError(msg)
    changed = max_groups * (2 if is_replace_one(execution) else 1)
    sigma, likely = Fraction(0), tuple[int, ...]()
    if isinstance(execution.cost, ApproxZCDP):
        _, table = claimed(who, ApproxZCDP)
        sigma, odds = threshold(table.rho, table.delta, changed)
    else:
        _, cost = claimed(who, ApproxDP, times=changed, by=EXACT)
        likely = chances(cost.epsilon, cost.delta)
        odds = next(n for n, chance in enumerate(likely) if 2 * chance >= _ONE)
    logger.info("%s: a group has even odds at %d people", who, odds)
    counts = people_in(people, groups, max_groups)
    numbers = list(counts.values())
    with execution.drawing():
        if isinstance(execution.cost, ApproxZCDP):
            noise = DiscreteGaussian(sensitivity=1, sigma=sigma)
            noisy = add_noise(noise, numbers) if numbers else []
            named = [count >= odds for count in noisy]
        else:
            rows = (likely[min(count, len(likely) - 1)] for count in numbers)
            named = [toss(Fraction(chance, _ONE)) for chance in rows]
    names = (
        name for (_, name), is_named in zip(counts, named, strict=True) if is_named
    )
    # In an order that depends on nothing but the names.
    return sorted(
        names, key=lambda n: (type(n).__name__, repr(n) if type(n) is tuple else n)
    )


@lru_cache(maxsize=32)
def threshold(rho: Fraction, delta: Fraction, changed: int) -> tuple[Fraction, int]:
    """Return the sigma of each group's noise, and the smallest released noisy size.

    A group of that many people has even odds.
    """
    squared = changed / (2 * rho)
    sigma = Fraction(float_up(bound_above(lambda mp: mp.sqrt(to_real(mp, squared)))))
    # Of the noise that hides one person in one group.
    inside = max(1 - 2 * delta / changed, Fraction(0))
    far = bound_above(lambda mp: mp.sqrt(2) * mp.erfinv(to_real(mp, inside)))
    return sigma, 2 + math.ceil(sigma * far)


@lru_cache(maxsize=32)
def chances(epsilon: Fraction, delta: Fraction) -> tuple[int, ...]:
    """Return the chance that a group of 0, 1, 2 ... people is released, times 2**BITS.

    The largest that one person more may make of it in either direction, from 0 to 1.

    Raises:
        ReleaseError: If `LONGEST` people would not be released for certain.
    """
    grown = _floor(bound_below(lambda mp: mp.exp(to_real(mp, epsilon))))
    shrunk = -_floor(-bound_above(lambda mp: mp.exp(-to_real(mp, epsilon))))
    added = _floor(delta)
    result = [0]
    while result[-1] < _ONE:
        if len(result) > LONGEST:
            msg = (
                f"with epsilon={float(epsilon):g} and delta={float(delta):g} for each "
                f"group, {LONGEST} people in a group would not be enough to tell of "
                "it. Declare a larger epsilon, or let people count in fewer groups."
            )
            raise PublicError(msg)
        now = result[-1]
        neither = max(_ONE - now - added, 0)
        by_presence = (grown * now >> BITS) + added
        by_absence = _ONE + (-shrunk * neither >> BITS)
        result.append(max(min(by_presence, by_absence), now))
    return tuple(result)


def people_in(
    people: Iterable[Any], groups: Iterable[Any], max_groups: int
) -> Counter[tuple[Hashable, Any]]:
    """Return how many people count in each group; a group is its type and its name."""
    theirs: defaultdict[Hashable, dict[tuple[Hashable, Any], None]] = defaultdict(dict)
    rows, names = _plain(people), _plain(groups)
    if len(rows) != len(names):
        msg = "give a person and a group for each row: as many of one as of the other"
        raise PublicError(msg)
    for person, name in zip(rows, names, strict=True):
        group = _group(name)
        if group is not None and _is_somebody(person):
            theirs[person][group] = None
    counts: Counter[tuple[Hashable, Any]] = Counter()
    for own in map(list, theirs.values()):
        # A sample of one person's groups.
        while len(own) > max_groups:
            own.pop(pick(len(own)))
        counts.update(own)
    return counts


def _plain(column: Any) -> list[Any]:
    """Return a column's entries as Python's own.

    Raises:
        ReleaseError: If it is of times: Python's own have no nanoseconds.
    """
    kind = str(getattr(column, "dtype", getattr(column, "type", None))).lower()
    if kind.removeprefix("dictionary<values=").startswith(_TIMES):
        msg = "groups and people by time need a name: make it a date or a text first"
        raise PublicError(msg)
    listed = getattr(column, "tolist", None) or getattr(column, "to_list", None)
    return list(listed() if listed else column)


def _group(name: object) -> tuple[Hashable, Any] | None:
    """Return a group by its types and its name; None for what names none."""
    parts = name if type(name) is tuple else (name,)
    if any(type(part) not in _NAMES or part != part for part in parts):  # noqa: PLR0124
        return None
    # 0.0 and -0.0 are equal.
    same = tuple(part + 0.0 if type(part) is float else part for part in parts)
    return tuple(map(type, parts)), same if type(name) is tuple else same[0]


def _is_somebody(person: object) -> bool:
    """Return True if an entry names a person; NaN, and what has no hash, does not."""
    try:
        hash(person)
        return person is not None and bool(person == person)  # noqa: PLR0124
    except without_interrupts(Exception):
        return False


def _floor(number: Fraction) -> int:
    return int(number * _ONE // 1)


# The largest groups


@draws_for(TopK, by=EXACT)
def top_k(cost: TopK, people: Iterable[Any], groups: Iterable[Any]) -> Drawn[list[Any]]:
    """Name the groups with the most people, without a list of the groups.

    The running step must have declared `TopK`, under a policy whose relation is
    add-or-remove. The number of picks, the end included, is the cell that is
    charged: a step that ends early leaves epsilon for another one.

    A group has even odds against the end if it has as many people more than the largest
    group that is not looked at as the cost's `margin`, which `dpflow forecast` shows.
    The log repeats it where fewer than `most` names come out.

    Source: Durfee, Rogers 2019 (arXiv 1905.04273) Alg. 1;
    docs/derivations/output-dp.md#largest-groups.

    Assumes: add-or-remove. How long it takes depends on the counts, as `choose` says.

    Rounding: the end's margin up, to whole people; from there on none.

    Checked by: tests/mechanisms/test_private_groups.py, by the exact law of this code.

    Args:
        cost: The cost of the running step.
        people: The person of each row; each counts once in a group.
        groups: The group of each row, as for `private_groups`. Rows without a person
            or a usable name of a group do not count.

    Returns:
        The names in the order of the picks, at most `most`; fewer where no other group
        stands out.

    Raises:
        ReleaseError: Outside a step with such a cost, if the step has drawn noise
            already, or if there are not as many people as groups.

    Examples:
        >>> @guarded(dataset="shop", cost=TopK(epsilon=1, delta="1e-7", most=10))
        ... def best_sold(sales):
        ...     return top_k(sales["customer"], sales["product"])
    """
    counts = people_in(people, groups, sys.maxsize)
    drawn = largest(cost, counts, choose=choose)
    names = [name for _, name in drawn.output]
    if len(names) < cost.most:
        logger.warning(
            "top_k() named %d of at most %d groups: a group has even odds against the "
            "end with %d people more than the largest group beyond the %d that it "
            "looks at",
            *(len(names), cost.most, cost.margin, cost.among),
        )
    return Drawn(names, drawn.cell)


def largest(
    cost: TopK, counts: Mapping[Any, int], *, choose: Choose
) -> Drawn[list[Any]]:
    """Pick among groups by their counts of people; as `top_k`, which says how.

    Groups without people fill the places up to `among`; to pick one of them is to
    end.
    """
    # By people; equal ones by nothing but their names.
    ranked = heapq.nlargest(
        cost.among + 1, counts.items(), key=lambda group: (group[1], repr(group[0]))
    )
    left = ranked[: cost.among]
    beyond = ranked[cost.among][1] if len(ranked) > cost.among else 0
    ends = [0] * (cost.among - len(left)) + [beyond + cost.margin]
    picked: list[Any] = []
    while len(picked) < cost.most:
        scores = [count for _, count in left] + ends
        index = choose([cost.pick * (max(scores) - score) for score in scores])
        if index >= len(left):
            return Drawn(picked, len(picked) + 1)
        picked.append(left.pop(index)[0])
    return Drawn(picked, cost.most)
