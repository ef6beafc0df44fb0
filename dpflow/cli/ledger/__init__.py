"""`dpflow ledger`: make the ledger, say which one it is, look after it."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.ledger import audit, copies, operations
from dpflow.cli.output import Answer, say, warn
from dpflow.cli.source import ledger_facts, project_ledger
from dpflow.config import short_path
from dpflow.exceptions import ConfigurationError

if TYPE_CHECKING:
    from dpflow.config import Settings
    from dpflow.ledger import Ledger

app = typer.Typer(
    no_args_is_help=True,
    help="Create, verify, back up, restore, move and repair the ledger.",
)


@app.command()
def init() -> Answer:
    """Create an empty ledger and pin its id in the policies folder.

    Once per project: the command replaces no ledger, and a missing one must be restored
    from a backup. Do not call it in a container's entry point, because a new ledger
    has no record of earlier charges.

    Example: `dpflow ledger init`
    """
    from dpflow.config import settings
    from dpflow.guard.project import make_project_ledger
    from dpflow.ledger import LOCK_NAME

    setup = settings()
    lock = setup.policies / LOCK_NAME
    _refuse_existing(setup, lock)
    ledger = make_project_ledger(setup)
    if setup.witness_warning:
        warn(setup.witness_warning)
    data = {**ledger_facts(ledger), "witness": _witness_place(ledger), "pin": str(lock)}
    return data, _say_created(ledger, setup, lock)


def _say_created(ledger: Ledger, setup: Settings, lock: Path) -> list[str]:
    """Say where a new ledger is, and what to do next."""
    from dpflow.ledger import is_postgres

    keep = (
        "Back its database up: losing it is losing track of what was spent. "
        "`dpflow ledger roles --sql` makes roles for workers and readers."
        if is_postgres(setup.ledger_url)
        else f"Keep {short_path(Path(ledger.address).parent)}/ out of version "
        "control and on a disk that lasts. Losing it is losing track of what was spent."
    )
    folder, check = short_path(setup.policies), "`dpflow policy check`"
    return [
        f"Made the ledger {short_path(ledger.address)} with id {ledger.id}.",
        f"Pinned its id in {short_path(lock)}.",
        f"Its witness is {_witness_place(ledger)}.",
        "",
        "Next:",
        f"  1. Commit {short_path(lock)}: any other ledger is then refused.",
        f"  2. {keep}",
        f"  3. Write a policy for each dataset in {folder}/ and run {check}.",
    ]


def _witness_place(ledger: Ledger) -> str:
    witness = ledger.watch.witness
    return "waived" if witness is None else witness.address


def _refuse_existing(setup: Settings, lock: Path) -> None:
    """Refuse to make a ledger where there is one, or where one is pinned."""
    from dpflow.exceptions import LedgerMissing
    from dpflow.ledger.opening import open_ledger, place_of

    url, runs, witness = setup.ledger_url, setup.environment, setup.witness
    location = place_of(url)
    try:
        there = open_ledger(url, environment=runs, witness=witness)
    except LedgerMissing:
        if not lock.exists():
            return
        msg = (
            f"{lock} pins a ledger that is not at {location}. Restore that one, or set "
            "DPFLOW_LEDGER_URL to where it is. A new one would forget what has been "
            f"spent; only if that is intended, remove {short_path(lock)} first."
        )
        raise ConfigurationError(msg) from None
    there.close()
    then = (
        "`dpflow status` shows what it holds."
        if lock.exists()
        else f"But {lock} is missing. Restore it from version control; if this is "
        f"certainly the project's ledger, write its id {there.id} there."
    )
    msg = f"there is a ledger at {location} already, and none is ever replaced. {then}"
    raise ConfigurationError(msg)


@app.command()
def info() -> Answer:
    """Show the ledger of this project, its datasets and open reservations.

    Example: `dpflow ledger info`
    """
    from dpflow.ledger import LOCK_NAME, VERSION, views

    with project_ledger() as (result, ledger), views.open_reading(ledger) as reading:
        alive = [charge.alive for charge in reading.open_charges]
        rows = [reading.rows.book(name) for name in reading.datasets]
    counts = {"count": len(alive), "running": sum(alive)}
    data = {
        **ledger_facts(ledger),
        "pin": str(result.policies / LOCK_NAME),
        "schema": VERSION,
        "newest_entries": {row.name: [row.number, row.hash] for row in rows},
        "witness": _witness_place(ledger),
        "failover_detected": ledger.watch.witness is not None,
        "environment": ledger.environment,
        "datasets": [row.name for row in rows],
        "open_reservations": counts | {"forfeited": alive.count(False)},
    }
    return data, _info_parts(data)


def _info_parts(data: dict[str, Any]) -> Iterator[str]:
    """Say the same in words."""
    from dpflow.ledger.views.entries import FORFEITED

    count, running, forfeited = data["open_reservations"].values()
    of_them = f" ({running} running, {forfeited} forfeited)" if count else ""
    yield f"id                 {data['ledger']}"
    yield f"place              {short_path(data['place'])}"
    yield f"pinned by          {short_path(data['pin'])}"
    undetected = "" if data["failover_detected"] else " (failover undetected)"
    yield f"witness            {data['witness']}{undetected}"
    yield f"schema             {data['schema']}"
    yield from audit.head_lines(data["newest_entries"])
    yield f"environment        {data['environment'] or 'any'}"
    yield f"datasets           {', '.join(data['datasets']) or 'none charged yet'}"
    yield f"open reservations  {count}{of_them}"
    if forfeited:
        yield from ("", FORFEITED)


@app.command()
def roles(*, sql: bool = False) -> None:
    """List the PostgreSQL roles of a shared ledger; --sql prints the script.

    Example: `dpflow ledger roles --sql`
    """
    from dpflow.ledger.opening import roles_script

    if sql:
        typer.echo(roles_script(), nl=False)
        return
    say(
        "dpflow_owner    owns the tables; not for daily use",
        "dpflow_operator opens terms, unfreezes, repairs and charges by hand",
        "dpflow_worker   runs steps; changes no journal row and sets no budget",
        "dpflow_reader   sees accounts and journal; no released value",
        "",
        'Make them with: dpflow ledger roles --sql | psql "$DPFLOW_LEDGER_URL"',
    )


for _command in (
    audit.verify,
    audit.trust,
    audit.reconcile,
    copies.backup,
    copies.restore,
    copies.upgrade,
    copies.move,
    copies.export,
    operations.reservations,
    operations.charge,
):
    app.command()(_command)
