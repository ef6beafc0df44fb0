"""`dpflow ledger`: copies of it, its journal for others, and charges made by hand."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from dpflow.cli.ledger.losses import say_comparison, say_lost_releases
from dpflow.cli.output import answer, say, say_json, warn
from dpflow.cli.source import ledger_facts, project_ledger, readable_policies
from dpflow.config import short_path
from dpflow.exceptions import ConfigurationError
from dpflow.notebook import data_of, plain

if TYPE_CHECKING:
    from dpflow.accounting.costs.base import Cost
    from dpflow.config import Settings
    from dpflow.ledger.audit.backup import Restored
    from dpflow.ledger.decision.by_hand import Posted
    from dpflow.ledger.records import OpenReservation

_BLOCK = 2**20


class Format(StrEnum):
    """How a journal is written."""

    JSONL = "jsonl"
    CSV = "csv"


_LATER = (
    "What is charged from now on is not in it: `dpflow ledger restore` charges that "
    "again, as far as the witness tells of it."
)


def backup(path: Path, *, as_json: bool = False) -> None:
    """Copy the ledger whole, and verify the copy; steps may run meanwhile.

    Copying the file by hand would lose what is still in its log. The copy holds
    releases and is readable by its owner only.

    Example: `dpflow ledger backup /backup/ledger.db`
    """
    from dpflow.ledger.audit.backup import backup as copy

    with project_ledger() as (_, ledger):
        count = copy(ledger, path).entries
    there = path.absolute()
    data = {**ledger_facts(ledger), "backup": str(there), "entries": count}
    done = f"Copied the ledger to {plain(short_path(there))} and verified its "
    answer(data, f"{done}{count:,} entries.", _LATER, as_json=as_json)


def restore(
    path: Path,
    *,
    reason: str,
    accept_loss: bool = False,
    as_json: bool = False,
) -> None:
    """Put a backup in the ledger's place and charge again what it lacks.

    Stop all flows first. The file that was there is kept beside it. What the witness
    or that file says was charged after the backup is charged again in full.

    Example: `dpflow ledger restore /backup/ledger.db --reason "the disk died"`
    """
    from dpflow.config import settings
    from dpflow.guard.project import project_conditions
    from dpflow.ledger import pinned_id, sqlite_path
    from dpflow.ledger.audit.backup import restore as put_back
    from dpflow.ledger.witness.places import witness_at

    found = settings()
    place = sqlite_path(found.ledger_url)
    restored = put_back(
        path,
        place,
        ledger_id=pinned_id(found.policies, str(place)),
        witness=witness_at(found.witness, found.ledger_url),
        policies=readable_policies(found, tell=True),
        reason=reason,
        accept_loss=accept_loss,
        conditions=project_conditions(found),
    )
    if as_json:
        say_json({"restored": place, **data_of(restored)})
    else:
        _say_restored(restored, path, place)


def _say_restored(restored: Restored, path: Path, place: Path) -> None:
    aside = restored.aside
    say(f"Put the backup {plain(str(path))} at {plain(short_path(place))}.")
    if aside is not None:
        say(f"The file that was there is {plain(short_path(aside))} now.")
    say_comparison(restored.charged_again, repaired=True)
    say_lost_releases(restored.lost, whole=restored.all_lost_told, aside=aside)


def export(
    *,
    form: Format = (Format.JSONL),
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Write the whole journal, in order, with raw texts.

    `dpflow ledger verify FILE` checks the hash chain and checkpoints of an export in
    JSON lines, without project and ledger. With --json and --out, JSON says how many
    entries were written; with --json alone the journal is printed.

    Example: `dpflow ledger export --format csv --out journal.csv`
    """
    from dpflow.ledger.audit.export import COLUMNS, export_head, journal_rows

    form = Format.JSONL if as_json and out is None else form
    with project_ledger() as (_, ledger):
        rows = journal_rows(ledger)
        head = export_head(ledger)
        if out is None:
            _write(sys.stdout, form, COLUMNS, rows, head)
            return
        with _new_file(out) as file:
            count = _write(file, form, COLUMNS, rows, head)
    data = {"path": str(out.absolute()), "entries": count, "format": form.value}
    text = f"Wrote {count:,} entries to {plain(str(out))}."
    answer(data, text, as_json=as_json)


def reservations(
    *, close: str | None = None, reason: str | None = None, as_json: bool = False
) -> None:
    """List the open reservations, or close a forfeited one.

    A closed reservation is posted in full; nothing is given back.

    Example: `dpflow ledger reservations --close ID --reason "the worker is gone"`
    """
    from dpflow.ledger import views

    if (close is None) != (reason is None):
        msg = "--close and --reason go together; name both or none"
        raise typer.BadParameter(msg)
    if close is not None and reason is not None:
        _close(close, reason, as_json=as_json)
        return
    with project_ledger() as (_, ledger):
        found = views.open_reservations(ledger)
    if as_json:
        say_json({**ledger_facts(ledger), "reservations": found})
    elif found:
        _say_reservations(found)
    else:
        say("No reservation is open: every charge was settled, voided or closed.")


def _close(reservation: str, reason: str, *, as_json: bool) -> None:
    with project_ledger(writes=True) as (_, ledger):
        ledger.forfeit(reservation, reason=reason)
    facts = {**ledger_facts(ledger), "reservation": reservation}
    text = f"Closed reservation {reservation}; it is charged in full."
    answer({**facts, "state": "forfeited"}, text, as_json=as_json)


