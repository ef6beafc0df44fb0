"""Which groups there are: each is told with a chance that grows with its people."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from datetime import date
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.costs.noise import DiscreteGaussian
from dpflow.exceptions import PublicError
from dpflow.noise.draws import draw
from dpflow.noise.exact import pick, toss
from dpflow.rounding import bound_above, bound_below, float_up, to_real

#: Chances are multiples of 2**-BITS, rounded down.
BITS = 256
_ONE = 2**BITS
#: Of people, until a group is told for certain.
LONGEST = 2**17

#: What a group may be called. Equal names of these are the same to the last bit, so
#: that a name tells nothing of who brought it.
_NAMES = (str, int, bool, float, date)
#: Starts of the names of types that hold times, in lower case.
_TIMES = ("datetime", "time", "duration")


def private_groups(
    people: Iterable[Any],
    groups: Iterable[Any],
    *,
    epsilon: Fraction,
    delta: Fraction,
    max_groups: int,
) -> list[Any]:
    """Return the groups that are told.

    A person counts in at most `max_groups` of their groups, drawn for each person
    alone. Rows without a person or a usable name of a group count for nothing.

    Source: Desfontaines, Voss, Gipson, Mandayam 2020 (arXiv 2006.03684v2) Thm 1;
    docs/derivations/notions.md#groups-that-exist.

    Assumes: epsilon and delta are for each group in which a person counts.

    Rounding: chances down, to multiples of 2**-256.

    Checked by: tests/mechanisms/test_private_groups.py.
    """
    table = chances(epsilon, delta)
    told = [
        group
        for group, count in people_in(people, groups, max_groups).items()
        if toss(Fraction(table[min(count, len(table) - 1)], _ONE))
    ]
    return _ordered([name for _, name in told])


def noisy_groups(
    people: Iterable[Any],
    groups: Iterable[Any],
    *,
    rho: Fraction,
    delta: Fraction,
    max_groups: int,
    changed: int,
) -> list[Any]:
    """Return the groups whose people, with Gaussian noise, reach a threshold.

    Source: docs/derivations/notions.md#groups-by-a-threshold.

    Assumes: one person changes at most `changed` groups by one; rho and delta are of
    the whole table.

    Rounding: the noise's sigma up, and then the threshold.

    Checked by: tests/mechanisms/test_private_groups.py.
    """
    sigma, least = threshold(rho, delta, changed)
    counts = people_in(people, groups, max_groups)
    if not counts:
        return []
    noisy = draw(DiscreteGaussian(sensitivity=1, sigma=sigma), list(counts.values()))
    told = zip(counts, noisy, strict=True)
    return _ordered([name for (_, name), count in told if count >= least])


@lru_cache(maxsize=32)
def threshold(rho: Fraction, delta: Fraction, changed: int) -> tuple[Fraction, int]:
    """Return the sigma of each group's noise, and how many noisy people are told.

    So many people in a group have even odds.
    """
    squared = changed / (2 * rho)
    sigma = Fraction(float_up(bound_above(lambda mp: mp.sqrt(to_real(mp, squared)))))
    # Of the noise that one person needs to be told in one group.
    inside = max(1 - 2 * delta / changed, Fraction(0))
    far = bound_above(lambda mp: mp.sqrt(2) * mp.erfinv(to_real(mp, inside)))
    return sigma, 2 + math.ceil(sigma * far)


@lru_cache(maxsize=32)
def chances(epsilon: Fraction, delta: Fraction) -> tuple[int, ...]:
    """Return with which chance a group of 0, 1, 2 ... people is told, times 2**BITS.

    The largest that one person more may make of it in either direction, from 0 to 1.

    Raises:
        ReleaseError: If `LONGEST` people would not be told for certain.
    """
    grown = _floor(bound_below(lambda mp: mp.exp(to_real(mp, epsilon))))
    shrunk = -_floor(-bound_above(lambda mp: mp.exp(-to_real(mp, epsilon))))
    added = _floor(delta)
    found = [0]
    while found[-1] < _ONE:
        if len(found) > LONGEST:
            msg = (
                f"with epsilon={float(epsilon):g} and delta={float(delta):g} for each "
                f"group, {LONGEST} people in a group would not be enough to tell of "
                "it. Declare a larger epsilon, or let people count in fewer groups."
            )
            raise PublicError(msg)
        now = found[-1]
        rest = max(_ONE - now - added, 0)
        by_presence = (grown * now >> BITS) + added
        by_absence = _ONE + (-shrunk * rest >> BITS)
        found.append(max(min(by_presence, by_absence), now))
    return tuple(found)


def even_odds(**numbers: Any) -> int:
    """Return how many people give a group even odds, by declared numbers alone."""
    if "rho" in numbers:
        return threshold(**numbers)[1]
    table = chances(**numbers)
    return next(n for n, chance in enumerate(table) if 2 * chance >= _ONE)


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
    counted = (_some(list(each), max_groups) for each in theirs.values())
    return Counter(group for kept in counted for group in kept)


def _some(groups: list[Any], count: int) -> list[Any]:
    """Return so many of one person's groups, drawn."""
    while len(groups) > count:
        groups.pop(pick(len(groups)))
    return groups


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
    """Say whether an entry names a person; what has no hash, and NaN, names nobody."""
    try:
        hash(person)
        return person is not None and bool(person == person)  # noqa: PLR0124
    except Exception:  # noqa: BLE001 - an error would tell of this person
        return False


def _ordered(names: list[Any]) -> list[Any]:
    """Return names in an order that depends on nothing but them."""
    return sorted(names, key=lambda name: (type(name).__name__, _key(name)))


def _key(name: Any) -> Any:
    return repr(name) if type(name) is tuple else name


def _floor(number: Fraction) -> int:
    return int(number * _ONE // 1)
