"""What the commands print: to people, to pipes and to programs.

In a pipe each row of a table is one line. A terminal shows a table if it is wide
enough, and otherwise a block of lines for each row. No word, number or key breaks.
`COLUMNS`, `NO_COLOR` and `FORCE_COLOR` are honoured.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpflow.notebook import Sheet, data_of, plain


class Verbatim(str):
    """Lines for a file, such as YAML, which no terminal's width breaks."""

    __slots__ = ()


Piece = str | tuple[str, str]
#: A line, in one style or in several, or a table.
Part = Piece | list[Piece] | Sheet
#: What a command returns: a record, or a function that makes it; its parts for people;
#: and whether all is fine.
Answer = tuple[object, Iterable[Part]] | tuple[object, Iterable[Part], bool]
#: Width of a pipe, and the least width in which words of a table go on the next line.
_UNBOUNDED, _WIDE = 10_000, 100
#: The descriptor of standard error, the last one of the standard streams.
_STDERR = 2
#: Columns of keys, which stay in one piece as numbers do.
_KEYS = ("release", "release key", "reservation")
_STYLED = ("state", "which is")
_STYLES = {
    "open": "green",
    "running": "green",
    "tighter": "green",
    "no": "bold red",
    "looser": "bold red",
    "other": "bold red",
    "overdrawn": "bold red",
    "forfeited": "magenta",
    "frozen": "bold cyan",
}


def say(*parts: Part) -> None:
    """Print for people, on standard output."""
    _print(sys.stdout, parts)


def warn(text: str) -> None:
    """Print something that deserves attention, on standard error."""
    _print(sys.stderr, [[("warning: ", "bold yellow"), text]])


def fail(text: str) -> None:
    """Print what went wrong, on standard error."""
    # What was printed before must stand before it, also in a file.
    sys.stdout.flush()
    _print(sys.stderr, [[("error: ", "bold red"), (text, "red")]])


def say_json(data: object) -> None:
    """Print JSON for programs, on standard output."""
    sys.stdout.write(json.dumps(data_of(data), indent=2, allow_nan=False) + "\n")


def render(record: object, parts: Iterable[Part], *, as_json: bool) -> None:
    """Print a record as JSON for programs, or these parts of it for people.

    A part may warn of something before it is printed.
    """
    if as_json:
        say_json(record() if callable(record) else record)
    else:
        say(*parts)


def style_of(word: str) -> str:
    """Return the style of a state or a verdict."""
    return _STYLES.get(word.replace(":", " ").partition(" ")[0], "")


def _print(stream: TextIO, parts: Iterable[Part]) -> None:
    columns = os.environ.get("COLUMNS", "")
    width = None if stream.isatty() else _UNBOUNDED
    if columns.isdecimal() and int(columns):
        width = int(columns)
    # Names such as "a:fire:b" or "[red]" are no markup.
    console = Console(
        file=stream, width=width, markup=False, emoji=False, highlight=False
    )
    for part in parts:
        with console.capture() as captured:
            if isinstance(part, Sheet):
                _print_sheet(console, part)
            elif isinstance(part, Verbatim):
                console.print(_line(part), soft_wrap=True)
            else:
                for line in _wrap(console, _line(part), console.width):
                    console.print(line, soft_wrap=True)
        # Tables pad their last column.
        lines = [line.rstrip() for line in captured.get().splitlines()]
        stream.write("".join(f"{line}\n" for line in lines))


def _line(part: Piece | list[Piece]) -> Text:
    pieces = part if isinstance(part, list) else [part]
    styled = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
    return Text.assemble(*((plain(text), style) for text, style in styled))


def _print_sheet(console: Console, sheet: Sheet) -> None:
    cells = [list(map(_cell, sheet.heads, row)) for row in sheet.rows]
    fixed = [head in (*sheet.numbers, *_KEYS) for head in sheet.heads]
    columns = [*zip(map(Text, sheet.heads), *cells, strict=True)]
    widths = _fit_columns(columns, fixed, console.width)
    if widths is None:
        for number, row in enumerate(cells):
            if number:
                console.print()
            _print_block(console, sheet.heads, row, fixed)
        return
    # No outer frame: lines start with the first cell, also in a pipe.
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for number, (head, width) in enumerate(zip(sheet.heads, widths, strict=True)):
        justify: Any = "right" if number and head in sheet.numbers else "left"
        table.add_column(head, justify=justify, no_wrap=fixed[number], width=width)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _fit_columns(
    columns: Sequence[Sequence[Text]], fixed: Sequence[bool], width: int
) -> list[int] | None:
    """Return the widths of columns in which no word breaks.

    Args:
        columns: Head and cells of each column.
        fixed: True for each column whose cells stay in one line.
        width: Width of the terminal.

    Returns:
        None if the terminal is too narrow.
    """
    widths = [max(cell.cell_len for cell in column) for column in columns]
    least = list(widths)
    for number, column in enumerate(columns):
        if width >= _WIDE and not fixed[number]:
            words = " ".join(cell.plain for cell in column).split()
            least[number] = max(map(cell_len, words), default=0)
    while sum(widths) + 2 * (len(widths) - 1) > width:
        pairs = zip(widths, least, strict=True)
        room = [high if high > low else 0 for high, low in pairs]
        if not any(room):
            return None
        widths[room.index(max(room))] -= 1
    return widths


def _print_block(
    console: Console, heads: Sequence[str], row: Sequence[Text], fixed: Sequence[bool]
) -> None:
    """Print a row as lines: its first cell, then each head with its cell."""
    console.print(row[0], style="bold", soft_wrap=True)
    indent = max(map(cell_len, heads)) + 4
    for head, cell, no_wrap in [*zip(heads, row, fixed, strict=True)][1:]:
        lines = [cell] if no_wrap else _wrap(console, cell, console.width - indent)
        for row_number, line in enumerate(lines if cell else ()):
            start = Text("  " + (head if row_number == 0 else ""))
            line.pad_left(indent - start.cell_len)
            console.print(start + line, soft_wrap=True)


def _wrap(console: Console, text: Text, width: int) -> Iterable[Text]:
    """Return a text as lines of whole words; a longer word makes them wider."""
    longest = max(map(cell_len, text.plain.split()), default=1)
    return text.wrap(console, max(width, longest), overflow="fold")


def _cell(head: str, text: str) -> Text:
    """Return a cell in one line; what a journal says can hold anything."""
    text = plain(text).replace("\n", " ")
    return Text(text, style=style_of(text) if head in _STYLED else "")


def begin_output() -> None:
    """Replace closed streams, and characters that the terminal's encoding lacks.

    Raises:
        SystemExit: If standard output is closed.
    """
    is_closed = sys.stdout is None
    # A file of the ledger must not become one of the standard streams.
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(nowhere)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if is_closed:
        fail("standard output is closed. Nothing was done. Redirect it to a file.")
        sys.exit(1)


def end_output(error: OSError | None = None) -> None:
    """Say in one line that the output could not be written; without a reader, nothing.

    Args:
        error: What writing it raised.

    Raises:
        SystemExit: If it could not be written.
    """
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as later:
            error = later
            # Python would complain of it once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if error is not None and error.errno != errno.EPIPE:
        fail(f"the output cannot be written: {error.strerror}")
        sys.exit(1)
