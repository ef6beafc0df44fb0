"""`dpflow why`: who spent a dataset's budget, what went otherwise, what was refused."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.output import AsJson, plain, say, say_json
from dpflow.cli.source import check_known, ledger_facts, project_ledger

if TYPE_CHECKING:
    from dpflow.ledger import Ledger
    from dpflow.ledger.records import RefusalView
    from dpflow.ledger.views.spending import Spending
    from dpflow.ledger.views.unusual import Unusual

#: So many refusals of the ledger are read, the newest.
_MOST_REFUSALS = 10_000


_By = Annotated[
    str,
    typer.Option(
        "--by", help="Group by any of flow, step, week, release, who; commas."
    ),
]
_Term = Annotated[
    int | None,
    typer.Option("--term", metavar="N", min=1, help="Of an earlier term."),
]
_Limit = Annotated[
    int, typer.Option("--limit", "-n", min=1, help="Show at most so many rows.")
]


def why(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset.")],
    *,
    by: _By = "flow,step",
    term: _Term = None,
    limit: _Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show what spent the budget, which steps were unusual, and what was refused.

    Unusual are steps that drew their own noise, failed or were forfeited.

    Example: `dpflow why sales --by flow,step,week`
    """
    from dpflow.ledger.views.spending import GROUPS, spending
    from dpflow.ledger.views.unusual import unusual

    names = tuple(name.strip() for name in by.split(","))
    if not set(names) <= set(GROUPS):
        msg = f"it takes {', '.join(GROUPS)}, with commas between, got {by!r}"
        raise typer.BadParameter(msg, param_hint="--by")
    with project_ledger() as (found, ledger):
        check_known(found, ledger, dataset)
        number = _term_asked(ledger, dataset, term)
        spent = spending(ledger, dataset, names, term=number)
        odd = unusual(ledger, dataset, number)
        refused = _refused(ledger, dataset, number)
        facts = ledger_facts(ledger)
    if as_json:
        say_json(
            {
                "ledger": facts,
                "dataset": dataset,
                "term": number or None,
                "by": list(names),
                "spending": [_spending_json(each) for each in spent],
                "unusual": [asdict(each) for each in odd],
                "refused": sum(each.times for each in refused),
                "refused_by": _by_account(refused),
                "refusals": [_refusal_json(each) for each in refused[:limit]],
            }
        )
        return
    title = plain(dataset)
    which = "its newest term" if term is None else f"term {number}"
    if spent:
        _print_spending(names, spent, limit)
    else:
        say(f"Nothing was charged to {title} in {which}.")
    _print_unusual(odd, limit)
    _print_refusals(refused, limit)


def _term_asked(ledger: Ledger, dataset: str, term: int | None) -> int:
    """Return the number of the term to tell of; 0 if there is none yet."""
    from dpflow.exceptions import ConfigurationError
    from dpflow.ledger import views

    numbers = [view.number for view in views.terms(ledger, dataset)]
    if term is None or term in numbers:
        return max(numbers, default=0) if term is None else term
    if not numbers:
        msg = f"{dataset!r} has no term yet: nothing was ever charged to it"
        raise ConfigurationError(msg)
    those = ", ".join(map(str, numbers))
    known = f"the term {those}" if len(numbers) == 1 else f"the terms {those}"
    msg = f"{dataset!r} has no term {term}; it has {known}"
    raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusals by one gate that say the same: the newest of them, and the number."""

    newest: RefusalView
    first: str
    times: int


def _refused(ledger: Ledger, dataset: str, term: int) -> list[Refused]:
    """Return what the gates of a term refused, those alike together, newest first."""
    from dpflow.ledger import views

    own = views.accounts(ledger, dataset)
    kinds = {view.id: view.kind for view in own if view.term == term}
    found: dict[tuple[str, str], Refused] = {}
    for each in views.refusals(ledger, dataset=dataset, limit=_MOST_REFUSALS):
        kind = kinds.get(each.account)
        # An odometer that halts the run journals another gate's refusal, too.
        if kind is None or each.body.get("gate", kind) != kind:
            continue
        alike = (each.account, str(each.body.get("message")))
        former = found.get(alike, Refused(each, each.at, 0))
        found[alike] = Refused(former.newest, each.at, former.times + 1)
    return list(found.values())


def _by_account(refused: list[Refused]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for each in refused:
        counted[each.newest.account] += each.times
    return dict(counted)


def _spending_json(each: Spending) -> dict[str, Any]:
    from dpflow.rounding import finite

    data = asdict(each)
    return {**data, "used_fraction": finite(each.used_fraction)}


def _refusal_json(refused: Refused) -> dict[str, Any]:
    each = refused.newest
    names = ("refusal", "step", "flow", "gate", "theorem", "asked", "left", "fits")
    return {
        "at": each.at,
        "first": refused.first,
        "times": refused.times,
        "account": each.account,
        "run": each.run,
        **{name: each.body.get(name) for name in names},
        "message": each.body.get("message"),
    }


def _print_spending(names: tuple[str, ...], spent: list[Spending], limit: int) -> None:
    from dpflow.cli.tables import cell, new_table
    from dpflow.ledger.views.words import amounts_text, percent_text

    several = len({each.account for each in spent}) > 1
    first = ("account", *names) if several else names
    numbers = ("charges", "used", "share of budget")
    # Who groups by weeks sees them already.
    when = "last" if "week" in names else "weeks"
    table = new_table(*first, *numbers, when, numbers=numbers)
    for each in spent[:limit]:
        group = (each.account, *each.group) if several else each.group
        table.add_row(
            *(cell(name) for name in group),
            cell(each.charges),
            cell(amounts_text(each.amount)),
            cell(percent_text(each.used_fraction)),
            cell(_when(each, when)),
        )
    say(table)
    _say_rest(len(spent), limit, "largest")


def _when(each: Spending, column: str) -> str:
    if column == "last":
        return _minute(each.last)
    first, last = each.weeks
    return first if first == last else f"{first} to {last}"


def _print_unusual(odd: list[Unusual], limit: int) -> None:
    from dpflow.cli.tables import cell, new_table

    if not odd:
        say("", "No step drew its own noise, failed or was forfeited.")
        return
    say("", "Unusual steps; each of them is charged:", "")
    table = new_table("step", "flow", "what", "times", "last", numbers=("times",))
    for each in odd[:limit]:
        facts = (each.step, each.flow or "-", each.what, each.times, _minute(each.last))
        table.add_row(*map(cell, facts))
    say(table)
    _say_rest(len(odd), limit, "newest")


def _print_refusals(refused: list[Refused], limit: int) -> None:
    if not refused:
        say("", "No step was refused.")
        return
    say("", "Refused, newest first:")
    for each in refused[:limit]:
        since = f", {each.times} times since {_minute(each.first)}"
        often = "" if each.times == 1 else since
        message = plain(each.newest.body["message"])
        say(f"  {_minute(each.newest.at)}{often}  {message}")
    _say_rest(len(refused), limit, "newest")


def _say_rest(count: int, limit: int, which: str) -> None:
    if count > limit:
        say("", f"These are the {which} {limit} of {count}; --limit shows more.")


def _minute(at: str) -> str:
    return at[:16].replace("T", " ")
