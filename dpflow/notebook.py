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
        """Return the table of the columns that are not empty."""
        filled = {head: cells for head, cells in columns.items() if any(cells)}
        return cls([*filled], [*zip(*filled.values(), strict=True)], numbers)


class TableRecord(ABC):
    """Base of a command's record that terminals and notebooks show as one table."""

    __slots__ = ()

    @abstractmethod
    def sheet(self) -> Sheet:
        """Return the record's table."""

    def as_json(self) -> Any:
        """Return the record as its command prints it with `--json`."""
        return data_of(self)

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
        return [data_of(item) for item in value]
    members = _members_of(value)
    if members is None:
        return str(value)
    return {str(name): data_of(item) for name, item in members.items()}


def _members_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the members of an object; None if it is a single value."""
    if isinstance(value, DpflowError):
        return {"message": value.message, **value.details}
    # A policy, a cost and a named tuple describe themselves.
    for name in ("to_declared", "describe", "_asdict"):
        if hasattr(value, name):
            return dict(getattr(value, name)())
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value) if f.repr}
    return value if isinstance(value, Mapping) else None


def plain(text: str) -> str:
    """Replace the control characters of a text, such as names from a journal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{BULLET}" for c in text)


def escape_key(key: str) -> str:
    """Write a release key so that no two look alike: unusual ones in Python's escapes.

    A key is unusual with a blank at an end, a control character, or characters that are
    not composed (NFC).
    """
    fine = key == normalize("NFC", key.strip()) and key.isprintable()
    return key if fine else ascii(key)
