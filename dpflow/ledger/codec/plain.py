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
from dpflow.ledger.codec.form import (
    TYPE_KEY,
    Node,
    Pack,
    Packer,
    Unpack,
    from_base64,
    member,
    not_canonical,
    to_base64,
    unstorable,
)
from dpflow.ledger.entry import canonical

# Python refuses to write or read decimal ints of more than 4300 digits.
_INT_BITS = 1024

# Values to trees


def packer_of(value: object) -> Pack | None:
    """Return what writes a value; None if it is not plain."""
    return _PACKERS.get(type(value))


def _pack_itself(_: Packer, value: object) -> object:
    return value


def _pack_int(packer: Packer, value: int) -> object:
    if value.bit_length() <= _INT_BITS:
        return value
    packer.take(value.bit_length() // 4)
    return {TYPE_KEY: "int", "hex": format(value, "x")}


def _pack_float(_: Packer, value: float) -> object:
    return value if math.isfinite(value) else {TYPE_KEY: "float", "text": repr(value)}


def _pack_estimate(_: Packer, value: Estimate) -> object:
    known = [*value.interval, value.confidence]
    return {TYPE_KEY: "Estimate", "number": float(value), "known": known}


def _pack_str(packer: Packer, value: str) -> object:
    packer.take(len(value))
    if _is_unicode(value):
        return value
    # JSON would join two lone surrogates that meet into one character.
    data = value.encode("utf-8", "surrogatepass")
    return {TYPE_KEY: "str", "utf8": to_base64(data)}


def _is_unicode(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def _pack_bytes(packer: Packer, value: bytes) -> object:
    packer.take(len(value) * 4 // 3)
    return {TYPE_KEY: "bytes", "base64": to_base64(value)}


def _pack_tuple(packer: Packer, value: tuple[Any, ...]) -> object:
    return {TYPE_KEY: "tuple", "items": packer.pack_all(value)}


def _pack_set(packer: Packer, value: set[Any] | frozenset[Any]) -> object:
    items = sorted(packer.pack_all(value), key=canonical)
    return {TYPE_KEY: type(value).__name__, "items": items}


def _pack_dict(packer: Packer, value: dict[Any, Any]) -> object:
    """Use a JSON object where one will do, else pairs sorted by the text of the key."""
    plain = all(type(key) is str and _is_unicode(key) for key in value)
    if plain and TYPE_KEY not in value:
        packer.take(sum(map(len, value)))
        return {key: packer.pack(item) for key, item in value.items()}
    pairs = [[packer.pack(key), packer.pack(item)] for key, item in value.items()]
    pairs.sort(key=lambda pair: canonical(pair[0]))
    return {TYPE_KEY: "dict", "pairs": pairs}


def _pack_datetime(packer: Packer, value: datetime) -> object:
    zone = None if value.tzinfo is None else packer.pack(value.tzinfo)
    clock = value.replace(tzinfo=None, fold=0).isoformat()
    return {TYPE_KEY: "datetime", "iso": clock, "fold": value.fold, "zone": zone}


def _pack_time(packer: Packer, value: time) -> object:
    zone = None if value.tzinfo is None else packer.pack(value.tzinfo)
    clock = value.replace(tzinfo=None, fold=0).isoformat()
    return {TYPE_KEY: "time", "iso": clock, "fold": value.fold, "zone": zone}


def _pack_timedelta(_: Packer, value: timedelta) -> object:
    parts = [value.days, value.seconds, value.microseconds]
    return {TYPE_KEY: "timedelta", "parts": parts}


def _pack_timezone(packer: Packer, value: timezone) -> object:
    # What pickle would keep: the offset and, if one was given, the name.
    arguments = cast("Any", value).__getinitargs__()
    return {TYPE_KEY: "timezone", "arguments": packer.pack_all(arguments)}


def _pack_zone(_: Packer, value: ZoneInfo) -> object:
    if value.key is None:
        raise unstorable(value, "use a zone that has a name, such as ZoneInfo('UTC')")
    return {TYPE_KEY: "ZoneInfo", "key": value.key}


def _pack_decimal(packer: Packer, value: Decimal) -> object:
    text = str(value)
    packer.take(len(text))
    return {TYPE_KEY: "Decimal", "text": text}


def _pack_fraction(packer: Packer, value: Fraction) -> object:
    parts = packer.pack_all([value.numerator, value.denominator])
    return {TYPE_KEY: "Fraction", "parts": parts}


_PACKERS: dict[type, Pack] = {
    type(None): _pack_itself,
    bool: _pack_itself,
    int: _pack_int,
    float: _pack_float,
    Estimate: _pack_estimate,
    str: _pack_str,
    bytes: _pack_bytes,
    list: Packer.pack_all,
    tuple: _pack_tuple,
    set: _pack_set,
    frozenset: _pack_set,
    dict: _pack_dict,
    date: lambda _, value: {TYPE_KEY: "date", "iso": value.isoformat()},
    datetime: _pack_datetime,
    time: _pack_time,
    UUID: lambda _, value: {TYPE_KEY: "UUID", "hex": value.hex},
    timedelta: _pack_timedelta,
    timezone: _pack_timezone,
    ZoneInfo: _pack_zone,
    Decimal: _pack_decimal,
    Fraction: _pack_fraction,
}
#: What this part writes.
TYPES = frozenset(_PACKERS)


# Trees to values


def _unpack_items(kind: Any, node: Node, unpack: Unpack) -> Any:
    items = [unpack(item) for item in member(node, "items", list)]
    value = kind(items)
    return value if len(value) == len(items) else not_canonical()


def _unpack_dict(node: Node, unpack: Unpack) -> dict[Any, Any]:
    pairs = member(node, "pairs", list)
    value = {unpack(key): unpack(item) for key, item in pairs}
    return value if len(value) == len(pairs) else not_canonical()


def _unpack_datetime(node: Node, unpack: Unpack) -> datetime:
    clock = datetime.fromisoformat(member(node, "iso", str))
    return clock.replace(tzinfo=unpack(node["zone"]), fold=member(node, "fold", int))


def _unpack_time(node: Node, unpack: Unpack) -> time:
    clock = time.fromisoformat(member(node, "iso", str))
    return clock.replace(tzinfo=unpack(node["zone"]), fold=member(node, "fold", int))


def _unpack_float(node: Node, _: Unpack) -> float:
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[node["text"]]


def _unpack_estimate(node: Node, _: Unpack) -> Estimate:
    low, high, confidence = map(float, member(node, "known", list))
    number = member(node, "number", float)
    return Estimate(number, interval=(low, high), confidence=confidence)


def _unpack_str(node: Node, _: Unpack) -> str:
    return from_base64(member(node, "utf8", str)).decode("utf-8", "surrogatepass")


UNPACKERS: Mapping[str, Callable[[Node, Unpack], Any]] = {
    "int": lambda node, _: int(member(node, "hex", str), 16),
    "float": _unpack_float,
    "Estimate": _unpack_estimate,
    "str": _unpack_str,
    "bytes": lambda node, _: from_base64(member(node, "base64", str)),
    "tuple": partial(_unpack_items, tuple),
    "set": partial(_unpack_items, set),
    "frozenset": partial(_unpack_items, frozenset),
    "dict": _unpack_dict,
    "date": lambda node, _: date.fromisoformat(member(node, "iso", str)),
    "datetime": _unpack_datetime,
    "time": _unpack_time,
    "UUID": lambda node, _: UUID(hex=member(node, "hex", str)),
    "timedelta": lambda node, _: timedelta(*member(node, "parts", list)),
    "timezone": lambda node, unpack: timezone(*map(unpack, node["arguments"])),
    "ZoneInfo": lambda node, _: ZoneInfo(member(node, "key", str)),
    "Decimal": lambda node, _: Decimal(member(node, "text", str)),
    "Fraction": lambda node, unpack: Fraction(*map(unpack, node["parts"])),
}
