"""Output for people and programs: harmless names, tables for notebooks, JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from html import escape
from math import isfinite
from typing import Any, NamedTuple
from unicodedata import normalize

from dpflow.exceptions import DpflowError


class Sheet(NamedTuple):
    """A table: one text for each head and row; numbers stay in one piece."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[str]], *numbers: str) -> Sheet:
        """Return the table of columns that say something; the others are left out."""
        told = {head: cells for head, cells in columns.items() if any(cells)}
        return cls([*told], [*zip(*told.values(), strict=True)], numbers)


class Record:
    """Base of the record behind a command."""

    __slots__ = ()

    def as_json(self) -> Any:
        """Return the record as its command prints it with `--json`."""
        return data_of(self)


class TableRecord(Record, ABC):
    """Base of a record that terminals and notebooks show as one table."""

    __slots__ = ()

    @abstractmethod
    def sheet(self) -> Sheet:
        """Return the record's table."""

    def _repr_html_(self) -> str:
        heads, rows, _ = self.sheet()
        left = "<th scope='col' style='text-align:left'>"
        head = "".join(f"{left}{escape(text)}</th>" for text in heads)
        cells = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<table><tr>{head}</tr>{body}</table>"


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
