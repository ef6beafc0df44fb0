"""`dpflow releases`: the outputs that the ledger keeps and replays."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.output import Answer, Part
from dpflow.cli.source import ledger_facts, project_ledger
from dpflow.notebook import Sheet, data_of, escape_key

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Rows of the list for people.
_MOST = 1000

app = typer.Typer(no_args_is_help=True, help="List, read or withdraw stored releases.")


@app.command("list")
def list_releases(dataset: str | None = None) -> Answer:
    """List the releases with their errors, newest first, without values.

    The error is half of the interval of the drawn numbers, where the step returned
    exactly these.

    Example: `dpflow releases list sales`
    """
    from dpflow.ledger.views.releases import releases

    def data() -> dict[str, Any]:
        with project_ledger() as (_, ledger):
            result = [data_of(item) for item in releases(ledger, dataset)]
        return {**ledger_facts(ledger), "releases": result}

    return data, _parts(dataset)


@app.command()
def show(name: str) -> Answer:
    """Print the value of a release and its interval, checked against its digest.

    The value is the step's output; the policy's guarantee covers its publication.

    Example: `dpflow releases show revenue/2026-W05`
    """
    from dpflow.ledger.codec import decode
    from dpflow.ledger.views.releases import release_value

    with project_ledger() as (_, ledger):
        result, text = release_value(ledger, name)
    value = decode(text)
    data, lines = {**data_of(result), "value": json.loads(text)}, [str(value)]
    if result.known is not None:
        lines.append(_describe(value, result.known))
    return data, lines


def _describe(value: Any, interval: tuple[float, float]) -> str:
    """Return the interval of a release as drawn, in words."""
    from dpflow.noise.accuracy import describe_interval

    half, share = interval
    if isinstance(value, int | float):
        ends = getattr(value, "interval", (value - half, value + half))
        return describe_interval(ends, share)
    return f"each number within {half:.10g} at {100 * share:.4g} %"


@app.command()
def withdraw(name: str, *, reason: str, anyway: bool = False) -> Answer:
    """Delete the value of a release; its digest and its charge stay.

    The next run under its key draws again, at a new charge. If the budget admits no
    such charge, nothing is deleted without --anyway.

    Example: `dpflow releases withdraw revenue/2026-W05 --reason "wrong clip"`
    """
    from dpflow.ledger.views.releases import withdraw_release

    with project_ledger(writes=True) as (_, ledger):
        result, fits = withdraw_release(ledger, name, reason=reason, anyway=anyway)
    again = "admits" if fits else "does not admit"
    done = (
        f"Withdrew the value of {escape_key(result.key) or result.id}. Its digest "
        f"{result.digest} and its charge stay in the ledger. The budget {again} a new "
        "draw at its cost."
    )
    return {**data_of(result), "fits_again": fits}, [done]


def _parts(dataset: str | None) -> Iterator[Part]:
    from dpflow.accounting.costs.text import python_form
    from dpflow.ledger.views.releases import count_releases, releases

    with project_ledger() as (_, ledger):
        items = releases(ledger, dataset, _MOST)
        count = count_releases(ledger, dataset)
    if not items:
        yield (
            "There is no release yet. A step under @dp_task keeps its output when it "
            'runs in a flow, or under a release_key= such as "revenue/{week}".'
        )
        return
    columns = {
        "when (UTC)": [item.at[:16].replace("T", " ") for item in items],
        "release": [escape_key(item.key) or item.id for item in items],
        "dataset": [item.dataset for item in items],
        "step, flow": [
            ", ".join(filter(None, (e.step, e.facts["flow"]))) for e in items
        ],
        "+-": [item.error for item in items],
        "cost": [python_form(item.facts["cost"]) for item in items],
        "who": [item.facts["who"] or "-" for item in items],
        "state": [item.state for item in items],
    }
    if len({*columns["dataset"]}) == 1:
        del columns["dataset"]
    if {*columns["state"]} == {"settled"}:
        del columns["state"]
    yield Sheet.of(columns, "when (UTC)", "+-")
    yield ""
    yield "+-: so near to the true number are 95 % of the releases that hold the drawn"
    yield "numbers unchanged; -: the step changed them, or they have no interval."
    if count > _MOST:
        yield f"The newest {_MOST:,} of {count:,}; --json lists all."
