"""Values of the standard library as trees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any
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


def _pack_int(packer: form.Packer, value: int) -> object:
    if value.bit_length() <= _INT_BITS:
        return value
    return form.node("int", hex=packer.text(format(value, "x")))


def _pack_float(_: form.Packer, value: float) -> object:
    return value if math.isfinite(value) else form.node("float", text=repr(value))


def _pack_estimate(_: form.Packer, value: Estimate) -> object:
    known = [*value.interval, value.confidence]
    return form.node("Estimate", number=float(value), known=known)


def _pack_str(packer: form.Packer, value: str) -> object:
    packer.take(len(value))
    if _is_unicode(value):
        return value
    # JSON would join two lone surrogates that meet into one character.
    return form.node("str", utf8=form.to_base64(value.encode("utf-8", "surrogatepass")))


def _is_unicode(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def _pack_items(packer: form.Packer, value: Any) -> object:
    items, kind = packer.pack_all(value), type(value).__name__
    return form.node(kind, items=items if kind == "tuple" else _sorted(items))


def _sorted(trees: list[Any]) -> list[Any]:
    return sorted(trees, key=canonical)


def _pack_dict(packer: form.Packer, value: dict[Any, Any]) -> object:
    """Use a JSON object where one will do, else pairs sorted by the text of the key."""
    plain = all(type(key) is str and _is_unicode(key) for key in value)
    if plain and form.TYPE_KEY not in value:
        packer.take(sum(map(len, value)))
        return {key: packer.pack(item) for key, item in value.items()}
    pairs = [packer.pack_all(pair) for pair in value.items()]
    # No two keys have one text, so that the values decide nothing.
    return form.node("dict", pairs=_sorted(pairs))


def _pack_clock(packer: form.Packer, value: datetime | time) -> object:
    zone = None if value.tzinfo is None else packer.pack(value.tzinfo)
    clock = value.replace(tzinfo=None, fold=0).isoformat()
    return form.node(type(value).__name__, iso=clock, fold=value.fold, zone=zone)


def _pack_zone(_: form.Packer, value: ZoneInfo) -> object:
    if value.key is None:
        hint = "use a zone that has a name, such as ZoneInfo('UTC')"
        raise form.unstorable(value, hint)
    return form.node("ZoneInfo", key=value.key)


_PACKERS: dict[type, form.Pack] = {
    **dict.fromkeys((type(None), bool), lambda _, value: value),
    int: _pack_int,
    float: _pack_float,
    Estimate: _pack_estimate,
    str: _pack_str,
    bytes: lambda packer, value: form.node(
        "bytes", base64=packer.text(form.to_base64(value))
    ),
    list: form.Packer.pack_all,
    **dict.fromkeys((tuple, set, frozenset), _pack_items),
    dict: _pack_dict,
    date: lambda _, value: form.node("date", iso=value.isoformat()),
    **dict.fromkeys((datetime, time), _pack_clock),
    UUID: lambda _, value: form.node("UUID", hex=value.hex),
    timedelta: lambda _, value: form.node(
        "timedelta", parts=[value.days, value.seconds, value.microseconds]
    ),
    # What pickle would keep: the offset and, if one was given, the name.
    timezone: lambda packer, value: form.node(
        "timezone", arguments=packer.pack_all(value.__getinitargs__())
    ),
    ZoneInfo: _pack_zone,
    Decimal: lambda packer, value: form.node("Decimal", text=packer.text(str(value))),
    Fraction: lambda packer, value: form.node(
        "Fraction", parts=packer.pack_all([value.numerator, value.denominator])
    ),
}
#: What this part writes.
TYPES = frozenset(_PACKERS)


# Trees to values


_ENDLESS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _unpack_items(kind: Any, node: form.Node, unpack: form.Unpack) -> Any:
    items = [unpack(item) for item in form.member(node, "items", list)]
    value = kind(items)
    return value if len(value) == len(items) else form.not_canonical()


def _unpack_dict(node: form.Node, unpack: form.Unpack) -> dict[Any, Any]:
    pairs = form.member(node, "pairs", list)
    value = {unpack(key): unpack(item) for key, item in pairs}
    return value if len(value) == len(pairs) else form.not_canonical()


def _unpack_clock(kind: Any, node: form.Node, unpack: form.Unpack) -> Any:
    clock, fold = (form.member(node, *each) for each in (("iso", str), ("fold", int)))
    return kind.fromisoformat(clock).replace(tzinfo=unpack(node["zone"]), fold=fold)


def _unpack_estimate(node: form.Node, _: form.Unpack) -> Estimate:
    low, high, confidence = map(float, form.member(node, "known", list))
    number = form.member(node, "number", float)
    return Estimate(number, interval=(low, high), confidence=confidence)


def _bytes(node: form.Node, name: str) -> bytes:
    return form.from_base64(form.member(node, name, str))


UNPACKERS: Mapping[str, Callable[[form.Node, form.Unpack], Any]] = {
    "int": lambda node, _: int(form.member(node, "hex", str), 16),
    "float": lambda node, _: _ENDLESS[node["text"]],
    "Estimate": _unpack_estimate,
    "str": lambda node, _: _bytes(node, "utf8").decode("utf-8", "surrogatepass"),
    "bytes": lambda node, _: _bytes(node, "base64"),
    "tuple": partial(_unpack_items, tuple),
    "set": partial(_unpack_items, set),
    "frozenset": partial(_unpack_items, frozenset),
    "dict": _unpack_dict,
    "date": lambda node, _: date.fromisoformat(form.member(node, "iso", str)),
    "datetime": partial(_unpack_clock, datetime),
    "time": partial(_unpack_clock, time),
    "UUID": lambda node, _: UUID(hex=form.member(node, "hex", str)),
    "timedelta": lambda node, _: timedelta(*form.member(node, "parts", list)),
    "timezone": lambda node, unpack: timezone(*map(unpack, node["arguments"])),
    "ZoneInfo": lambda node, _: ZoneInfo(form.member(node, "key", str)),
    "Decimal": lambda node, _: Decimal(form.member(node, "text", str)),
    "Fraction": lambda node, unpack: Fraction(*map(unpack, node["parts"])),
}