def charge(
    dataset: str,
    *,
    cost: str,
    reason: str,
    charge: str | None = None,
    flow: str | None = None,
    partition: list[str] | None = None,
    evidence: Path | None = None,
    as_json: bool = False,
) -> None:
    """Charge prior spending on a dataset, or raise a step's charge; irreversible.

    With --charge, the cost is the corrected cost of that step: each account that the
    step posted to is raised by the difference, never lowered. Otherwise it is spending
    before dpflow: on the dataset, its population, the parts and the flow's share.
    Several steps are one cost: 'Repeated(Laplace(sensitivity=1, scale=10), 12)'. An
    overdrawn account admits nothing more.

    Example: `dpflow ledger charge shop --cost 'PureDP(epsilon=1)' --reason "2025"`
    """
    from dpflow.accounting.costs.text import cost_from_text
    from dpflow.ledger.decision.by_hand import Amend, Prior

    if charge is not None and (flow or partition):
        msg = "--flow and --partition are for prior spending; leave them out"
        raise typer.BadParameter(msg)
    read, proof = cost_from_text(cost), None if evidence is None else _sha256(evidence)
    words: dict[str, Any] = {"cost": read, "reason": reason, "evidence": proof}
    with project_ledger(quiet=True, writes=True) as (found, ledger):
        if charge is not None:
            charges = ledger.ask(Amend(charge=charge, dataset=dataset, **words))
        else:
            places = _places(found, dataset, flow, tuple(partition or ()))
            charges = ledger.ask(Prior(**places, **words))
    facts = {"dataset": dataset, "reservation": charge, "evidence_sha256": proof}
    _say_charges(charges, read, facts, as_json=as_json)


def _places(
    found: Settings, dataset: str, flow: str | None, partitions: tuple[str, ...]
) -> dict[str, Any]:
    """Return the policy that prior spending is charged to, and where."""
    from dpflow.policy import load_policies

    policies = load_policies(found.policies)
    policy = policies.policy_for(dataset)
    if policy.partition is not None and not partitions:
        msg = (
            f"dataset {dataset!r} is divided by {policy.partition.by}: say with "
            "--partition which parts the spending read; repeat it for each"
        )
        raise ConfigurationError(msg)
    populations = policies.populations_of([policy])
    places = {"flow": flow, "partitions": partitions, "populations": populations}
    return {"policy": policy, **places}


def _write(
    file: TextIO,
    form: Format,
    columns: Iterable[str],
    rows: Iterable[Mapping[str, Any]],
    head: Mapping[str, Any],
) -> int:
    """Write the rows and return how many there were."""
    count = 0
    table = csv.DictWriter(file, list(columns), lineterminator="\n")
    if form is Format.CSV:
        table.writeheader()
    else:
        file.write(json.dumps(head, separators=(",", ":")) + "\n")
    for row in rows:
        count += 1
        if form is Format.CSV:
            table.writerow(row)
        else:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    return count


def _new_file(path: Path) -> TextIO:
    """Open a file that is not there yet, for its owner only."""
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        return os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8")
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}. Name another, new file."
        raise ConfigurationError(msg) from error


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except OSError as error:
        msg = f"cannot read the evidence {path}: {error.strerror}"
        raise ConfigurationError(msg) from error
    return found.hexdigest()


def _say_reservations(found: list[OpenReservation]) -> None:
    from dpflow.accounting.costs.base import cost_from_description
    from dpflow.cli.tables import cell, new_table
    from dpflow.ledger.views.words import held_step

    table = new_table("reservation", "since", "step", "cost", "state")
    for item in found:
        style = "cyan" if item.alive else "magenta"
        table.add_row(
            cell(item.reservation),
            cell(item.at[:19].replace("T", " ")),
            cell(held_step(item)),
            cell(repr(cost_from_description(item.cost))),
            cell("running" if item.alive else "forfeited", style),
        )
    say(table)
    _say_how_to_end(found)


def _say_how_to_end(found: list[OpenReservation]) -> None:
    from dpflow.ledger.views.words import FORFEITED

    if not all(item.alive for item in found):
        say(
            "",
            FORFEITED,
            "Find out what the step did. If it released nothing more than it reserved, "
            'close it: `dpflow ledger reservations --close ID --reason "..."`.',
            "If it cost more, first raise its charge: `dpflow ledger charge DATASET "
            "--charge ID --cost COST --reason TEXT`.",
        )
    if any(item.covers is not None and not item.alive for item in found):
        say(
            "",
            "A run reservation holds budget for steps that have not run. Retry that "
            "flow run in Prefect: it goes on with what is held, and its end returns "
            "the rest. If it is given up, or was a block outside Prefect, close the "
            "run reservation, which posts the rest in full.",
        )


def _say_charges(
    charges: list[Posted], cost: Cost, facts: Mapping[str, Any], *, as_json: bool
) -> None:
    """Say what was charged by hand."""
    from dpflow.ledger.views.words import amounts_text

    if as_json:
        say_json({**facts, "cost": cost, "charges": charges})
        return
    for charge in charges:
        say(f"Charged {plain(charge.account)}: {amounts_text(charge.amount)}.")
        if charge.state == "overdrawn":
            warn(f"account {charge.account} is overdrawn and admits nothing more")
