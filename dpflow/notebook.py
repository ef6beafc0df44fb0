"""What is shown to people: names made harmless, and tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from unicodedata import normalize

#: Lines of a table; who wants all of them takes the record.
_MOST_ROWS = 100


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
