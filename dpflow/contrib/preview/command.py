"""`dpflow preview`: what a change does, for the review of it."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the policies' libraries)

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from dpflow.cli.output import AsJson, say, say_json
from dpflow.notebook import plain


class FailOn(StrEnum):
    """What makes a preview fail."""

    LOOSER = "looser"


_Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="REV",
        help="What it is merged into. Default: the remote's branch, or main, or "
        "master.",
    ),
]
_Head = Annotated[
    str | None,
    typer.Option("--head", metavar="REV", help="Default: the working tree."),
]
_FailOn = Annotated[
    FailOn | None,
    typer.Option(
        "--fail-on", help="Exit with 1 if a guarantee may be looser than before."
    ),
]
_Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print a comment for a pull request.")
]


def preview(
    *,
    base: _Base = None,
    head: _Head = None,
    fail_on: _FailOn = None,
    markdown: _Markdown = False,
    as_json: AsJson = False,
) -> None:
    """Say what a change of code or policies does to costs, runs left and guarantees.

    Compares with where the change began in git. Nothing is run, no data is read and no
    ledger written; if the ledger can be read, it tells how many steps fit now.

    Example: `dpflow preview --base origin/main --fail-on looser`
    """
    from dpflow.config import settings
    from dpflow.contrib.preview import text as preview_text
    from dpflow.contrib.preview.compare import preview as compare

    if markdown and as_json:
        msg = "give --markdown or --json, not both"
        raise typer.BadParameter(msg)
    found = compare(settings(), base=base, head=head)
    if as_json:
        say_json(preview_text.data(found))
    elif markdown:
        sys.stdout.write(preview_text.markdown(found))
    else:
        say(*map(plain, preview_text.text(found)))
    if fail_on is not None and (found.weaker or found.problems):
        raise typer.Exit(1)
