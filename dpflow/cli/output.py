"""What the commands print: to people, to pipes and to programs.

Tables are as wide as the terminal, and 80 columns wide in a pipe. Text folds in them,
numbers never break. Other lines stay whole in a pipe. `NO_COLOR` and `FORCE_COLOR` are
honoured.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpflow.notebook import Sheet, data_of, plain

Piece = str | tuple[str, str]
#: A line, in one style or in several, or a table.
Part = Piece | list[Piece] | Sheet
#: What a command returns: a record, or a function that makes it; its parts for people;
#: and whether all is fine.
Answer = tuple[object, Iterable[Part]] | tuple[object, Iterable[Part], bool]
#: Where no terminal shows it, a line is never wrapped and a table has a usual width.
_UNBOUNDED, _PIPED = 10_000, 80
#: The descriptor of standard error, the last one of the standard streams.
_STDERR = 2
#: Words fold only if they are so long, or in a narrow terminal so long.
_FOLDED = (16, 8)
_STYLED = ("state", "which is")
_STYLES = {
    "open": "green",
    "running": "green",
    "tighter": "green",
    "halted": "bold red",
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
    width = None if stream.isatty() else _UNBOUNDED
    # Names such as "a:fire:b" or "[red]" are no markup.
    console = Console(
        file=stream, width=width, markup=False, emoji=False, highlight=False
    )
    for part in parts:
        with console.capture() as captured:
            if isinstance(part, Sheet):
                _print_sheet(console, part, _PIPED if width else console.width)
            else:
                console.print(_line(part))
        # Tables pad their last column.
        lines = [line.rstrip() for line in captured.get().splitlines()]
        stream.write("".join(f"{line}\n" for line in lines))


def _line(part: Piece | list[Piece]) -> Text:
    pieces = part if isinstance(part, list) else [part]
    styled = [(each, "") if isinstance(each, str) else each for each in pieces]
    return Text.assemble(*((plain(text), style) for text, style in styled))


def _print_sheet(console: Console, sheet: Sheet, width: int) -> None:
    # No outer frame: lines start with the first cell, also in a pipe.
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for folded in _FOLDED:
        rooms = [_room(sheet, number, folded) for number in range(len(sheet.heads))]
        least = sum(rooms) + 2 * len(rooms)
        if least <= width:
            break
    for number, (head, room) in enumerate(zip(sheet.heads, rooms, strict=True)):
        whole = head in sheet.numbers
        justify: Any = "right" if whole and number else "left"
        table.add_column(
            head, justify=justify, no_wrap=whole, overflow="fold", min_width=room
        )
    for row in sheet.rows:
        pairs = zip(sheet.heads, row, strict=True)
        table.add_row(*(_cell(head, text, sheet) for head, text in pairs))
    # Rich would cut numbers to fit, and half a number reads like another one.
    former, console.width = console.width, max(width, least)
    console.print(table)
    console.width = former


def _room(sheet: Sheet, number: int, folded: int) -> int:
    """Return the least width of a column: numbers are whole, words up to a length."""
    head = sheet.heads[number]
    lines = [line for row in sheet.rows for line in row[number].split("\n")]
    if head not in sheet.numbers:
        words = [word for line in [head, *lines] for word in line.split()]
        return min(max(map(len, words), default=0), folded)
    return max(map(len, [*head.split("\n"), *lines]))


def _cell(head: str, text: str, sheet: Sheet) -> Text:
    """Write one cell; what a journal says can hold anything."""
    text = plain(text)
    text = text if head in sheet.numbers else text.replace("\n", " ")
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
