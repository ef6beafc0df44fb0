"""Output for people and programs: harmless names, tables for notebooks, JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from html import escape
from math import isfinite
from typing import Any
from unicodedata import normalize

from dpflow.exceptions import DpflowError

#: Lines of a table; who wants all of them takes the record.
_MOST_ROWS = 100


class Record:
    """Base of the record behind a command."""

    __slots__ = ()

    def as_json(self) -> Any:
        """Return the record as its command prints it with `--json`."""
        return data_of(self)


def data_of(value: Any) -> Any:
    """Return a value as JSON: exact numbers as text, an infinite float as null.

    A dataclass becomes an object of its fields, without those hidden from its `repr`.
    """
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Fraction):
        from dpflow.rounding import number_text  # noqa: PLC0415 (loads mpmath)

        return number_text(value)
    if isinstance(value, Sequence) and not hasattr(value, "_asdict"):
        return [data_of(each) for each in value]
    found = _mapping_of(value)
    if found is None:
        return str(value)
    return {str(name): data_of(each) for name, each in found.items()}


def _mapping_of(value: Any) -> Mapping[Any, Any] | None:
    """Return what an object consists of; None if it is one value."""
    if isinstance(value, DpflowError):
        return {"message": value.message, **value.details}
    # A policy, a cost and a named tuple describe themselves.
    for name in ("declared", "describe", "_asdict"):
        if hasattr(value, name):
            return dict(getattr(value, name)())
    if is_dataclass(value):
        names = [each.name for each in fields(value) if each.repr]
        return {name: getattr(value, name) for name in names}
    return value if isinstance(value, Mapping) else None


def plain(text: str) -> str:
    """Make names from a journal harmless: no control sign reaches what shows them."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{BULLET}" for c in text)


def shown_key(key: str) -> str:
    """Write a release key so that no two look alike: odd ones in Python's escapes.

    Odd are those with a blank at an end, control signs, or characters that are not
    composed (NFC).
    """
    fine = key == normalize("NFC", key.strip()) and key.isprintable()
    return key if fine else ascii(key)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; every cell is escaped.

    Args:
        heads: One for each column.
        rows: Texts, one for each column.
    """
    cells = (tuple(map(escape, row)) for row in rows)
    return marked_up_table(heads, cells)


def marked_up_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table whose cells are HTML."""
    head = "".join(
        f"<th scope='col' style='text-align:left'>{escape(text)}</th>" for text in heads
    )
    lines = [_line(row) for row in rows]
    more = f"<p>{len(lines) - _MOST_ROWS} more</p>" if len(lines) > _MOST_ROWS else ""
    return f"<table><tr>{head}</tr>{''.join(lines[:_MOST_ROWS])}</table>{more}"


def _line(row: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
