"""What the commands print: to people, to pipes and to programs.

A terminal gets tables in colour, as wide as it is. A pipe gets the same text without
colour, never wrapped or cut, so that `grep` and `cut` see whole lines. `NO_COLOR` and
`FORCE_COLOR` are honoured.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dpflow.notebook import data_of, plain

#: Wide enough that nothing is ever wrapped where no terminal shows it.
_UNBOUNDED = 10_000

#: Columns of text fold down to so many characters.
_FOLDED = 8

#: Columns that a narrow terminal shows only where one of them is not 0.
_RARE = ("reserved", "forfeited")


def say(*parts: RenderableType) -> None:
    """Print for people, on standard output."""
    _print(sys.stdout, *parts)


def warn(text: str) -> None:
    """Print something that deserves attention, on standard error."""
    _print(sys.stderr, Text.assemble(("warning: ", "bold yellow"), plain(text)))


def fail(text: str) -> None:
    """Print what went wrong, on standard error."""
    # What was printed before must stand before it, also in a file.
    sys.stdout.flush()
    _print(sys.stderr, Text.assemble(("error: ", "bold red"), (plain(text), "red")))


def say_json(data: object) -> None:
    """Print JSON for programs, on standard output."""
    sys.stdout.write(json.dumps(data_of(data), indent=2, allow_nan=False) + "\n")


def answer(data: object, *parts: RenderableType, as_json: bool) -> None:
    """Print a record, as JSON for programs or in words for people."""
    if as_json:
        say_json(data)
    else:
        say(*parts)


def is_terminal() -> bool:
    """Say whether a person reads standard output."""
    return sys.stdout.isatty()


def _print(stream: TextIO, *parts: RenderableType) -> None:
    console = _console(stream)
    if stream.isatty():
        for part in parts:
            _print_whole(console, part)
        return
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    # Tables pad their last column.
    lines = [line.rstrip() for line in captured.get().splitlines()]
    stream.write("\n".join(lines) + "\n")


def _console(stream: TextIO) -> Console:
    # Names such as "a:fire:b" or "[red]" are no markup.
    return Console(
        file=stream,
        width=None if stream.isatty() else _UNBOUNDED,
        markup=False,
        emoji=False,
        highlight=False,
    )


def _print_whole(console: Console, part: RenderableType) -> None:
    """Print a part; text folds where it must, numbers never break.

    Rich would cut numbers to fit, and half a number reads like another one.
    """
    width = console.width
    if isinstance(part, Table):
        if _full_width(console, part) > width:
            _leave_out_zeros(part)
        if _full_width(console, part) > width:
            part.padding = 0
        console.width = max(width, _least_width(console, part))
    console.print(part)
    console.width = width


def _full_width(console: Console, table: Table) -> int:
    """Return the width in which nothing folds."""
    unbounded = console.options.update(width=_UNBOUNDED)
    return console.measure(table, options=unbounded).maximum


def _leave_out_zeros(table: Table) -> None:
    """Leave out columns that are there for what is rare, while all of it is zero."""
    for column in list(table.columns):
        zeros = all(str(cell) == "0" for cell in column.cells)
        if str(column.header) in _RARE and zeros:
            table.columns.remove(column)
    for index, column in enumerate(table.columns):
        column._index = index  # noqa: SLF001 (rich has no way to remove a column)


def _least_width(console: Console, table: Table) -> int:
    """Set how far each column may shrink, and return the width that this needs."""
    total = len(table.columns) - 1
    for column in table.columns:
        cells = [column.header, *column.cells]
        width = max(console.measure(cell).maximum for cell in cells)
        column.min_width = width if column.no_wrap else min(width, _FOLDED)
        total += column.min_width
    return total


def survive_encoding() -> None:
    """Print a replacement for what the terminal's encoding lacks, never fail."""
    streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def survive_closed_pipe() -> None:
    """Drop what nobody reads any more, as Python would complain of it at its end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
