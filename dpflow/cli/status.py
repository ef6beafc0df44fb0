"""`dpflow status`: does it run, what is gone, what is left, and for how long."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import say, say_json, warn
from dpflow.cli.source import project_ledger
from dpflow.config import short_path
from dpflow.notebook import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpflow.config import Settings
    from dpflow.forecast import Outlook
    from dpflow.show.status import DatasetStatus, Status

#: A divided dataset has some accounts for each of its parts.
_MOST_ACCOUNTS = 24


def status(
    dataset: str | None = None,
    *,
    upcoming: int | None = None,
    details: bool = False,
    part: str | None = None,
    written: str | None = None,
    as_json: bool = False,
) -> None:
    """Show whether each dataset and flow runs, what is gone, and for how long it lasts.

    Runs left are counted against every gate, for runs like the dearest of a flow's
    last five completed ones.

    Example: `dpflow status sales`
    """
    from dpflow.show.gauges import prometheus
    from dpflow.show.status import status_of

    if written not in (None, "prometheus"):
        msg = f"it takes prometheus, got {written!r}"
        raise typer.BadParameter(msg, param_hint="--format")
    with project_ledger() as (found, ledger):
        record = status_of(found, ledger, dataset, part)
        if upcoming is not None:
            _print_next(found, record, upcoming, as_json=as_json)
            return
        if as_json:
            say_json(record)
            return
        if written is not None:
            sys.stdout.write(prometheus(record))
            return
        _print(found, record, details=details)
    for text in record.warnings:
        warn(text)


def _print(found: Settings, record: Status, *, details: bool) -> None:
    from rich.text import Text

    place = plain(short_path(record.place))
    say(Text.assemble(("Ledger ", "bold"), place, f"  id {record.ledger}"))
    known = record.datasets
    for each in known:
        say("")
        _print_overview(each)
        if details:
            _print_details(each)
    _print_flows(record.flows)
    if not known:
        say("", *_no_policies(found))
    elif all(each.standing.untouched for each in known):
        pins = " The first step pins a policy that is not pinned yet."
        none = "Nothing was charged yet. Run a flow whose steps are under @dp_task."
        unpinned = any(each.standing.term is None for each in known)
        say("", none + (pins if unpinned else ""))
    if known:
        _print_meaning(known, details=details)


def _print_next(found: Settings, record: Status, count: int, *, as_json: bool) -> None:
    """List the next runs of each dataset, and in one line what is refused."""
    from rich.text import Text

    from dpflow.cli.tables import cell, new_table
    from dpflow.forecast.coming import coming_runs

    coming = {
        each.standing.dataset: coming_runs(
            each.outlooks, each.standing.pinned["flows"], count, root=found.root
        )
        for each in record.datasets
        # An earlier term has no further runs.
        if each.standing.pinned is not None
    }
    if as_json:
        say_json({"ledger": record.ledger, "datasets": coming})
        return
    for name, known in coming.items():
        say(Text(plain(name), style="bold cyan"))
        if known.runs:
            table = new_table("date", "flow", "run", numbers=("run",))
            for run in known.runs:
                table.add_row(*map(cell, run))
            say("", table, "")
        if known.refused:
            say(plain(f"Refused: {'; '.join(known.refused)}."))
        if known.undated:
            flows = ", ".join(known.undated)
            say(plain(f"No day is known of {flows}: schedule it in prefect.yaml."))
    if not coming:
        say(*_no_policies(found))


def _no_policies(found: Settings) -> list[str]:
    folder = short_path(found.policies)
    return [
        f"No policies yet, so nothing may run. Write one, such as {folder}/sales.yaml:",
        "",
        "    dataset: sales",
        "    unit: customer",
        "    relation: add-or-remove",
        "    budget: {epsilon: 3, delta: 1e-6}",
        "    filter: gdp",
        "",
        "Then run `dpflow policy check`. Or let `dpflow init` ask and write it.",
    ]


def _print_overview(known: DatasetStatus) -> None:
    """Say whether a dataset and its flows run, and what is gone."""
    from rich.text import Text

    from dpflow.cli.tables import STATE_STYLES, flows_table
    from dpflow.ledger.views.words import (
        parts_lines,
        people_lines,
        percent_text,
    )
    from dpflow.show.guarantees import shares_in_words, unusual_text

    standing, found = known.standing, known.overview
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
    lines = people_lines(standing.accounts)
    for line in (*lines, *parts_lines(standing.parts)):
        say(plain(line))
    if standing.pinned is not None:
        if unusual_text(found.unusual):
            say(Text(unusual_text(found.unusual), style="yellow"))
        if shares_in_words(standing.pinned):
            say(plain(shares_in_words(standing.pinned)))
    if known.history:
        say(plain(known.history))
    if known.frozen:
        told = plain(known.frozen).capitalize()
        unfreeze = f"`dpflow unfreeze {standing.dataset}` ends it."
        say(Text(f"{told}. Every step is refused; {unfreeze}", style="bold cyan"))
    if found.flows:
        say("", flows_table(found.flows, (standing.pinned or {}).get("unit", "")))


def _print_details(known: DatasetStatus) -> None:
    from dpflow.cli.tables import accounts_table, odometers_table
    from dpflow.ledger.views.words import telling
    from dpflow.policy.reserved import run_lines

    standing = known.standing
    if standing.pinned is not None:
        say("", plain(known.guarantee))
        for line in run_lines(standing.pinned):
            say(plain(line))
    shown = telling(standing.accounts, _MOST_ACCOUNTS)
    filters = [view for view in shown if view.reading is None]
    odometers = [view for view in shown if view.reading is not None]
    if filters:
        say("", accounts_table(filters))
    if odometers:
        say("", odometers_table(odometers))
    if len(shown) < len(standing.accounts):
        more = f"{len(standing.accounts) - len(shown):,} more accounts of its parts"
        say(
            "",
            f"{more}: --part NAME shows one, --json all; these are the fullest.",
        )
    _print_outlooks(known.outlooks)


def _print_meaning(known: Sequence[DatasetStatus], *, details: bool) -> None:
    """Say once what the numbers above mean, and what is guaranteed."""
    spent = [each for one in known for each in one.overview.spent]
    if any(each.used for each in spent):
        say(
            "",
            "Epsilon: the least budget, at that delta, that would have admitted what "
            "was charged so far. Guaranteed is the whole budget. Lost at most: the "
            "least bound that holds for a flow.",
        )
    if any(not each.complete for one in known for each in one.outlooks):
        say("* no run was completed yet, so the last one stands for the next ones")
    if details:
        return
    newest = [each for each in known if each.standing.pinned is not None]
    if len(newest) == 1:
        say("", plain(newest[0].guarantee))
    more = "`dpflow status --details` shows every account"
    more += "." if len(newest) == 1 else " and what is guaranteed."
    say("", more)


def _print_outlooks(ahead: Sequence[Outlook]) -> None:
    if not ahead:
        return
    from dpflow.cli.tables import outlooks_table
    from dpflow.ledger.views.spending import RECENT

    say("", outlooks_table(ahead))
    if any(each.older for each in ahead):
        say(f"Only runs among the newest {RECENT:,} entries of the journal are known.")


def _print_flows(found: Sequence[Outlook]) -> None:
    """Say what limits the flows that charge several datasets."""
    if found:
        say("", "Flows that charge several datasets end with the first that refuses:")
    for each in found:
        say(f"  {plain(each.sentence)}")
