"""Values of the standard library as trees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from dpflow.accuracy.estimate import Estimate
from dpflow.ledger.codec import form
from dpflow.ledger.entry import canonical

# Python refuses to write or read decimal ints of more than 4300 digits.
_INT_BITS = 1024

# Values to trees


def packer_of(value: object) -> form.Pack | None:
    """Return what writes a value; None if it is not plain."""
    found = _PACKERS.get(type(value))
    if found is None and as_plain_date(value) is not value:
        return lambda packer, value: packer.pack(as_plain_date(value))
    return found or (_pack_zone if isinstance(value, ZoneInfo) else None)


def as_plain_date(value: Any) -> Any:
    """Return a date or datetime of a class such as Prefect's as one of Python's own.

    Pandas has its own ones, with nanoseconds, which stay what they are.
    """
    if not isinstance(value, date) or type(value).__module__.startswith("pandas"):
        return value
    if type(value) in (date, datetime):
        return value
    day = date(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        return day
    return datetime.combine(day, value.timetz()).replace(fold=value.fold)


def _pack_itself(_: form.Packer, value: object) -> object:
    return value


def _pack_int(packer: form.Packer, value: int) -> object:
    if value.bit_length() <= _INT_BITS:
        return value
    packer.take(value.bit_length() // 4)
    return {form.TYPE_KEY: "int", "hex": format(value, "x")}


def _pack_float(_: form.Packer, value: float) -> object:
    return (
        value if math.isfinite(value) else {form.TYPE_KEY: "float", "text": repr(value)}
    )


def _pack_estimate(_: form.Packer, value: Estimate) -> object:
    known = [*value.interval, value.confidence]
    return {form.TYPE_KEY: "Estimate", "number": float(value), "known": known}


def _pack_str(packer: form.Packer, value: str) -> object:
    packer.take(len(value))
    if _is_unicode(value):
        return value
    # JSON would join two lone surrogates that meet into one character.
    data = value.encode("utf-8", "surrogatepass")
    return {form.TYPE_KEY: "str", "utf8": form.to_base64(data)}


def _is_unicode(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def _pack_bytes(packer: form.Packer, value: bytes) -> object:
    packer.take(len(value) * 4 // 3)
    return {form.TYPE_KEY: "bytes", "base64": form.to_base64(value)}


def _pack_tuple(packer: form.Packer, value: tuple[Any, ...]) -> object:
    return {form.TYPE_KEY: "tuple", "items": packer.pack_all(value)}


def _pack_set(packer: form.Packer, value: set[Any] | frozenset[Any]) -> object:
    items = sorted(packer.pack_all(value), key=canonical)
    return {form.TYPE_KEY: type(value).__name__, "items": items}


def _pack_dict(packer: form.Packer, value: dict[Any, Any]) -> object:
    """Use a JSON object where one will do, else pairs sorted by the text of the key."""
    plain = all(type(key) is str and _is_unicode(key) for key in value)
    if plain and form.TYPE_KEY not in value:
        packer.take(sum(map(len, value)))
        return {key: packer.pack(item) for key, item in value.items()}
    pairs = [[packer.pack(key), packer.pack(item)] for key, item in value.items()]
    pairs.sort(key=lambda pair: canonical(pair[0]))
    return {form.TYPE_KEY: "dict", "pairs": pairs}


def _pack_datetime(packer: form.Packer, value: datetime) -> object:
    zone = None if value.tzinfo is None else packer.pack(value.tzinfo)
    clock = value.replace(tzinfo=None, fold=0).isoformat()
    return {form.TYPE_KEY: "datetime", "iso": clock, "fold": value.fold, "zone": zone}


def _pack_time(packer: form.Packer, value: time) -> object:
    zone = None if value.tzinfo is None else packer.pack(value.tzinfo)
    clock = value.replace(tzinfo=None, fold=0).isoformat()
    return {form.TYPE_KEY: "time", "iso": clock, "fold": value.fold, "zone": zone}


def _pack_timedelta(_: form.Packer, value: timedelta) -> object:
    parts = [value.days, value.seconds, value.microseconds]
    return {form.TYPE_KEY: "timedelta", "parts": parts}


def _pack_timezone(packer: form.Packer, value: timezone) -> object:
    # What pickle would keep: the offset and, if one was given, the name.
    arguments = cast("Any", value).__getinitargs__()
    return {form.TYPE_KEY: "timezone", "arguments": packer.pack_all(arguments)}


def _pack_zone(_: form.Packer, value: ZoneInfo) -> object:
    if value.key is None:
        raise form.unstorable(
            value, "use a zone that has a name, such as ZoneInfo('UTC')"
        )
    return {form.TYPE_KEY: "ZoneInfo", "key": value.key}


def _pack_decimal(packer: form.Packer, value: Decimal) -> object:
    text = str(value)
    packer.take(len(text))
    return {form.TYPE_KEY: "Decimal", "text": text}


def _pack_fraction(packer: form.Packer, value: Fraction) -> object:
    parts = packer.pack_all([value.numerator, value.denominator])
    return {form.TYPE_KEY: "Fraction", "parts": parts}


_PACKERS: dict[type, form.Pack] = {
    type(None): _pack_itself,
    bool: _pack_itself,
    int: _pack_int,
    float: _pack_float,
    Estimate: _pack_estimate,
    str: _pack_str,
    bytes: _pack_bytes,
    list: form.Packer.pack_all,
    tuple: _pack_tuple,
    set: _pack_set,
    frozenset: _pack_set,
    dict: _pack_dict,
    date: lambda _, value: {form.TYPE_KEY: "date", "iso": value.isoformat()},
    datetime: _pack_datetime,
    time: _pack_time,
    UUID: lambda _, value: {form.TYPE_KEY: "UUID", "hex": value.hex},
    timedelta: _pack_timedelta,
    timezone: _pack_timezone,
    ZoneInfo: _pack_zone,
    Decimal: _pack_decimal,
    Fraction: _pack_fraction,
}
#: What this part writes.
TYPES = frozenset(_PACKERS)


# Trees to values


def _unpack_items(kind: Any, node: form.Node, unpack: form.Unpack) -> Any:
    items = [unpack(item) for item in form.member(node, "items", list)]
    value = kind(items)
    return value if len(value) == len(items) else form.not_canonical()


def _unpack_dict(node: form.Node, unpack: form.Unpack) -> dict[Any, Any]:
    pairs = form.member(node, "pairs", list)
    value = {unpack(key): unpack(item) for key, item in pairs}
    return value if len(value) == len(pairs) else form.not_canonical()


def _unpack_datetime(node: form.Node, unpack: form.Unpack) -> datetime:
    clock = datetime.fromisoformat(form.member(node, "iso", str))
    return clock.replace(
        tzinfo=unpack(node["zone"]), fold=form.member(node, "fold", int)
    )


def _unpack_time(node: form.Node, unpack: form.Unpack) -> time:
    clock = time.fromisoformat(form.member(node, "iso", str))
    return clock.replace(
        tzinfo=unpack(node["zone"]), fold=form.member(node, "fold", int)
    )


def _unpack_float(node: form.Node, _: form.Unpack) -> float:
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[node["text"]]


def _unpack_estimate(node: form.Node, _: form.Unpack) -> Estimate:
    low, high, confidence = map(float, form.member(node, "known", list))
    number = form.member(node, "number", float)
    return Estimate(number, interval=(low, high), confidence=confidence)


def _unpack_str(node: form.Node, _: form.Unpack) -> str:
    return form.from_base64(form.member(node, "utf8", str)).decode(
        "utf-8", "surrogatepass"
    )


UNPACKERS: Mapping[str, Callable[[form.Node, form.Unpack], Any]] = {
    "int": lambda node, _: int(form.member(node, "hex", str), 16),
    "float": _unpack_float,
    "Estimate": _unpack_estimate,
    "str": _unpack_str,
    "bytes": lambda node, _: form.from_base64(form.member(node, "base64", str)),
    "tuple": partial(_unpack_items, tuple),
    "set": partial(_unpack_items, set),
    "frozenset": partial(_unpack_items, frozenset),
    "dict": _unpack_dict,
    "date": lambda node, _: date.fromisoformat(form.member(node, "iso", str)),
    "datetime": _unpack_datetime,
    "time": _unpack_time,
    "UUID": lambda node, _: UUID(hex=form.member(node, "hex", str)),
    "timedelta": lambda node, _: timedelta(*form.member(node, "parts", list)),
    "timezone": lambda node, unpack: timezone(*map(unpack, node["arguments"])),
    "ZoneInfo": lambda node, _: ZoneInfo(form.member(node, "key", str)),
    "Decimal": lambda node, _: Decimal(form.member(node, "text", str)),
    "Fraction": lambda node, unpack: Fraction(*map(unpack, node["parts"])),
}
