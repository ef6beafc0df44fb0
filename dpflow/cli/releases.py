"""`dpflow releases`: the outputs that the ledger keeps and replays."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.output import AsJson, plain, say, say_json
from dpflow.cli.status import DatasetArgument

if TYPE_CHECKING:
    from dpflow.ledger.releases import Release

app = typer.Typer(
    no_args_is_help=True, help="List, read or forget the outputs that are replayed."
)

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="Its release key, or its id or the start of that."
    ),
]


@app.command("list")
def list_releases(dataset: DatasetArgument = None, *, as_json: AsJson = False) -> None:
    """List the releases, newest first; values are not shown.

    Example: `dpflow releases list sales`
    """
    from dpflow.cli.source import ledger_facts, project_ledger
    from dpflow.ledger.releases import releases

    with project_ledger() as (_, ledger):
        found = releases(ledger, dataset)
        facts = ledger_facts(ledger)
    if as_json:
        say_json({"ledger": facts, "releases": [_data(item) for item in found]})
    elif not found:
        say(
            "No release is kept yet. A step under @dp_task keeps its output when it "
            'runs in a flow, or under a release_key= such as "revenue/{week}".'
        )
    else:
        _print(found)


@app.command()
def show(name: NameArgument, *, as_json: AsJson = False) -> None:
    """Print the value of a release, checked against its digest.

    It is what the step returned, and so as public as the policy lets it be.

    Example: `dpflow releases show revenue/2026-W05`
    """
    from dpflow.cli.source import project_ledger
    from dpflow.ledger.codec import decode
    from dpflow.ledger.releases import release_value

    with project_ledger() as (_, ledger):
        found, text = release_value(ledger, name)
    if as_json:
        say_json({**_data(found), "value": json.loads(text)})
    else:
        say(plain(str(decode(text))))


@app.command()
def forget(name: NameArgument, *, as_json: AsJson = False) -> None:
    """Delete the value of a release; its digest and its charge stay.

    The next run under its key draws anew, at a charge of its own.

    Example: `dpflow releases forget revenue/2026-W05`
    """
    from dpflow.cli.source import project_ledger
    from dpflow.ledger.releases import forget_release

    with project_ledger(writes=True) as (_, ledger):
        found = forget_release(ledger, name)
    if as_json:
        say_json(_data(found))
    else:
        say(
            f"Forgot the value of {plain(found.key or found.id)}. Its digest "
            f"{found.digest} and its charge stay in the ledger."
        )


def _data(found: Release) -> dict[str, Any]:
    return asdict(found)


def _print(found: list[Release]) -> None:
    from dpflow.cli.tables import cell, new_table

    table = new_table("id", "key", "dataset", "step", "state", "at")
    for item in found:
        facts = (item.id, item.key, item.dataset, item.step, item.state, item.at[:16])
        table.add_row(*(cell(fact) for fact in facts))
    say(table)
