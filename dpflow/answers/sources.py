"""Releases that declare a measure, with what all terms of a sum must share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.base import cost_from_description
from dpflow.accounting.costs.refined import Refined
from dpflow.answers.sums import Noisy
from dpflow.exceptions import ReleaseError, require
from dpflow.ledger import Ledger
from dpflow.ledger.codec import decode
from dpflow.ledger.views.releases import KeptRelease, release_values, releases
from dpflow.ledger.views.spending import OWN_NOISE
from dpflow.noise.accuracy import ROUNDING, noise_of
from dpflow.notebook import escape_key
from dpflow.periods import name_at, period_of, position_of


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A release of a declared measure.

    Attributes:
        key: Its release key for people.
        parts: Names of the periods that it sums; "" where it names none.
        numbers: Its numbers with their noise; none if it has no number.
        shared: What terms of a sum share, by name: measure, dataset, key fields, data
            version, bounds, and the clip: most that one privacy unit moves it.
        problem: Why no answer uses it; "" if one may.
    """

    key: str
    parts: tuple[str, ...]
    numbers: tuple[Noisy, ...]
    shared: dict[str, Any]
    problem: str


def periods(first: str, last: str) -> tuple[str, ...]:
    """Return the names of all periods from the first to the last, both included.

    Raises:
        ConfigurationError: If they are no two periods of one kind, in order.
    """
    kind = period_of(first)
    require(
        kind and kind == period_of(last) and first <= last,
        f"{first!r} to {last!r} is no range of periods. Write two hours, days, weeks "
        "or months in their order, such as 1997-W10.",
    )
    positions = range(position_of(first), position_of(last) + 1)
    return tuple(filter(None, (name_at(first, number) for number in positions)))


def check_shared(sources: Sequence[Measured], *omitted: str) -> None:
    """Refuse terms of a sum that differ in something that all of them must share.

    Args:
        sources: The terms.
        *omitted: Names of what may differ.

    Raises:
        ReleaseError: If two differ in something else.
    """
    for first, source in ((sources[0], source) for source in sources):
        shared, other = first.shared, source.shared
        names = {n for n in {**shared, **other} if shared.get(n) != other.get(n)}
        require(
            names <= {*omitted},
            f"Releases {first.key!r} and {source.key!r} differ in {sorted(names)}. A "
            "sum needs equal clip, bounds, relation and data_version. Choose by where=,"
            " or withdraw the wrong release.",
            ReleaseError,
        )


def read_measured(ledger: Ledger, where: Mapping[str, str]) -> list[Measured]:
    """Read the releases that declare a measure and agree with `where`, newest first.

    Raises:
        ReleaseError: If none of them agrees.
    """
    stored = [release for release in releases(ledger) if release.facts["measures"]]
    values = release_values(ledger, stored)
    every = [_source(release, values.get(release.id)) for release in stored]
    chosen = [s for s in every if all(s.shared.get(n) == t for n, t in where.items())]
    fields = [release.facts["measures"]["fields"].items() for release in stored]
    texts = sorted(
        {f"{n}={t}" for items in fields for n, t in items if not period_of(t)}
    )
    require(
        chosen or not every,
        f"no release has {', '.join(f'{n}={t}' for n, t in where.items())} in its key. "
        f"Fields of the keys here: {', '.join(texts[:20]) or 'periods alone'}.",
        ReleaseError,
    )
    return chosen


def _source(release: KeptRelease, text: str | None) -> Measured:
    body, declared = release.facts, release.facts["measures"]
    cost: Any = cost_from_description(body["cost"])
    fields, partitions = declared["fields"], body["partitions"]
    periods = [text for text in fields.values() if period_of(text)]
    by_time = bool(partitions) and all(map(period_of, partitions))
    parts = tuple(partitions if by_time else periods or [""])
    value: Any = [] if text is None else decode(text)
    plain = value.tolist() if hasattr(value, "tolist") else value
    listed = plain if isinstance(plain, list | tuple) else [plain]
    are_numbers = all(isinstance(n, int | float) and math.isfinite(n) for n in listed)
    problems = {
        f"is {release.state}": release.state != "settled",
        "has noise of its own": body["noise"] in OWN_NOISE,
        "is not the number that was drawn": not body["as_drawn"],
        "has several periods in its key": len(periods) > 1 and not by_time,
        "holds no number": not listed or not are_numbers,
    }
    return Measured(
        key=escape_key(release.key),
        parts=parts,
        numbers=tuple(
            _noisy(n, cost, body["reported"], as_int=bool(body["as_int"]))
            for n in listed
            if are_numbers
        ),
        shared={
            **{name: text for name, text in fields.items() if text not in periods},
            "measure": declared["name"],
            "partition": None if by_time else partitions,
            "dataset": release.dataset,
            "data_version": body["versions"],
            "bounds, unit or relation": declared["bounds"],
            "clip": getattr(cost, "finest", cost).sensitivity,
        },
        problem=next((text for text, is_there in problems.items() if is_there), ""),
    )


def _noisy(number: float, cost: Any, draws: int | None, *, as_int: bool) -> Noisy:
    """Return a number with its noise as it was drawn."""
    exact = Fraction(number)
    noise = noise_of(cost, draws or 1, as_int=as_int)
    assert noise is not None
    most = len(cost.spreads) if isinstance(cost, Refined) else 1
    slack = max(abs(exact) * ROUNDING, noise.slack)
    return Noisy(exact, noise.spread, noise.law == "gaussian", most, slack)
