"""`dpflow status`: budget, spent, reserved, forfeited, left, and runs left."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.output import AsJson, finite, plain, say, say_json, short_path, warn

if TYPE_CHECKING:
    from dpflow.cli.source import Standing
    from dpflow.config import Settings
    from dpflow.forecast import Outlook
    from dpflow.ledger import Ledger
    from dpflow.ledger.records import AccountView, TermView

#: A divided dataset has some accounts for each of its parts.
_MOST_ACCOUNTS = 24

DatasetArgument = Annotated[
    str | None,
    typer.Argument(metavar="DATASET", help="Only this dataset. Default: all."),
]


def status(dataset: DatasetArgument = None, *, as_json: AsJson = False) -> None:
    """Show what each dataset and flow has spent, what is left, and for how long.

    Runs left are counted against every gate, for runs like the dearest of a flow's
    last five completed ones.

    Example: `dpflow status sales`
    """
    from dpflow.cli.source import (
        ledger_facts,
        policies_and_problem,
        project_ledger,
        standings,
    )
    from dpflow.forecast import flow_outlooks, outlooks
    from dpflow.ledger import views

    with project_ledger() as (found, ledger):
        policies, problem = policies_and_problem(found.policies)
        shown = standings(ledger, policies, dataset)
        ahead = outlooks(ledger, dataset)
        warnings = ([problem] if problem else []) + _changes(policies, shown)
        if as_json:
            datasets = [
                _standing_json(standing, views.terms(ledger, standing.dataset), ahead)
                for standing in shown
            ]
            known = {
                "ledger": ledger_facts(ledger),
                "datasets": datasets,
                "flows": [each.as_json() for each in flow_outlooks(ahead)],
                "warnings": warnings,
            }
            say_json(known)
            return
        _print(found, ledger, shown, ahead)
    for text in warnings:
        warn(text)


def _changes(policies: Any, shown: list[Standing]) -> list[str]:
    found = []
    for standing in shown:
        if not standing.differences:
            continue
        place = short_path(policies.source(standing.dataset))
        told = "; ".join(standing.differences)
        then = (
            "Nothing was charged yet, so the next step applies the file."
            if standing.replaceable
            else "The ledger's copy governs and steps are refused: undo the edit, or "
            f"see `dpflow policy diff {standing.dataset}`."
        )
        found.append(f"{place} differs from the ledger: {told}. {then}")
    return found


def _standing_json(
    standing: Standing, terms: list[TermView], ahead: list[Outlook]
) -> dict[str, Any]:
    from dpflow.summary import sum_of_shares, term_guarantee

    pinned = standing.pinned
    return {
        "dataset": standing.dataset,
        "unit": pinned and pinned["unit"],
        "relation": pinned and pinned["relation"],
        "guarantee": pinned and term_guarantee(pinned, terms),
        "shares": pinned and sum_of_shares(pinned),
        "term": standing.term,
        "terms": [term_json(view) for view in terms],
        "frozen": _frozen_json(terms) if pinned else None,
        "accounts": [account_json(view) for view in standing.accounts],
        "outlooks": [each.as_json() for each in _own(standing, ahead)],
    }


def _own(standing: Standing, ahead: list[Outlook]) -> list[Outlook]:
    """Return the outlooks of a dataset; an earlier term has none."""
    newest = standing.pinned is not None
    return [each for each in ahead if newest and each.dataset == standing.dataset]


def term_json(view: TermView) -> dict[str, Any]:
    """Return a term for programs; numbers are exact decimal text."""
    return {
        "number": view.number,
        "unit": view.unit,
        "relation": view.relation,
        "opened_with": dict(view.opened),
        "budget": dict(view.budget),
        "charged": view.charged,
        "lifetime": None if view.lifetime is None else dict(view.lifetime),
        "because": view.because,
        "opened_at": view.opened_at,
        "opened_by": view.opened_by,
    }


def _frozen_json(terms: list[TermView]) -> dict[str, Any] | None:
    freeze = terms[-1].frozen if terms else None
    if freeze is None:
        return None
    return {name: freeze.get(name) for name in ("who", "because", "at")}


def account_json(view: AccountView) -> dict[str, Any]:
    """Return an account for programs; amounts are exact decimal text.

    A reading that is undefined is null, for JSON has no infinity.
    """
    odometer = None
    if view.reading is not None:
        odometer = {
            "epsilon": finite(view.reading),
            "delta": view.delta,
            "halt_at_epsilon": view.halt_at,
        }
    return {
        "id": view.id or None,
        "kind": view.kind,
        "name": view.name,
        "theorem": view.theorem,
        "state": view.state,
        "epsilon": view.epsilon,
        "delta": view.delta,
        "budget": view.budget,
        "spent": view.spent,
        "reserved": view.reserved,
        "forfeited": view.forfeited,
        "left": view.left,
        "used_fraction": finite(view.used_fraction),
        "odometer": odometer,
    }


def _print(
    found: Settings, ledger: Ledger, shown: list[Standing], ahead: list[Outlook]
) -> None:
    from rich.text import Text

    from dpflow.ledger import views

    place = plain(short_path(ledger.place))
    say(Text.assemble(("Ledger ", "bold"), place, f"  id {ledger.id}"))
    for standing in shown:
        say("")
        _print_standing(standing, views.terms(ledger, standing.dataset))
        _print_outlooks(_own(standing, ahead))
    _print_flows(ahead)
    if not shown:
        say("", *_no_policies(found))
    elif all(standing.untouched for standing in shown):
        pins = " A policy that is not pinned yet is pinned by the first step or, where "
        pins += "it names officers, by one of them with `dpflow policy apply`."
        none = "Nothing was charged yet. Run a flow whose steps are under @dp_task."
        say("", none + (pins if any(each.term is None for each in shown) else ""))


def _no_policies(found: Settings) -> list[str]:
    folder = short_path(found.policies)
    return [
        f"No policies yet, so nothing may run. Write one, such as {folder}/sales.yaml:",
        "",
        "    dataset: sales",
        "    unit: customer",
        "    relation: add-or-remove",
        "    budget: {epsilon: 3, delta: 1e-6}",
        "    filter: gaussian",
        "",
        "Then run `dpflow policy check`. Or let `dpflow init` ask and write it.",
    ]


def _print_standing(standing: Standing, terms: list[TermView]) -> None:
    from rich.text import Text

    from dpflow.cli.tables import accounts_table, odometers_table
    from dpflow.ledger.refusal import frozen_text
    from dpflow.summary import (
        shares_in_words,
        telling,
        term_guarantee,
        terms_in_words,
    )

    facts = ["not pinned yet" if standing.term is None else f"term {standing.term}"]
    if standing.pinned is None:
        facts = [f"earlier term {standing.term}"]
    else:
        facts = [standing.pinned["unit"], standing.pinned["relation"], *facts]
    title = (plain(standing.dataset), "bold cyan")
    say(Text.assemble(title, f"  {plain(', '.join(facts))}"))
    if standing.pinned is not None:
        say(plain(term_guarantee(standing.pinned, terms)))
        shares = shares_in_words(standing.pinned)
        if shares:
            say(plain(shares))
        if len(terms) > 1 or any(view.opened != view.budget for view in terms):
            say(plain(terms_in_words(terms)))
        if terms and terms[-1].frozen is not None:
            told = plain(frozen_text(terms[-1].frozen)).capitalize()
            thaw = f"`dpflow thaw {standing.dataset}` ends it."
            say(Text(f"{told}. Every step is refused; {thaw}", style="bold cyan"))
    shown = telling(standing.accounts, _MOST_ACCOUNTS)
    filters = [view for view in shown if view.reading is None]
    odometers = [view for view in shown if view.reading is not None]
    if filters:
        say("", accounts_table(filters))
    if odometers:
        say("", odometers_table(odometers))
    if len(shown) < len(standing.accounts):
        more = f"{len(standing.accounts) - len(shown):,} more accounts of its parts"
        say("", f"{more}: --json shows all; here are the fullest and the newest.")


def _print_outlooks(ahead: list[Outlook]) -> None:
    if not ahead:
        return
    from dpflow.cli.tables import outlooks_table
    from dpflow.ledger.runs import RECENT

    say("", outlooks_table(ahead))
    if any(not each.complete for each in ahead):
        say("* no run was completed yet, so the last one stands for the next ones")
    if any(each.older for each in ahead):
        say(f"Only runs among the newest {RECENT:,} entries of the journal are known.")


def _print_flows(ahead: list[Outlook]) -> None:
    """Say what limits the flows that charge several datasets."""
    from dpflow.forecast import flow_outlooks

    found = flow_outlooks(ahead)
    if found:
        say("", "Flows that charge several datasets end with the first that refuses:")
    for each in found:
        say(f"  {plain(each.sentence)}")
