"""The options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer


def because_text(text: str) -> str:
    """Refuse an empty reason: the journal keeps it for ever."""
    if not text.strip():
        msg = "say --because with a reason; the journal keeps it"
        raise typer.BadParameter(msg)
    return text.strip()


#: The option of every command that writes to the journal.
Because = Annotated[
    str,
    typer.Option(
        "--because", callback=because_text, help="Why; the journal keeps the reason."
    ),
]
Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset.")]
AnyDataset = Annotated[
    str | None,
    typer.Argument(metavar="DATASET", help="Only this dataset. Default: all."),
]
TheDataset = Annotated[
    str | None,
    typer.Argument(metavar="DATASET", help="The dataset, if there are several."),
]
