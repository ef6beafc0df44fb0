"""The command line as people, pipes and programs meet it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from dpflow.accounting.costs.noise import Gaussian
from dpflow.cli import app, main
from tests.cli.support import ANSI, Shop, run_fine, run_process

#: Typer itself needs pydantic to parse some options.
HEAVY = ("prefect", "mpmath", "numpy", "yaml", "sqlite3")


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """A project with charges, a refusal and a forfeited reservation."""
    shop.charge(key="revenue/1997-W14")
    shop.refuse(Gaussian(sensitivity=100, noise_multiplier="0.1"))
    shop.reserve(step="a_step_with_quite_a_long_name")
    return shop


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Give each command with its whole name."""
    for name, below in getattr(command, "commands", {}).items():
        yield from _leaves(below, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


EVERY = dict(_leaves(typer.main.get_command(app), ("dpflow",)))


def test_every_command_shows_an_example_that_it_takes() -> None:
    """Its own name, options that it has, and arguments in capitals or in use."""
    for name, command in EVERY.items():
        example = re.search(r"Example: `([^`]+)`", " ".join(command.help.split()))
        assert example is not None, name
        assert f"{example[1]} ".startswith(f"{name} ")
        words = shlex.split(example[1])[len(name.split()) :]
        command.make_context(name, words, resilient_parsing=True)
        taken = {flag for each in command.params for flag in each.opts}
        assert {word for word in words if word.startswith("--")} <= taken


def test_lists_show_the_first_sentence_of_every_command() -> None:
    """Whole, on one line, and nothing else of its help."""
    for name, command in EVERY.items():
        short = command.short_help
        assert re.fullmatch(r"[A-Z][^\n]{9,}", short), name
        assert " ".join(command.help.split()).startswith(short), name


#: Runs commands and prints the packages that are loaded after the helps and after all.
IMPORTED = """
import json, sys
from typer.testing import CliRunner
from dpflow.cli import app
loaded = []
for lines in json.loads(sys.argv[1]):
    for line in lines:
        done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
        assert done.exit_code == 0, done.output
    loaded.append(sorted({name.partition(".")[0] for name in sys.modules}))
print(json.dumps(loaded))
"""


def test_no_command_that_reads_imports_prefect(busy: Shop) -> None:
    """They answer while Prefect is still loading; help needs no other library, too."""
    helps = ["--help", "history --help"]
    reading = ["status", "history", "policy check", "ledger info", "status --next 2"]
    reading.append("forecast --like weekly-report --theorems")
    result = run_process(json.dumps([helps, reading]), code=IMPORTED)
    assert (result.returncode, result.stderr) == (0, "")
    after_help, after_all = json.loads(result.stdout)
    assert set(HEAVY).isdisjoint(after_help)
    assert "prefect" not in after_all


def test_json_is_only_json(busy: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the colours are forced to."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ANSI in run_fine("history")
    text = run_fine("history", "--json")
    assert json.loads(text)["place"]
    assert ANSI not in text


def test_names_in_the_journal_cannot_command_the_terminal(shop: Shop) -> None:
    """A step's name may hold escape sequences or look like markup."""
    shop.charge(step="\x1b[31m[bold]evil[/bold] :fire:\x07")
    text = run_fine("history")
    assert "[31m[bold]evil[" in text
    assert "/bold] :fire:" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_words_and_files_that_cannot_be_are_errors(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """In one sentence of every command, whatever it would do with them."""
    shop.charge(key="k")
    export = tmp_path / "export"
    run_fine("ledger", "export", "--out", str(export))
    lines = export.read_text().splitlines()
    odd = tmp_path / "odd"
    first = json.loads(lines[0])
    cell = json.loads(lines[1])
    names = [name for name, value in cell.items() if name != "table"]
    odd.write_text("\n".join([lines[0], json.dumps({**cell, names[0]: 10**30})]))
    deep = tmp_path / "deep"
    deep.write_text("[" * 100_000)
    half = tmp_path / "half"
    half.write_text(json.dumps({**first, "ledger": "\ud800"}))
    cases = [
        *(("verify", str(tmp_path / name)) for name in ("missing", ".", "x" * 300)),
        *(("verify", str(path)) for path in (odd, deep, half)),
        ("backup", str(tmp_path / ("x" * 300))),
        ("reservations", "--close", "a\udcffb", "--reason", "x"),
    ]
    for words in cases:
        monkeypatch.setattr(sys, "argv", ["dpflow", "ledger", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 1
        assert capsys.readouterr().err.startswith("error: ")
    monkeypatch.setattr(sys, "argv", ["dpflow", "releases", "show", "a\udcffb"])
    with pytest.raises(SystemExit):
        main()
    assert "is not UTF-8" in capsys.readouterr().err


#: The command, as if some libraries were not installed.
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
sys.argv = ["dpflow", "demo"]
from dpflow.cli import main
main()
"""


def test_without_its_libraries_the_demo_says_what_to_install(empty):
    """In one error, before anything is made or charged."""
    names = ("lifetimes", "opendp", "pandas", "matplotlib")
    done = run_process(*names, code=WITHOUT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    text = " ".join(done.stderr.split())
    assert all(name in text for name in names)
    assert "[examples]" in text
    assert list(empty.root.iterdir()) == []


#: Commands with an option of whole numbers, the least and the largest that it takes.
ENDS = [
    ("policy check", "--people", 1, None),
    ("init", "--people", 1, None),
    ("init", "--terms", 1, 1000),
    ("history", "--limit", 1, None),
    ("why", "shop --limit", 1, None),
    ("why", "shop --term", 1, None),
    ("status", "--next", 1, 1000),
    ("forecast", "--at-least", 0, None),
    ("forecast", "--runs", 1, 10**6),
    ("serve", "--port", 0, 65535),
]


@pytest.mark.parametrize(("name", "words", "least", "most"), ENDS)
def test_a_number_is_taken_up_to_its_ends(name, words, least, most):
    """And refused beyond them, before anything is read."""
    command = EVERY[f"dpflow {name}"]
    taken = [least] if most is None else [least, most]
    refused = [least - 1] if most is None else [least - 1, most + 1]
    for number in taken:
        command.make_context(name, [*words.split(), str(number)])
    for number in refused:
        with pytest.raises(typer.BadParameter):
            command.make_context(name, [*words.split(), str(number)])
