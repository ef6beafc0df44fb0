"""From a value to its text and back, with the kinds of the standard library."""

from __future__ import annotations

import json
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

from dpflow.exceptions import ReleaseError
from dpflow.interrupts import without_interrupts
from dpflow.ledger.canonical import canonical
from dpflow.ledger.codec import kinds
from dpflow.ledger.codec.kinds import register, unstorable
from dpflow.noise.accuracy import Estimate, IntEstimate, Noise

# Python refuses to write or read decimal ints of more than 4300 digits.
_INT_BITS = 1024


def is_plain(value: Any) -> bool:
    """Return True if a value other than a list or a dict stands for itself in JSON."""
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


def _make_estimate(cls: Any, args: tuple[Any], options: dict[str, Any]) -> Any:
    return cls(*args, **options)


_KINDS: dict[type, Any] = {
    Noise: (list, Noise),
    int: (lambda value: [format(value, "x")], lambda text: int(text, 16)),
    float: (lambda value: [repr(value)], float),
    **{
        cls: (cls.__getnewargs_ex__, partial(_make_estimate, cls))
        for cls in (Estimate, IntEstimate)
    },
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


#: Kinds whose parts have no order of their own.
_UNORDERED = ("set", "frozenset", "dict")
_HINT = (
    "return plain numbers (a complex one as a pair), text, dates, lists, dicts, numpy "
    "arrays, pandas, polars or Arrow tables, or put @releasable on its dataclass, enum "
    "or pydantic model"
)


def encode(value: object, *, ordered: bool = False) -> str:
    """Write a value as canonical JSON.

    Args:
        value: None, a bool, int, float, str, bytes, date, datetime, time, timedelta,
            Decimal, Fraction, UUID, numpy scalar or array, pandas Series, DataFrame,
            Index, Timestamp, Interval or Period, polars Series or DataFrame, Arrow
            array or Table; or a list, tuple, dict, set or frozenset of such values.
        ordered: Whether dicts keep their order, as a release's groups; else equal
            values have one text.

    Returns:
        ASCII text of at most `MAX_TEXT` characters.

    Raises:
        ReleaseError: If the value, or one nested in it, cannot be stored exactly, or
            is too deep or too large. The text names its type and never the value.

    Examples:
        >>> encode((1, 2.5))
        '{"$type":"tuple","parts":[1,2.5]}'
    """
    text = canonical(_Packer(ordered=ordered).pack(value, 0))
    kinds.check_limits(len(text))
    return text


def decode(text: str) -> Any:
    """Read a value that `encode` wrote.

    Args:
        text: What `encode` returned.

    Returns:
        An equal value of the same type.

    Raises:
        ReleaseError: If the text is not of that form. Nothing in it is executed.
    """
    kinds.check_limits(len(text))
    failure = ""
    try:
        return _unpack(json.loads(text), 0)
    except ReleaseError:
        raise
    except ImportError as error:
        # Pandas names no module when it misses pyarrow.
        failure = f"reading it needs {error.name or 'pyarrow'}, which is not installed"
    except without_interrupts(Exception) as error:
        failure = f"its text is damaged ({type(error).__name__})"
    # Outside the handler, so that the released value does not travel as context.
    msg = f"a stored release cannot be read: {failure}. Check the ledger and the setup."
    raise ReleaseError(msg)


class _Packer:
    """Turns one value into a tree of plain JSON values, within the limits."""

    def __init__(self, *, ordered: bool) -> None:
        self._characters = -1
        self._ordered = ordered

    def pack(self, value: Any, depth: int) -> Any:
        # A value and its comma; of a list's two brackets one stands for a comma.
        # So no huge tree is built in vain.
        self._characters += 2 + (len(value) if type(value) is str else 0)
        kinds.check_limits(self._characters, depth)
        if is_plain(value):
            return value
        if type(value) is list:
            return [self.pack(item, depth + 1) for item in value]
        if (
            type(value) is dict
            and all(map(_is_member, value))
            and (not self._ordered or list(value) == sorted(value))
        ):
            self._characters += sum(map(len, value))
            return {key: self.pack(item, depth + 1) for key, item in value.items()}
        kind = kinds.kind_of(value)
        if kind is None:
            raise kinds.unstorable(value, _HINT)
        parts = [self.pack(part, depth + 1) for part in kind.parts(value)]
        if kind.name in _UNORDERED and not (self._ordered and kind.name == "dict"):
            parts.sort(key=canonical)
        return {kinds.TYPE_KEY: kind.name, "parts": parts}


def _is_member(key: Any) -> bool:
    """Return True if a dict's key stands for itself in a JSON object."""
    return type(key) is str and key != kinds.TYPE_KEY and is_plain(key)


def _unpack(tree: Any, depth: int) -> Any:
    kinds.check_limits(0, depth)
    if isinstance(tree, list):
        return [_unpack(item, depth + 1) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if kinds.TYPE_KEY not in tree:
        return {key: _unpack(item, depth + 1) for key, item in tree.items()}
    kind = kinds.kind_named(tree[kinds.TYPE_KEY])
    return kind.make(*[_unpack(part, depth + 1) for part in tree["parts"]])
