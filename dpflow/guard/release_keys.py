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
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from functools import lru_cache
from pathlib import PurePath
from typing import Any
from unicodedata import normalize
from uuid import UUID

from dpflow.exceptions import ReleaseError
from dpflow.ledger.codec import TYPE_KEY, encode
from dpflow.ledger.codec.text import as_plain_date
from dpflow.ledger.records import TEXT, digest

#: Types whose text tells each value from every other of the type.
_PLAIN: tuple[type, ...] = (str, bool, int, float, type(None), bytes, Decimal, Fraction)
_PLAIN += (date, datetime, time, timedelta, UUID, PurePath)
_ENUMS = (Enum, IntEnum, StrEnum, Flag, IntFlag)
#: What the codec writes of scalars that tell their values themselves.
_SCALARS = {"numpy.generic", "pandas.Timestamp", "pandas.NaTType", "pandas.NAType"}
#: What a list that is read as it stands may be made of.
_LEAVES = {str, bool, int, float, type(None), bytes}
_FLOATS = ("float16", "float32", "float64")
#: A list that is longer is digested.
_MOST_SIGNS = 120
#: How much of a digest stands for what is not written out, or is withheld.
DIGEST_SIGNS = 32

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}")
_DIRECTIVE = re.compile(r"%(?:%|[-_0^#EO]*([A-Za-z]))")
#: Parts of a date that two calendars count: years of months, and years of ISO weeks.
_MIXED = (
    ("YyCDFcx", "V", "write %G, the year of the week, in place of %Y"),
    ("Gg", "mbBhjUW", "write %Y, the year of the month, in place of %G"),
)


class AmbiguousArgument(ValueError):
    """An argument whose text could stand for another one."""


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
    for literal, field, form, conversion in _parsed(template):
        texts.append(literal)
        if field is None:
            continue
        value = _formatter.convert_field(_value(field, public), conversion)
        filled = _formatter.vformat(form or "", (), public)
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
    for _, field, form, _ in _parsed(template):
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
        value = _value(name, values)
        forms = {
            "" if how else _formatter.vformat(form or "", (), values)
            for _, field, form, how in _parsed(template)
            if field == name and isinstance(value, date | time)
        }
        dated = forms and all("%" in form for form in forms)
        texts = [_text(name, value, form) for form in sorted(forms if dated else {""})]
        result[name] = "\0".join(texts)
    return result


def _value(field: str, values: Mapping[str, Any]) -> Any:
    """Return the argument of a field, as something that its text tells whole."""
    if field in values:
        return _whole(field, values[field])
    return _whole(field, _formatter.get_field(field, (), values)[0])


def _text(field: str, value: Any, form: str) -> str:
    """Write a field; equal numbers and equal characters have one text."""
    if not form or type(value) is str:
        value = _folded(value)
    text = normalize("NFC", _formatter.format_field(value, form))
    if has_address(text):
        msg = (
            f"its argument {field!r} is {text[:80]!r}, which describes an object by "
            "its address, and another one gets that later. Name what tells it"
        )
        raise AmbiguousArgument(msg)
    return text


def _folded(value: Any) -> Any:
    """Return whole floats as integers, and texts in their composed form (NFC)."""
    if type(value) is str:
        return normalize("NFC", value)
    if type(value) in (list, tuple):
        return type(value)(map(_folded, value))
    is_float = type(value) is float or type(value).__name__ in _FLOATS
    return int(value) if is_float and value.is_integer() else value


def has_address(text: str) -> bool:
    """Say whether a text describes an object by where it lies in memory."""
    return _ADDRESS.search(text) is not None


_formatter = string.Formatter()


@lru_cache(maxsize=1024)
def _parsed(template: str) -> Sequence[tuple[str, str | None, str | None, str | None]]:
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
        return repr(_folded(value))
    return f"{type(value).__name__}:{digest(text)[:DIGEST_SIGNS]}"


def _tells_itself(kind: type) -> bool:
    """Say whether a type's text is its base's own, which tells each value."""
    if kind in _PLAIN:
        return True
    bases = _ENUMS + _PLAIN if issubclass(kind, Enum) else _PLAIN
    return issubclass(kind, bases) and all(
        any(getattr(kind, name) is getattr(base, name) for base in bases)
        for name in ("__str__", "__repr__", "__format__")
    )


def _is_literal(value: Any) -> bool:
    """Say whether `repr` writes a value whole, and in one way only."""
    if type(value) in (list, tuple):
        return all(map(_is_literal, value))
    return type(value) in _LEAVES
