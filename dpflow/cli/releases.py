"""`dpflow releases`: the outputs that the ledger keeps and replays."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.output import say, say_json
from dpflow.cli.source import ledger_facts, project_ledger
from dpflow.notebook import data_of, plain, shown_key

if TYPE_CHECKING:
    from dpflow.accounting.costs.base import Cost
    from dpflow.ledger.views.releases import KeptRelease

#: Of an error that no release states for itself.
_CONFIDENCE = 0.95

app = typer.Typer(
    no_args_is_help=True, help="List, read or withdraw the outputs that are replayed."
)


@app.command("list")
def list_releases(dataset: str | None = None, *, as_json: bool = False) -> None:
    """List what was published, with which error; newest first, without the values.

    The error is half of the interval that was released, and else of the 95 % interval
    of the noise that was drawn.

    Example: `dpflow releases list sales`
    """
    from dpflow.ledger.views.releases import releases

    with project_ledger() as (_, ledger):
        found = releases(ledger, dataset)
        facts = ledger_facts(ledger)
    if as_json:
        say_json({**facts, "releases": [_data(item) for item in found]})
    elif not found:
        say(
            "No release is kept yet. A step under @dp_task keeps its output when it "
            'runs in a flow, or under a release_key= such as "revenue/{week}".'
        )
    else:
        _print(found)


@app.command()
def show(name: str, *, as_json: bool = False) -> None:
    """Print the value of a release and its interval, checked against its digest.

    It is what the step returned, and so as public as the policy lets it be.

    Example: `dpflow releases show revenue/2026-W05`
    """
    from dpflow.accuracy.estimate import Estimate
    from dpflow.ledger.codec import decode
    from dpflow.ledger.views.releases import release_value

    with project_ledger() as (_, ledger):
        found, text = release_value(ledger, name)
    if as_json:
        say_json({**_data(found), "value": json.loads(text)})
    else:
        value = decode(text)
        say(plain(str(value)))
        if isinstance(value, Estimate):
            low, high = value.interval
            say(f"{low:.10g} to {high:.10g} at {100 * value.confidence:.4g} %")


@app.command()
def withdraw(name: str, *, reason: str, as_json: bool = False) -> None:
    """Delete the value of a release; its digest and its charge stay.

    The next run under its key draws anew, at a charge of its own.

    Example: `dpflow releases withdraw revenue/2026-W05 --reason "wrong clip"`
    """
    from dpflow.ledger.office import withdraw_release

    with project_ledger(writes=True) as (_, ledger):
        found = withdraw_release(ledger, name, reason=reason)
    if as_json:
        say_json(_data(found))
    else:
        say(
            f"Withdrew the value of {shown_key(found.key) or found.id}. Its digest "
            f"{found.digest} and its charge stay in the ledger."
        )


def _data(found: KeptRelease) -> dict[str, Any]:
    return {**data_of(found), "known": _error(found)}


def _cost(found: KeptRelease) -> Cost | None:
    """Return its cost; None if a later dpflow wrote one that this one does not know."""
    from dpflow.accounting.costs.base import cost_from_description
    from dpflow.exceptions import InvalidCost

    try:
        return cost_from_description(found.cost)
    except InvalidCost:
        return None


def _error(found: KeptRelease) -> tuple[float, float] | None:
    """Return half the width of an interval around the release, and its confidence."""
    from dpflow.forecast.noise import half_width
    from dpflow.rounding import float_up

    if found.known is not None:
        return found.known
    cost = _cost(found)
    half = None if cost is None else half_width(cost, found.reported)
    return None if half is None else (float_up(half), _CONFIDENCE)


def _print(found: list[KeptRelease]) -> None:
    from fractions import Fraction

    from dpflow.cli.tables import cell, new_table
    from dpflow.ledger.views.spending import OWN_NOISE
    from dpflow.rounding import short_up

    when, error = "when (UTC)", "+-"
    datasets = len({item.dataset for item in found}) > 1
    states = {item.state for item in found} != {"settled"}
    own = False
    table = new_table(
        when,
        "release",
        *(["dataset"] if datasets else []),
        "step, flow",
        error,
        "cost",
        "who",
        *(["state"] if states else []),
        numbers=(when, error),
    )
    table.columns[0].justify = "left"
    for item in found:
        cost, known, drew = _cost(item), _error(item), item.noise in OWN_NOISE
        own |= drew and known is not None
        said = "-" if known is None else short_up(Fraction(known[0]), 3)
        if known is not None and known[1] != _CONFIDENCE:
            said += f" at {100 * known[1]:.4g} %"
        said += "*" if drew and known is not None else ""
        facts = (
            item.at[:16].replace("T", " "),
            shown_key(item.key) or item.id,
            *([item.dataset] if datasets else []),
            f"{item.step}, {item.flow}" if item.flow else item.step,
            said,
            item.cost.get("mechanism", "-") if cost is None else repr(cost),
            item.who or "-",
            *([item.state] if states else []),
        )
        table.add_row(*map(cell, facts))
    say(table)
    say("", "+-: 95 % of the releases are so near to the true number, by their noise.")
    if own:
        say("*: drawn by the step itself; that it is the declared noise is its word.")
