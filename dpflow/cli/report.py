"""`dpflow report`: one self-contained page about the ledger."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import render, warn
from dpflow.cli.plot import write_file
from dpflow.config import short_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpflow.show.page.facts import Report


def report(
    dataset: str | None = None,
    *,
    out: Path = Path("report.html"),
    verify: bool = False,
    as_json: bool = False,
) -> None:
    """Write one HTML page: status, burn-downs, refusals, guarantees, verification.

    It needs nothing from elsewhere, prints well and shows no value of a release. With
    --json the same facts are printed instead.

    Example: `dpflow report sales --verify --out sales.html`
    """
    from dpflow.config import settings
    from dpflow.show.page.facts import read_report
    from dpflow.show.page.stamp import verified

    made = read_report(settings(), dataset, stamp=verified if verify else None)
    render(made, _written(made, out), as_json=as_json)
    for text in made.warnings:
        warn(text)
    if made.stamp is not None and not made.stamp.found.fine:
        warn(f"the ledger is bad: {made.stamp.problems[0]}")
        raise typer.Exit(1)


def _written(made: Report, out: Path) -> Iterator[str]:
    """Write the page and say so."""
    from dpflow.show.page.render import render

    write_file(out, render(made).encode())
    yield f"Wrote {short_path(out)}: {_summary(made)}."


def _summary(made: Report) -> str:
    known = len({section.standing.dataset for section in made.sections})
    refused = sum(section.refused for section in made.sections)
    if made.stamp is None:
        state = "not verified"
    elif made.stamp.found.fine:
        state = f"{made.stamp.found.entries:,} entries verified"
    else:
        state = "the ledger is bad"
    return f"{_counted(known, 'dataset')}, {_counted(refused, 'refusal')}, {state}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
