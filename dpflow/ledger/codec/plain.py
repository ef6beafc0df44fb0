"""Kinds of the standard library."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from dpflow.ledger.codec.kinds import register, unstorable
from dpflow.noise.accuracy import Estimate

# Python refuses to write or read decimal ints of more than 4300 digits.
_INT_BITS = 1024


def is_plain(value: Any) -> bool:
    """Say whether a value other than a list or a dict stands for itself in JSON."""
    kind = type(value)
    if kind is str:
        # JSON would join two lone surrogates that meet into one character.
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
    if kind is float:
        return math.isfinite(value)
    small = kind is int and value.bit_length() <= _INT_BITS
    return small or kind is bool or value is None


def as_plain_date(value: Any) -> Any:
    """Return a date or datetime of a class such as Prefect's as one of Python's own.

    Pandas has its own ones, with nanoseconds, which stay what they are.
    """
    kind = type(value)
    plain = kind in (date, datetime) or kind.__module__.startswith("pandas")
    if plain or not isinstance(value, date):
        return value
    day = date(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        return day
    return datetime.combine(day, value.timetz()).replace(fold=value.fold)


def _clock_parts(value: Any) -> list[Any]:
    value = as_plain_date(value)
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, value.tzinfo]


def _make_clock(cls: Any, clock: str, fold: int, zone: Any) -> Any:
    return cls.fromisoformat(clock).replace(fold=fold, tzinfo=zone)


def _zone_parts(zone: ZoneInfo) -> list[str]:
    if zone.key is None:
        hint = "use a zone that has a name, such as ZoneInfo('UTC')"
        raise unstorable(zone, hint)
    return [zone.key]


_KINDS: dict[type, Any] = {
    int: (lambda value: [format(value, "x")], lambda text: int(text, 16)),
    float: (lambda value: [repr(value)], float),
    Estimate: (
        Estimate.__getnewargs_ex__,
        lambda args, known: Estimate(*args, **known),
    ),
    str: (
        lambda text: [text.encode("utf-8", "surrogatepass")],
        lambda data: data.decode("utf-8", "surrogatepass"),
    ),
    bytes: (
        lambda data: [b64encode(data).decode()],
        lambda text: b64decode(text, validate=True),
    ),
    tuple: (list, lambda *items: items),
    set: (list, lambda *items: set(items)),
    frozenset: (list, lambda *items: frozenset(items)),
    # Where its keys are not those of a JSON object.
    dict: (lambda value: map(list, value.items()), lambda *pairs: dict(pairs)),
    date: (lambda value: [as_plain_date(value).isoformat()], date.fromisoformat),
    datetime: (_clock_parts, partial(_make_clock, datetime)),
    time: (_clock_parts, partial(_make_clock, time)),
    timedelta: (attrgetter("days", "seconds", "microseconds"), timedelta),
    # What pickle would keep: the offset and, if one was given, the name.
    timezone: (lambda zone: zone.__getinitargs__(), timezone),
    ZoneInfo: (_zone_parts, ZoneInfo),
    UUID: (lambda value: [value.hex], UUID),
    Decimal: (lambda value: [str(value)], Decimal),
    Fraction: (attrgetter("numerator", "denominator"), Fraction),
}
register("", _KINDS, inherited=(date, datetime, ZoneInfo))
