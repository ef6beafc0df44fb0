"""Page about every statement of the five papers; the rows are in seeds.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).parent

Rows = dict[str, dict[str, dict[str, str]]]

_HEAD = (
    "# Statements of the five papers\n\n"
    "Each numbered statement and each experiment of the five papers has a row: the "
    "file that uses it and a test that shows it, or the reason for neither. If a "
    "published statement is wrong, the row is about the corrected one; see "
    "[corrections](derivations/README.md#corrections-to-published-statements).\n"
)


def rows() -> Rows:
    """Return the rows by paper and statement."""
    return tomllib.loads((HERE / "seeds.toml").read_text("utf-8"))


def page(papers: Rows) -> str:
    """Return the page."""
    parts = [_HEAD]
    for paper, statements in papers.items():
        parts += [f"## {paper}\n", _table(statements)]
    return "\n".join(parts)


def _table(statements: dict[str, dict[str, str]]) -> str:
    columns = ["statement", "content", "file", "test"]
    columns += ["reproduced"] * any("reproduced" in r for r in statements.values())
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for name, row in statements.items():
        more = f" {row['reproduced']} |" if "reproduced" in row else ""
        lines.append(f"| {name} | {row['says']} | {_where(row)} |{more}")
    return "\n".join(lines) + "\n"


def _where(row: dict[str, str]) -> str:
    """Return the last two cells: file and test, or the reason."""
    if "why" in row:
        return f"| {row['why']}"
    return f"`{row['file']}` | `{row['test']}`"
