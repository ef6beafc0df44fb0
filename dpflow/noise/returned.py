"""Numbers of returned values: whether a body returned the drawn numbers, unchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import date, time, timedelta
from fractions import Fraction
from itertools import chain
from typing import Any
from uuid import UUID

from dpflow.accounting.costs.base import Cost
from dpflow.interrupts import without_interrupts
from dpflow.noise.accuracy import Estimate, IntEstimate, noise_of
from dpflow.noise.columns import NUMBERS, Column, columns_of, is_frame, is_vector
from dpflow.noise.shape import Shape
from dpflow.rounding import float_up

#: What stands next to numbers and is none.
_NO_NUMBERS = (str, bytes, bool, date, time, timedelta, UUID, type(None))


class DrawnNumbers:
    """The numbers that a body got from `release`, to compare its output with.

    Args:
        noisy: What `release` returned; the body may change it later.
        shape: The declared shape.
        cost: The declared cost.
        share: Confidence of the intervals, where the cost says its noise.
        as_int: Whether the numbers were rounded after the draw.
    """

    def __init__(
        self, noisy: Any, shape: Shape, cost: Cost, share: Fraction, *, as_int: bool
    ) -> None:
        self._numbers = [list(numbers_in(noisy))]
        groups, columns = shape.groups, shape.columns
        # The same without labels that are numbers.
        if groups is not None and isinstance(noisy, list | tuple):
            rows = (row.values() if isinstance(row, dict) else row for row in noisy)
            without = [list(row)[len(groups.labels) :] for row in rows]
            self._numbers.append(list(numbers_in(without)))
        elif columns is not None:
            names = list(columns)
            only = noisy[names] if hasattr(noisy, "iloc") else noisy.select(names)
            self._numbers.append(list(numbers_in(only)))
        self._as_int, self._interval = as_int, list[float]()
        noise = noise_of(cost, as_int=as_int)
        if noise is not None:
            half = float_up(noise.half_width(share))
            self._interval = [half, float(share)]
        elif isinstance(noisy, Estimate | IntEstimate):
            self._interval = [noisy.half_width, noisy.confidence]

    def describe(self, value: Any) -> dict[str, Any]:
        """Return for the journal whether a value has these numbers, in their order.

        If it has them and no others, also half the width of their interval.
        """
        try:
            is_drawn = list(numbers_in(value)) in self._numbers
        # An object compares by its own code, and a value may hold itself.
        except without_interrupts(Exception):
            is_drawn = False
        interval = {"known": self._interval} if is_drawn and self._interval else {}
        return {"as_drawn": is_drawn, "as_int": self._as_int, **interval}


def numbers_in(value: Any) -> Iterator[Any]:
    """Yield the numbers of a value, row by row, and what is no supported container."""
    kind = type(value)
    if isinstance(value, _NO_NUMBERS):
        return
    if is_frame(kind) or is_vector(kind):
        columns = columns_of(value) if is_frame(kind) else [(None, value)]
        read = [Column.read(column) for _, column in columns]
        held = [column for column in read if column.kind in (*NUMBERS, "object")]
        value = chain.from_iterable(zip(*(c.entries for c in held), strict=True))
        if all(column.kind in ("int", "float") for column in held):
            yield from value
            return
    elif isinstance(value, dict):
        value = value.values()
    elif dataclasses.is_dataclass(kind):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif hasattr(value, "model_fields_set"):
        value = dict(value).values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for entry in value:
        yield from (entry,) if type(entry) in (int, float) else numbers_in(entry)
