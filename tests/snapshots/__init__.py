"""Commands with their output in files; `make snapshots` writes the output anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from difflib import unified_diff
from importlib.metadata import version
from pathlib import Path
from textwrap import indent

from packaging.version import Version

FOLDER = Path(__file__).parent
#: Where it is set, files are written instead of compared.
WRITE = "WRITE_SNAPSHOTS"
_PROMPT = "$ "
#: Earlier versions give the columns of tables other widths.
_RICH = Version("15")
_DIGITS = re.compile(
    r"\b(?<!\d\.)(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{12}|(?<=project=\")[0-9a-f]{6}"
    r"|(?<=main \()[0-9a-f]{8})\b"
)


def settled(text: str, *folders: Path | str) -> str:
    """Replace what differs from run to run by texts of the same length."""
    for number, folder in enumerate(folders):
        text = text.replace(str(folder), f"/{number}")
    known: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        digits = match[0]
        return known.setdefault(digits, f"id-{len(known)}-".ljust(len(digits), "0"))

    return _DIGITS.sub(name, text)


def commands(name: str) -> list[str]:
    """Return the commands of a file, in its order: lines after `$ `."""
    lines = _on_file(name).splitlines()
    result = [line[len(_PROMPT) :] for line in lines if line.startswith(_PROMPT)]
    assert result, name
    return result


def answers(name: str, ask: Callable[[str], str]) -> str:
    """Return the cases of a file, each with its answer below it, indented."""
    cases = [line for line in _on_file(name).splitlines() if line[:1] not in ("", " ")]
    return "".join(f"{case}\n{indent(ask(case), '  ')}\n" for case in cases)


def differences(outputs: dict[str, str]) -> list[str]:
    """Return the lines of texts that differ from their files, or write the files.

    Where the library of tables is older than that of the files, none is compared.
    """
    if WRITE in os.environ:
        for name, text in outputs.items():
            (FOLDER / f"{name}.txt").write_text(text, "utf-8")
    is_older = Version(version("rich")) < _RICH
    lines = [
        line
        for name, text in outputs.items()
        for line in unified_diff(
            _on_file(name).splitlines(keepends=True),
            text.splitlines(keepends=True),
            name,
            n=0,
        )
    ]
    return [] if is_older else lines


def _on_file(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text("utf-8")
