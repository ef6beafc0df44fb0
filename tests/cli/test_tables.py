"""Tables of the commands: whole words and keys at every width, and rows in pipes."""

from __future__ import annotations

import io
import random

import pytest

from dpflow import guarded
from dpflow.accounting.costs.notions import PureDP
from dpflow.cli import output
from dpflow.guard.project import forget_projects
from dpflow.notebook import Sheet
from tests.cli.support import Shop, run, run_process, run_terminal, without_colour

pytestmark = pytest.mark.quick

SHEET = Sheet(
    ("when (UTC)", "release key", "outcome", "used"),
    [
        ("2026-01-05 06:29", "delay 2013/" + "x" * 40, "drew noise of its own", "1.5"),
        ("2026-01-05 06:28", "mean/5", "", "12,345,678.25"),
    ],
    ("when (UTC)", "used"),
)


class Terminal(io.StringIO):
    """A terminal; `COLUMNS` says its width."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def printed(sheet: Sheet, stream: io.StringIO) -> str:
    """Return what a stream shows of a table."""
    output._print(stream, [sheet])
    return without_colour(stream.getvalue())


def words_of(sheet: Sheet) -> set[str]:
    """Return the words that may not break: of prose each word, of others the cell."""
    whole = (*sheet.numbers, "release key")
    return {
        word
        for row in sheet.rows
        for head, cell in zip(sheet.heads, row, strict=True)
        for word in ([cell] if head in whole else cell.split())
    }


@pytest.mark.parametrize("columns", [*range(1, 40, 7), *range(40, 140, 3)])
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_no_word_number_or_key_breaks_at_any_width(
    monkeypatch: pytest.MonkeyPatch, columns: int, stream: type[io.StringIO]
) -> None:
    """A terminal, and a pipe of which COLUMNS says the width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(SHEET, stream())
    lines = text.splitlines()
    assert all(any(word in line for line in lines) for word in words_of(SHEET))
    # Only one word, number or key is ever wider than the terminal.
    longest = max(map(len, words_of(SHEET))) + 2 + len("release key") + 2
    assert max(map(len, lines)) <= max(columns, longest)


def test_a_table_has_no_more_lines_than_rows_below_100_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is a table if each row has one line, and blocks otherwise."""
    texts = {}
    for columns in (60, 80, 99, 100, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        texts[columns] = printed(SHEET, Terminal())
    assert "─" not in texts[60] + texts[80] + texts[99]
    assert "  outcome      drew noise of its own\n" in texts[80]
    # At 100 columns words go on the next line, and a block is not needed.
    assert len(texts[100].splitlines()) == 5
    assert len(texts[120].splitlines()) == 4


@pytest.mark.parametrize("columns", [30, 50, 80, 120])
def test_sentences_wrap_at_words(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """In a terminal, also in blocks; a word that is too long stays whole."""
    monkeypatch.setenv("COLUMNS", str(columns))
    sentence = " ".join(f"word{number}" for number in range(60))
    stream = Terminal()
    output._print(stream, [sentence])
    lines = stream.getvalue().splitlines()
    assert " ".join(lines).split() == sentence.split()
    assert columns - 8 <= max(map(len, lines)) <= columns
    text = printed(Sheet(("key", "reason"), [("a", sentence)]), Terminal())
    assert set(sentence.split()) <= set(text.split())
    assert max(map(len, text.splitlines())) <= columns
    stream = Terminal()
    output._print(stream, [f"see {'x' * 150} there"])
    assert "x" * 150 in stream.getvalue().split()


def test_a_pipe_has_one_line_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its cells are."""
    monkeypatch.delenv("COLUMNS", raising=False)
    draw = random.Random(3)
    for _ in range(20):
        heads = [f"head {n}" for n in range(draw.randrange(1, 9))]
        rows = [
            [" ".join("ab" * draw.randrange(9) for _ in range(40)) for _ in heads]
            for _ in range(draw.randrange(1, 5))
        ]
        text = printed(Sheet(heads, rows), io.StringIO())
        assert len(text.splitlines()) == len(rows) + 2


@pytest.mark.parametrize("columns", ["", "0", "-3", "wide"])
def test_a_width_that_is_no_number_counts_as_none(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """The pipe has no width then."""
    monkeypatch.setenv("COLUMNS", columns)
    assert len(printed(SHEET, io.StringIO()).splitlines()) == 4


def mean() -> float:
    """Return a number that is public."""
    return 0.25


def test_keys_of_commands_are_whole_in_pipes_and_narrow_terminals(shop: Shop) -> None:
    """A script that looks for a key, a flow or an id gets it at every width."""
    reservation = shop.reserve(step="a step of many words, its key has more")
    key, flow = "mean of all adults/1997-W15", "weekly-report"
    guarded(dataset="adult", cost=PureDP(epsilon="0.1"), release_key=key)(mean)()
    forget_projects()
    commands = {
        "history": key,
        "releases list": key,
        "why cdnow": flow,
        "ledger reservations": reservation,
        "status --details": flow,
    }
    for command, word in commands.items():
        assert word in run(*command.split()).stdout
    # All print by one function; a real terminal is a process, which takes long.
    text = run_terminal("history", columns=40)
    assert key in without_colour(text)
    piped = run_process("history", COLUMNS="70").stdout
    assert max(map(len, piped.splitlines()[:-4])) <= 70
