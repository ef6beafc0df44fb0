"""Kinds of the standard library."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from dpflow.ledger.codec.kinds import Kind, register, unstorable
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


def _clock(cls: Any) -> Kind:
    """Return the kind of datetimes or times."""

    def make(clock: str, fold: int, zone: Any) -> Any:
        return cls.fromisoformat(clock).replace(fold=fold, tzinfo=zone)

    return Kind(cls.__name__, _clock_parts, make, inherited=cls is datetime)


def _zone_parts(zone: ZoneInfo) -> list[str]:
    if zone.key is None:
        hint = "use a zone that has a name, such as ZoneInfo('UTC')"
        raise unstorable(zone, hint)
    return [zone.key]


_KINDS: dict[type, Kind] = {
    int: Kind("int", lambda value: [format(value, "x")], lambda text: int(text, 16)),
    float: Kind("float", lambda value: [repr(value)], float),
    Estimate: Kind(
        "Estimate",
        Estimate.__getnewargs_ex__,
        lambda number, known: Estimate(*number, **known),
    ),
    str: Kind(
        "str",
        lambda text: [text.encode("utf-8", "surrogatepass")],
        lambda data: data.decode("utf-8", "surrogatepass"),
    ),
    bytes: Kind(
        "bytes",
        lambda data: [b64encode(data).decode()],
        lambda text: b64decode(text, validate=True),
    ),
    tuple: Kind("tuple", list, lambda *items: items),
    set: Kind("set", list, lambda *items: set(items)),
    frozenset: Kind("frozenset", list, lambda *items: frozenset(items)),
    # Where its keys are not those of a JSON object.
    dict: Kind(
        "dict", lambda value: map(list, value.items()), lambda *pairs: dict(pairs)
    ),
    date: Kind(
        "date",
        lambda value: [as_plain_date(value).isoformat()],
        date.fromisoformat,
        inherited=True,
    ),
    datetime: _clock(datetime),
    time: _clock(time),
    timedelta: Kind(
        "timedelta", attrgetter("days", "seconds", "microseconds"), timedelta
    ),
    # What pickle would keep: the offset and, if one was given, the name.
    timezone: Kind("timezone", lambda zone: zone.__getinitargs__(), timezone),
    ZoneInfo: Kind("ZoneInfo", _zone_parts, ZoneInfo, inherited=True),
    UUID: Kind("UUID", lambda value: [value.hex], UUID),
    Decimal: Kind("Decimal", lambda value: [str(value)], Decimal),
    Fraction: Kind("Fraction", attrgetter("numerator", "denominator"), Fraction),
}
register(_KINDS)
