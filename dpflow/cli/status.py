"""`dpflow status`: does it run, what is gone, what is left, and for how long."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.output import AsJson, finite, plain, say, say_json, warn
from dpflow.config import short_path

if TYPE_CHECKING:
    from dpflow.config import Settings
    from dpflow.forecast import Outlook
    from dpflow.ledger import Ledger
    from dpflow.ledger.records import AccountView, TermView
    from dpflow.ledger.views.standing import Standing
    from dpflow.policy import PolicySet
    from dpflow.show.overview import Overview

#: A divided dataset has some accounts for each of its parts.
_MOST_ACCOUNTS = 24

DatasetArgument = Annotated[
    str | None,
    typer.Argument(metavar="DATASET", help="Only this dataset. Default: all."),
]


def status(
    dataset: DatasetArgument = None,
    *,
    details: Annotated[
        bool,
        typer.Option("--details", help="Show every account, and what limits each run."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether each dataset and flow runs, what is gone, and for how long it lasts.

    Runs left are counted against every gate, for runs like the dearest of a flow's
    last five completed ones.

    Example: `dpflow status sales`
    """
    from dpflow.cli.source import ledger_facts, project_ledger
    from dpflow.forecast import flow_outlooks, outlooks
    from dpflow.ledger.views.standing import standings
    from dpflow.policy.files import policies_and_problem

    with project_ledger() as (found, ledger):
        policies, problem = policies_and_problem(found.policies)
        shown = standings(ledger, policies, dataset)
        ahead = outlooks(ledger, dataset)
        known = [_known(ledger, policies, standing, ahead) for standing in shown]
        warnings = ([problem] if problem else []) + _changes(policies, shown)
        if as_json:
            data = {
                "ledger": ledger_facts(ledger),
                "datasets": [_known_json(each) for each in known],
                "flows": [each.as_json() for each in flow_outlooks(ahead)],
                "warnings": warnings,
            }
            say_json(data)
            return
        _print(found, ledger, known, ahead, details=details)
    for text in warnings:
        warn(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """All that is shown of a dataset in one term."""

    standing: Standing
    overview: Overview
    terms: list[TermView]
    ahead: list[Outlook]


def _known(
    ledger: Ledger, policies: PolicySet, standing: Standing, ahead: list[Outlook]
) -> _Shown:
    from dpflow.ledger import views
    from dpflow.show.overview import overview, pauses

    own = _own(standing, ahead)
    name = standing.dataset
    found = overview(
        ledger,
        name,
        standing.accounts,
        standing.pinned,
        own,
        paused=pauses(policies.get(name)),
    )
    terms = views.terms(ledger, name)
    return _Shown(standing=standing, overview=found, terms=terms, ahead=own)


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


def _known_json(known: _Shown) -> dict[str, Any]:
    from dpflow.show.guarantees import sum_of_shares, term_guarantee

    standing, terms, found = known.standing, known.terms, known.overview
    pinned = standing.pinned
    return {
        "dataset": standing.dataset,
        "state": found.state.as_json(),
        "spent": [each.as_json() for each in found.spent],
        "by_flow": [each.as_json() for each in found.flows],
        "unusual_steps": asdict(found.unusual),
        "unit": pinned and pinned["unit"],
        "relation": pinned and pinned["relation"],
        "guarantee": pinned and term_guarantee(pinned, terms),
        "shares": pinned and sum_of_shares(pinned),
        "term": standing.term,
        "terms": [term_json(view) for view in terms],
        "frozen": _frozen_json(terms) if pinned else None,
        "accounts": [account_json(view) for view in standing.accounts],
        "outlooks": [each.as_json() for each in known.ahead],
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
            "epsilon": finite(view.reading) if view.charged else 0.0,
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
    found: Settings,
    ledger: Ledger,
    known: list[_Shown],
    ahead: list[Outlook],
    *,
    details: bool,
) -> None:
    from rich.text import Text

    place = plain(short_path(ledger.place))
    say(Text.assemble(("Ledger ", "bold"), place, f"  id {ledger.id}"))
    for each in known:
        say("")
        _print_overview(each)
        if details:
            _print_details(each)
    _print_flows(ahead)
    if not known:
        say("", *_no_policies(found))
    elif all(each.standing.untouched for each in known):
        pins = " A policy that is not pinned yet is pinned by the first step or, where "
        pins += "it names officers, by one of them with `dpflow policy apply`."
        none = "Nothing was charged yet. Run a flow whose steps are under @dp_task."
        unpinned = any(each.standing.term is None for each in known)
        say("", none + (pins if unpinned else ""))
    if known:
        _print_meaning(known, details=details)


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


def _print_overview(known: _Shown) -> None:
    """Say whether a dataset and its flows run, and what is gone."""
    from rich.text import Text

    from dpflow.cli.tables import STATE_STYLES, flows_table
    from dpflow.ledger.decision.refusal import frozen_text
    from dpflow.ledger.views.words import percent_text
    from dpflow.show.guarantees import shares_in_words, terms_in_words, unusual_text

    standing, found, terms = known.standing, known.overview, known.terms
    title = (plain(standing.dataset), "bold cyan")
    state = (plain(found.state.text), STATE_STYLES.get(found.state.word, ""))
    since = f" since {found.state.since[:16].replace('T', ' ')}"
    where = "not pinned yet" if standing.term is None else f"term {standing.term}"
    if standing.pinned is not None:
        where = f"{standing.pinned['unit']}, {standing.pinned['relation']}, {where}"
    told = since if found.state.since else ""
    say(Text.assemble(title, "  ", state, f"{told}  ({plain(where)})"))
    for spent in found.spent:
        used = f"{percent_text(spent.fraction)} of the budget is used"
        say(Text.assemble((plain(spent.text), "bold"), f"; {used}"))
    if standing.pinned is not None:
        if unusual_text(found.unusual):
            say(Text(unusual_text(found.unusual), style="yellow"))
        if shares_in_words(standing.pinned):
            say(plain(shares_in_words(standing.pinned)))
        if len(terms) > 1 or any(view.opened != view.budget for view in terms):
            say(plain(terms_in_words(terms)))
        if terms and terms[-1].frozen is not None:
            told = plain(frozen_text(terms[-1].frozen)).capitalize()
            thaw = f"`dpflow thaw {standing.dataset}` ends it."
            say(Text(f"{told}. Every step is refused; {thaw}", style="bold cyan"))
    if found.flows:
        say("", flows_table(found.flows))


def _print_details(known: _Shown) -> None:
    from dpflow.cli.tables import accounts_table, odometers_table
    from dpflow.ledger.views.words import telling
    from dpflow.show.guarantees import term_guarantee

    standing = known.standing
    if standing.pinned is not None:
        say("", plain(term_guarantee(standing.pinned, known.terms)))
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
    _print_outlooks(known.ahead)


def _print_meaning(known: list[_Shown], *, details: bool) -> None:
    """Say once what the numbers above mean, and what is guaranteed."""
    from dpflow.show.guarantees import term_guarantee

    spent = [each for one in known for each in one.overview.spent]
    if any(each.used for each in spent):
        say(
            "",
            "Epsilon: the least budget, at that delta, that would have admitted what "
            "was charged so far. Guaranteed is the whole budget. Lost at most: the "
            "least bound that holds for a flow.",
        )
    if any(not each.complete for one in known for each in one.ahead):
        say("* no run was completed yet, so the last one stands for the next ones")
    if details:
        return
    newest = [each for each in known if each.standing.pinned is not None]
    if len(newest) == 1 and newest[0].standing.pinned is not None:
        say("", plain(term_guarantee(newest[0].standing.pinned, newest[0].terms)))
    more = "`dpflow status --details` shows every account"
    more += "." if len(newest) == 1 else " and what is guaranteed."
    say("", more)


def _print_outlooks(ahead: list[Outlook]) -> None:
    if not ahead:
        return
    from dpflow.cli.tables import outlooks_table
    from dpflow.ledger.views.unusual import RECENT

    say("", outlooks_table(ahead))
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
