"""Texts that name releases and partitions, filled with a step's public arguments.

What is released under a name is the answer to everyone who asks under it again. So the
text has to hold an argument whole: `str` shortens arrays and frames, and describes an
object by an address that another one gets later.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from fractions import Fraction
from functools import lru_cache
from pathlib import (
    PosixPath,
    PurePath,
    PurePosixPath,
    PureWindowsPath,
    WindowsPath,
)
from typing import Any
from uuid import UUID

from dpflow.exceptions import ReleaseError
from dpflow.ledger.codec import TYPE_KEY, encode
from dpflow.ledger.records import digest

#: Types whose text tells each value from every other of the type.
_PLAIN: tuple[type, ...] = (
    str,
    bool,
    int,
    float,
    type(None),
    bytes,
    date,
    datetime,
    time,
    timedelta,
    Decimal,
    Fraction,
    UUID,
    PurePath,
    PurePosixPath,
    PureWindowsPath,
    PosixPath,
    WindowsPath,
)
_ENUMS = (Enum, IntEnum, StrEnum, Flag, IntFlag)
#: What the codec writes of scalars that tell their values themselves.
_SCALARS = {"numpy.scalar", "pandas.Timestamp", "pandas.NaT", "pandas.NA"}
#: What a list that is read as it stands may be made of.
_LEAVES = {str, bool, int, float, type(None), bytes}
#: A list that is longer is digested.
_MOST_SIGNS = 120
#: How much of a digest stands for what is not written out, or is withheld.
DIGEST_SIGNS = 32

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}")


class Untold(ValueError):
    """An argument whose text could stand for another one."""


@dataclass(frozen=True, slots=True)
class Name:
    """A filled template.

    Attributes:
        text: For people.
        fields: What it was filled with, if other arguments could give the same text;
            else nothing, for the text tells it.
    """

    text: str
    fields: tuple[str, ...] = ()


def fill(template: str, public: Mapping[str, Any]) -> Name:
    """Fill a template with the public arguments.

    Raises:
        Untold: If an argument cannot be told by its text.
        Exception: If the template does not fit the arguments.

    Examples:
        >>> fill("revenue/{week:02d}", {"week": 7}).text
        'revenue/07'
    """
    formatter = _formatter
    between, texts = [""], []
    for literal, field, form, conversion in _parsed(template):
        between[-1] += literal
        if field is None:
            continue
        if field in public:
            value = _whole(field, public[field])
        else:
            value, _ = formatter.get_field(field, (), public)
        value = formatter.convert_field(value, conversion)
        filled = formatter.vformat(form, (), public) if form else ""
        texts.append(_without_address(field, formatter.format_field(value, filled)))
        between.append("")
    parts = (a + b for a, b in zip(between, [*texts, ""], strict=True))
    text = "".join(parts)
    return Name(text, () if _told(text, between, texts) else tuple(texts))


def template_fields(template: str) -> Iterator[str]:
    """Yield the fields of a template, those inside a format included."""
    for _, field, form, _ in string.Formatter().parse(template):
        if field is not None:
            yield field
            yield from template_fields(form or "")


def has_address(text: str) -> bool:
    """Say whether a text describes an object by where it lies in memory."""
    return _ADDRESS.search(text) is not None


class _Formatter(string.Formatter):
    """Formats as `str.format` does, but for values that it would shorten."""

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return what a field speaks of, as something that its text tells whole."""
        value, first = super().get_field(field_name, args, kwargs)
        return _whole(field_name, value), first


_formatter = _Formatter()


@lru_cache(maxsize=1024)
def _parsed(template: str) -> Sequence[tuple[str, str | None, str | None, str | None]]:
    return tuple(_formatter.parse(template))


def _whole(field: str, value: Any) -> Any:
    """Return the value if its own text tells it, else a text that does.

    Raises:
        Untold: If there is none.
    """
    if _tells_itself(type(value)):
        return value
    why = ""
    try:
        text = encode(value)
    except ReleaseError as error:
        why = error.message
    if why:
        msg = (
            f"no text tells its argument {field!r} from every other one: {why} Name "
            "what tells it, such as a number, a date or a text"
        )
        raise Untold(msg)
    tree = json.loads(text)
    if isinstance(tree, dict) and tree.get(TYPE_KEY) in _SCALARS:
        return value
    if _is_literal(value) and len(repr(value)) <= _MOST_SIGNS:
        return repr(value)
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


def _without_address(field: str, text: str) -> str:
    if has_address(text):
        msg = (
            f"its argument {field!r} is {text[:80]!r}, which describes an object by "
            "its address, and another one gets that later. Name what tells it"
        )
        raise Untold(msg)
    return text


def _told(text: str, between: Sequence[str], texts: Sequence[str]) -> bool:
    """Say whether no other fields give this text: reading it finds these."""
    place = len(between[0])
    for field, behind in zip(texts[:-1], between[1:-1], strict=True):
        if not behind or text.find(behind, place) != place + len(field):
            return False
        place += len(field) + len(behind)
    return True
