"""Texts that name releases and partitions, filled with a step's public arguments.

What is released under a name is the answer to everyone who asks under it again. So the
text has to hold an argument whole: `str` shortens arrays and frames, and describes an
object by an address that another one gets later.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from functools import lru_cache
from pathlib import PurePath
from typing import Any
from unicodedata import normalize
from uuid import UUID
from zoneinfo import ZoneInfo

from dpflow.exceptions import ReleaseError
from dpflow.interrupts import suppress
from dpflow.ledger import digest
from dpflow.ledger.codec import TYPE_KEY, encode
from dpflow.ledger.codec.text import as_plain_date
from dpflow.ledger.requests import TEXT
from dpflow.libraries import comes_from
from dpflow.noise.numbers import without_numpy

#: Types whose text tells each value from every other of the type.
_PLAIN: tuple[type, ...] = (str, bool, int, float, type(None), bytes, Decimal, Fraction)
_PLAIN += (date, datetime, time, timedelta, UUID, PurePath)
_ENUMS = (Enum, IntEnum, StrEnum, Flag, IntFlag)
#: What the codec writes of scalars that tell their values themselves.
_SCALARS = {"numpy.generic", "pandas.Timestamp", "pandas.NaTType", "pandas.NAType"}
#: What a list that is read as it stands may be made of.
_LEAVES = {str, bool, int, float, type(None), bytes}
#: A list that is longer is digested.
_MOST_SIGNS = 120
#: How much of a digest stands for what is not written out, or is withheld.
DIGEST_SIGNS = 32

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}")
_DIRECTIVE = re.compile(r"%(?:%|[-_0^#EO]*([A-Za-z]))")
#: Directives that show the hour, and those that show the offset from UTC.
_HOUR, _OFFSET = {*"HIklTRrXc"}, {*"zs"}
#: Where an attribute or an item of a field begins.
_STEP = re.compile(r"(?=\.|\[)(?![^\[]*\])")
#: Parts of a date that two calendars count: years of months, and years of ISO weeks.
_MIXED = (
    ("YyCDFcx", "V", "write %G, the year of the week, in place of %Y"),
    ("Gg", "mbBhjUW", "write %Y, the year of the month, in place of %G"),
)


class AmbiguousArgument(ValueError):
    """An argument whose text could stand for another one."""


class Arguments(dict[str, Any]):
    """Arguments by name, for templates.

    Args:
        values: The arguments.
        zones: Time zones of the step's datasets, each once.
    """

    def __init__(self, values: Mapping[str, Any], zones: Sequence[str]) -> None:
        super().__init__(values)
        self.zones = zones


def fill(template: str, public: Mapping[str, Any]) -> str:
    """Fill a template with the public arguments.

    Raises:
        AmbiguousArgument: If an argument's text does not identify it.
        Exception: If the template does not fit the arguments.

    Examples:
        >>> fill("revenue/{week:02d}", {"week": 7})
        'revenue/07'
    """
    texts = []
    for literal, field, form, conversion in _parse(template):
        texts.append(literal)
        if field is None:
            continue
        filled = _formatter.vformat(form or "", (), public)
        value = _value(field, public, "" if conversion else filled)
        value = _formatter.convert_field(value, conversion)
        if "{" in (form or ""):
            check_calendars(f"{{{field}:{filled}}}")
        texts.append(_text(field, value, filled))
    if not TEXT.fullmatch("".join(texts)):
        msg = "an argument holds NUL or half a surrogate pair: take that character out"
        raise AmbiguousArgument(msg)
    return "".join(texts)


def template_fields(template: str) -> Iterator[str]:
    """Yield the fields of a template, those inside a format included."""
    for _, field, form, _ in string.Formatter().parse(template):
        if field is not None:
            yield field
            yield from template_fields(form or "")


def check_calendars(template: str) -> None:
    """Refuse fields that count years by one calendar and their parts by another.

    Raises:
        AmbiguousArgument: If there is one: days of two years would share a text.
    """
    forms: dict[str, str] = {}
    for _, field, form, _ in _parse(template):
        forms[field or ""] = forms.get(field or "", "") + (form or "")
    for field, form in forms.items():
        parts = {part[1] for part in _DIRECTIVE.finditer(form)}
        for years, inside, advice in _MIXED:
            if parts & {*years} and parts & {*inside}:
                msg = (
                    f"the field {field!r} mixes years of months (%Y) with years of ISO "
                    "weeks (%G, %V), so that days around two New Years would share a "
                    f"text; {advice}"
                )
                raise AmbiguousArgument(msg)


def identify(
    names: Iterable[str], template: str, values: Mapping[str, Any]
) -> dict[str, str]:
    """Return what tells each argument of a call under a release key from every other.

    Args:
        names: Parameters, or fields such as `self.region`.
        template: The release key.
        values: The arguments by name.

    Returns:
        Of a date or time that the template formats, the formatted text; else the text
        that a field without a format writes.

    Raises:
        AmbiguousArgument: If no text tells one of them.
    """
    result = {}
    for name in names:
        forms = {
            "" if how else _formatter.vformat(form or "", (), values)
            for _, field, form, how in _parse(template)
            if field == name
        }
        times = {form: _value(name, values, form) for form in forms}
        dated = [isinstance(v, date | time) and "%" in f for f, v in times.items()]
        if not dated or not all(dated):
            times = {"": _value(name, values)}
        texts = [_text(name, value, form) for form, value in sorted(times.items())]
        result[name] = "\0".join(texts)
    return result


def _value(field: str, values: Mapping[str, Any], form: str = "") -> Any:
    """Return the argument of a field, as something that its text tells whole."""
    zones = values.zones if isinstance(values, Arguments) else ("UTC",)
    name, *steps = [field] if field in values else _STEP.split(field)
    value = _in_zone(values[name], zones)
    for step in steps:
        offset = _offset(value, "%H") if step == ".hour" else ""
        owner, value = value, _formatter.get_field(f"0{step}", (value,), {})[0]
        value = f"{value}{owner:{offset}}" if offset else _in_zone(value, zones)
    if _DIRECTIVE.search(form):
        value = _in_zone(_as_time(field, value, form), zones)
    return _whole(field, value)


def _as_time(field: str, value: Any, form: str) -> Any:
    """Return what a date's format writes as a datetime, if it is something else.

    Raises:
        AmbiguousArgument: If it is a period that the format does not name.
    """
    if comes_from(value, "numpy") and value.dtype.kind == "M":
        return value.astype("datetime64[us]").item()
    if comes_from(value, "pandas") and hasattr(value, "start_time"):
        if format(value.start_time, form) == format(value.end_time, form):
            return value.start_time.to_pydatetime()
        msg = (
            f"its argument {field!r} is a period that is longer than what the format "
            f"{form!r} shows. Pass its first day, or write another format"
        )
        raise AmbiguousArgument(msg)
    if type(value) is str:
        with suppress(ValueError):
            moment = datetime.fromisoformat(value)
            # Other spellings would be other texts of a field without a format.
            if value in (moment.isoformat(), moment.date().isoformat()):
                return moment
    return value


def _in_zone(value: Any, zones: Sequence[str]) -> Any:
    """Return an aware time in the zone of the datasets, and all else unchanged.

    Raises:
        AmbiguousArgument: If the datasets have several zones.
    """
    if type(value) in (list, tuple):
        return type(value)(_in_zone(item, zones) for item in value)
    if type(value) is dict:
        return {key: _in_zone(item, zones) for key, item in value.items()}
    value = as_plain_date(value)
    is_time = isinstance(value, datetime) and value.tzinfo is not None
    if not is_time or value.utcoffset() is None:
        return value
    if len(zones) > 1:
        msg = (
            f"an argument is a time with a zone, and the policies of its datasets say "
            f"different zones: {', '.join(zones)}. Write one `zone` in all of them, "
            "or pass the day, or a time without a zone"
        )
        raise AmbiguousArgument(msg)
    return value.astimezone(UTC if zones[0] == "UTC" else ZoneInfo(zones[0]))


def _offset(value: Any, form: str) -> str:
    """Return the directive that tells the second of two equal hours; else ""."""
    shown = {part[1] for part in _DIRECTIVE.finditer(form)}
    if not isinstance(value, datetime) or not shown & _HOUR or shown & _OFFSET:
        return ""
    is_second = value.utcoffset() != value.replace(fold=0).utcoffset()
    return "%z" if is_second else ""


def _text(field: str, value: Any, form: str) -> str:
    """Write a field; equal numbers and equal characters have one text."""
    if not form or type(value) is str:
        value = _fold(value)
    form += _offset(value, form)
    text = normalize("NFC", _formatter.format_field(value, form))
    if has_address(text):
        msg = (
            f"its argument {field!r} is {text[:80]!r}, which describes an object by "
            "its address, and another one gets that later. Name what tells it"
        )
        raise AmbiguousArgument(msg)
    return text


def _fold(value: Any) -> Any:
    """Return whole floats as integers, and texts in their composed form (NFC)."""
    if type(value) is str:
        return normalize("NFC", value)
    if type(value) in (list, tuple):
        return type(value)(map(_fold, value))
    plain = without_numpy(value)
    return int(plain) if type(plain) is float and plain.is_integer() else value


def has_address(text: str) -> bool:
    """Return True if a text describes an object by where it lies in memory."""
    return _ADDRESS.search(text) is not None


_formatter = string.Formatter()


@lru_cache(maxsize=1024)
def _parse(template: str) -> Sequence[tuple[str, str | None, str | None, str | None]]:
    return tuple(_formatter.parse(template))


def _whole(field: str, value: Any) -> Any:
    """Return the value if its own text tells it, else a text that does.

    Raises:
        AmbiguousArgument: If it has no such text.
    """
    value = as_plain_date(value)
    if _tells_itself(type(value)):
        return value
    try:
        text = encode(value)
    except ReleaseError as error:
        why = str(error.details.get("type", type(value).__name__))
        msg = (
            f"no text tells its argument {field!r} from every other one: it holds a "
            f"value of type {why}. Name what tells it, such as a number, a date or a "
            f"text, or list it in ignore=({field!r},) if the output does not depend "
            "on it"
        )
        raise AmbiguousArgument(msg) from None
    tree = json.loads(text)
    if isinstance(tree, dict) and tree.get(TYPE_KEY) in _SCALARS:
        return value
    if _is_literal(value) and len(repr(value)) <= _MOST_SIGNS:
        return repr(_fold(value))
    return f"{type(value).__name__}:{digest(text)[:DIGEST_SIGNS]}"


def _tells_itself(kind: type) -> bool:
    """Return True if a type's text is its base's own, which distinguishes values."""
    if kind in _PLAIN:
        return True
    bases = _ENUMS + _PLAIN if issubclass(kind, Enum) else _PLAIN
    return issubclass(kind, bases) and all(
        any(getattr(kind, name) is getattr(base, name) for base in bases)
        for name in ("__str__", "__repr__", "__format__")
    )


def _is_literal(value: Any) -> bool:
    """Return True if `repr` writes a value whole, and in one way only."""
    if type(value) in (list, tuple):
        return all(map(_is_literal, value))
    return type(value) in _LEAVES
