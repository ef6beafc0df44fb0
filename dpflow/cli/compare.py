"""`dpflow compare`: all theorems on one workload."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the theorems)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.options import TheDataset
from dpflow.cli.output import AsJson, say, say_json, warn
from dpflow.notebook import plain

if TYPE_CHECKING:
    from dpflow.forecast.comparison import Stopping, TheoremComparison


_File = Annotated[
    Path | None,
    typer.Option(
        "--workload",
        metavar="FILE",
        help="A YAML list of costs with counts, in place of the journal.",
    ),
]
_Costs = Annotated[
    list[str] | None,
    typer.Option(
        "--cost",
        metavar="COST",
        help="A step, in place of the journal. Again for more steps.",
    ),
]


_Times = Annotated[
    int, typer.Option("--times", min=1, help="How often each --cost runs.")
]
_Stop = Annotated[
    int | None,
    typer.Option(
        "--stop", metavar="N", help="Sub-steps after which EarlyStopping ends."
    ),
]
_Rest = Annotated[
    str | None,
    typer.Option(
        "--rest",
        metavar="COST",
        help="What the rest is for. Default: pure steps of 1/100 of epsilon.",
    ),
]
_Epsilon = Annotated[
    str | None, typer.Option("--epsilon", help="A budget, for the policy's.")
]
_Delta = Annotated[
    str | None, typer.Option("--delta", help="The delta of that budget.")
]
_Shortest = Annotated[
    bool,
    typer.Option(
        "--shortest",
        help="Instead: from how many pure steps on optimal composition beats "
        "their sum.",
    ),
]


def compare(
    dataset: TheDataset = None,
    *,
    workload: _File = None,
    cost: _Costs = None,
    times: _Times = 1,
    stop: _Stop = None,
    rest: _Rest = None,
    epsilon: _Epsilon = None,
    delta: _Delta = None,
    shortest: _Shortest = False,
    as_json: AsJson = False,
) -> None:
    """Compare the theorems on a dataset's journal or on a workload of your own.

    Each starts with the whole budget. A step that may end early is also asked which
    way of accounting, a filter or output DP, leaves more for the rest.

    Example: `dpflow compare --cost 'EarlyStopping(PureDP(epsilon=0.01), stops=(25, 50,
    100))' --stop 50 --epsilon 1 --delta 1e-6`
    """
    from dpflow.forecast.comparison import compare_theorems

    if shortest:
        _say_shortest(as_json=as_json)
        return
    if workload is not None and cost:
        msg = "give either --workload FILE or --cost COST, not both"
        raise typer.BadParameter(msg)
    found = compare_theorems(
        dataset,
        costs=cost or (),
        times=times,
        file=workload,
        stop=stop,
        rest=rest,
        epsilon=epsilon,
        delta=delta,
        tell=warn,
    )
    if as_json:
        say_json(_as_json(found))
    else:
        _print(found)


#: Rows and columns of Table 1 of Hartmann et al. 2022.
_EPSILONS = ("0.01", "0.1", "0.2", "0.5", "1", "2", "3", "5")
_DELTAS = tuple(f"1e-{places}" for places in range(3, 11))


def _say_shortest(*, as_json: bool) -> None:
    """Print the least numbers of (epsilon, 0)-DP steps that composition improves."""
    from fractions import Fraction

    from dpflow.accounting.fixed.optimal import shortest_improvable
    from dpflow.cli.tables import cell, new_table

    lengths = {
        epsilon: [shortest_improvable(Fraction(epsilon), Fraction(d)) for d in _DELTAS]
        for epsilon in _EPSILONS
    }
    if as_json:
        say_json({"deltas": list(_DELTAS), "steps": lengths})
        return
    table = new_table("epsilon", *_DELTAS, numbers=("epsilon", *_DELTAS))
    for epsilon, row in lengths.items():
        table.add_row(epsilon, *(cell(length) for length in row))
    say("Steps from which on optimal composition beats their sum, by delta:", "", table)


def _as_json(found: TheoremComparison) -> dict[str, Any]:
    from dpflow.rounding import finite

    return {
        "dataset": found.dataset,
        "budget": found.budget_json,
        "workload": [step.as_json() for step in found.workload],
        "filters": [fit.as_json() for fit in found.fits],
        "odometers": [
            {
                "theorem": each.theorem,
                "reading": finite(each.epsilon),
                "problem": each.problem or None,
            }
            for each in found.readings
        ],
        "stopping": [_stopping_json(each) for each in found.stopping],
    }


def _stopping_json(found: Stopping) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "cost": repr(found.cost),
        "stop": found.stop,
        "rest": repr(found.rest),
        "ways": [
            {**asdict(each), "problem": each.problem or None} for each in found.ways
        ],
    }


def _print(found: TheoremComparison) -> None:
    from rich.text import Text

    from dpflow.cli import theorem_tables as shown
    from dpflow.forecast.workload import length

    steps = length(found.workload)
    what = f"{steps} step{'' if steps == 1 else 's'} {found.where}"
    title = (plain(found.dataset or "A workload"), "bold cyan")
    say(Text.assemble(title, f"  {what}, at {found.budget_text}"))
    fits = shown.telling(found.fits, current=found.theorem)
    table = shown.compare_table(fits, steps=steps, current=found.theorem)
    say("", "Filters, each with the whole budget to itself:", "", table)
    shown.say_left_out(found.fits, fits)
    readings = shown.telling(found.readings)
    say("", "Odometers, tuned for the budget's epsilon, after all steps:", "")
    say(shown.odometers_table(readings))
    shown.say_left_out(found.readings, readings)
    for each in found.stopping:
        _print_stopping(each)


def _print_stopping(found: Stopping) -> None:
    from rich.text import Text

    from dpflow.cli import theorem_tables as shown

    ways = shown.telling(found.ways)
    best = Text(shown.verdict(found), style="bold")
    say("", best, "", shown.leftovers_table(ways))
    shown.say_left_out(found.ways, ways)
