"""`dpflow report`: one self-contained page about the ledger."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpflow.cli.output import AsJson, plain, say, say_json, short_path, warn
from dpflow.cli.plot import write_file
from dpflow.cli.status import DatasetArgument

if TYPE_CHECKING:
    from dpflow.config import Settings
    from dpflow.ledger import Ledger
    from dpflow.show.page.facts import Report
    from dpflow.show.page.stamp import Stamp

Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify",
        help="Recompute the whole ledger for its stamp; long ledgers take a while.",
    ),
]


def report(
    dataset: DatasetArgument = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
    verify: Verify = True,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page: status, burn-downs, refusals, guarantees, verification.

    It needs nothing from elsewhere, prints well and shows no value of a release. With
    --json the same facts are printed instead. Exit with 1 if the ledger is bad.

    Example: `dpflow report sales --out sales.html`
    """
    from dpflow.config import settings
    from dpflow.show.page.stamp import verified

    made = read_report(settings(), dataset, stamp=verified if verify else None)
    if as_json:
        say_json(made.as_json())
    else:
        from dpflow.show.page.render import render

        write_file(out, render(made).encode())
        say(f"Wrote {plain(short_path(out))}: {_summary(made)}.")
    for text in made.warnings:
        warn(text)
    if made.stamp is not None and not made.stamp.fine:
        warn(f"the ledger is bad: {made.stamp.problems[0]}")
        raise typer.Exit(1)


def read_report(
    found: Settings,
    dataset: str | None = None,
    *,
    stamp: Callable[[Ledger], Stamp] | None = None,
) -> Report:
    """Read what the page shows; the ledger is opened for reading only.

    Args:
        found: Where the project's ledger and policies are.
        dataset: Only this dataset. Default: all.
        stamp: Verifies the ledger; None leaves that out.

    Raises:
        LedgerError: If the ledger is missing, out of reach or not the pinned one.
        UnknownDataset: If neither the ledger nor a policy knows the dataset.
    """
    from dpflow.cli.source import damage_told, policies_and_problem, standings
    from dpflow.exceptions import LedgerCorrupt
    from dpflow.guard.project import project_ledger
    from dpflow.show.page.facts import collect, unread

    with (
        closing(project_ledger(found, read_only=True)) as ledger,
        damage_told(ledger),
    ):
        policies, problem = policies_and_problem(found.policies)
        # A verification asks the witness by itself.
        forgot = _rollback(ledger) if stamp is None else None
        problems = [text for text in (problem, forgot) if text is not None]
        made = None if stamp is None else stamp(ledger)
        try:
            return collect(
                ledger,
                standings(ledger, policies, dataset),
                policies,
                dataset=dataset,
                problems=problems,
                stamp=made,
            )
        except LedgerCorrupt as error:
            if made is None or made.fine:
                raise
            return unread(ledger, [*problems, error.message], made)


def _rollback(ledger: Ledger) -> str | None:
    """Say that the numbers are too small, if the ledger forgot charges."""
    return ledger.watch.problem(ledger.storage)


def _summary(made: Report) -> str:
    known = len({section.dataset for section in made.sections})
    refused = sum(section.refused for section in made.sections)
    if made.stamp is None:
        state = "not verified"
    elif made.stamp.fine:
        state = f"{made.stamp.entries:,} entries verified"
    else:
        state = "the ledger is bad"
    return f"{_counted(known, 'dataset')}, {_counted(refused, 'refusal')}, {state}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
