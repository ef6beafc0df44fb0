"""The options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer


def reason_text(text: str | None) -> str | None:
    """Refuse an empty reason: the journal keeps it permanently."""
    if text is None:
        return None
    if not text.strip():
        msg = "the reason is empty. The journal keeps it; write `--reason TEXT`"
        raise typer.BadParameter(msg)
    return text.strip()


#: The option of every command that writes to the journal.
Reason = Annotated[
    str,
    typer.Option(
        "--reason", callback=reason_text, help="Why; the journal keeps the reason."
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
