"""`dpflow releases`: the outputs that the ledger keeps and replays."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.output import Answer, Part
from dpflow.cli.source import ledger_facts, project_ledger
from dpflow.notebook import Sheet, data_of, shown_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpflow.ledger.views.releases import KeptRelease

#: Rows of the list for people.
_MOST = 1000
#: Of an error that no release states for itself.
_CONFIDENCE = 0.95

app = typer.Typer(no_args_is_help=True, help="List, read or withdraw stored releases.")


@app.command("list")
def list_releases(dataset: str | None = None) -> Answer:
    """List the releases with their errors, newest first, without values.

    The error is half of the released interval, or else of the 95 % interval of the
    noise.

    Example: `dpflow releases list sales`
    """
    from dpflow.ledger.views.releases import releases

    def data() -> dict[str, Any]:
        with project_ledger() as (_, ledger):
            result = [_data(item) for item in releases(ledger, dataset)]
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
    from dpflow.noise.accuracy import Estimate

    with project_ledger() as (_, ledger):
        result, text = release_value(ledger, name)
    value = decode(text)
    lines = [str(value)]
    if isinstance(value, Estimate):
        low, high = value.interval
        lines += [f"{low:.10g} to {high:.10g} at {100 * value.confidence:.4g} %"]
    return {**_data(result), "value": json.loads(text)}, lines


@app.command()
def withdraw(name: str, *, reason: str, anyway: bool = False) -> Answer:
    """Delete the value of a release; its digest and its charge stay.

    The next run under its key draws again, at a new charge. If the budget admits no
    such charge, nothing is deleted without --anyway.

    Example: `dpflow releases withdraw revenue/2026-W05 --reason "wrong clip"`
    """
    from dpflow.ledger.office import withdraw_release

    with project_ledger(writes=True) as (_, ledger):
        result, fits = withdraw_release(ledger, name, reason=reason, anyway=anyway)
    again = "admits" if fits else "does not admit"
    done = (
        f"Withdrew the value of {shown_key(result.key) or result.id}. Its digest "
        f"{result.digest} and its charge stay in the ledger. The budget {again} a new "
        "draw at its cost."
    )
    return {**_data(result), "fits_again": fits}, [done]


def _data(kept_release: KeptRelease) -> dict[str, Any]:
    return {**data_of(kept_release), "known": _error(kept_release)}


def _error(kept_release: KeptRelease) -> tuple[float, float] | None:
    """Return half the width of an interval around the release, and its confidence."""
    from dpflow.accounting.costs.base import cost_from_description
    from dpflow.exceptions import InvalidCost
    from dpflow.forecast.noise import half_width
    from dpflow.rounding import float_up

    if kept_release.known is not None:
        return kept_release.known
    cost, reported = kept_release.facts["cost"], kept_release.facts["reported"]
    try:
        half = half_width(cost_from_description(cost), reported)
    except InvalidCost:
        # A later dpflow may have written a cost that this one does not know.
        return None
    return None if half is None else (float_up(half), _CONFIDENCE)


def _parts(dataset: str | None) -> Iterator[Part]:
    from dpflow.accounting.costs.text import python_form
    from dpflow.ledger.views.releases import count_releases, releases
    from dpflow.ledger.views.spending import OWN_NOISE

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
        "when (UTC)": [each.at[:16].replace("T", " ") for each in items],
        "release": [shown_key(each.key) or each.id for each in items],
        "dataset": [each.dataset for each in items],
        "step, flow": [
            ", ".join(filter(None, (e.step, e.facts["flow"]))) for e in items
        ],
        "+-": [_interval(each) for each in items],
        "cost": [python_form(each.facts["cost"]) for each in items],
        "who": [each.facts["who"] or "-" for each in items],
        "state": [each.state for each in items],
    }
    if len({*columns["dataset"]}) == 1:
        del columns["dataset"]
    if {*columns["state"]} == {"settled"}:
        del columns["state"]
    yield Sheet.of(columns, "when (UTC)", "+-")
    yield ""
    yield "+-: 95 % of the releases are so near to the true number, by their noise."
    if any(each.facts["noise"] in OWN_NOISE and _error(each) for each in items):
        yield "*: drawn by the step itself; that it is the declared noise is its word."
    if count > _MOST:
        yield f"The newest {_MOST:,} of {count:,}; --json lists all."


def _interval(kept_release: KeptRelease) -> str:
    from fractions import Fraction

    from dpflow.ledger.views.spending import OWN_NOISE
    from dpflow.rounding import short_up

    known = _error(kept_release)
    if known is None:
        return "-"
    at = "" if known[1] == _CONFIDENCE else f" at {100 * known[1]:.4g} %"
    own = "*" * (kept_release.facts["noise"] in OWN_NOISE)
    return f"{short_up(Fraction(known[0]), 3)}{at}{own}"
