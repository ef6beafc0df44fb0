"""`dpflow ledger`: copies of it, its journal for others, and charges by hand."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from dpflow.cli.ledger.losses import comparison_parts, release_parts
from dpflow.cli.output import Answer, Part, warn
from dpflow.cli.source import ledger_facts, project_ledger, readable_policies
from dpflow.config import short_path
from dpflow.exceptions import ConfigurationError
from dpflow.notebook import data_of

if TYPE_CHECKING:
    from dpflow.config import Settings
    from dpflow.ledger.audit.backup import Restored
    from dpflow.ledger.decision.office import Posted
    from dpflow.ledger.records import OpenReservation


class Format(StrEnum):
    """How a journal is written."""

    JSONL = "jsonl"
    CSV = "csv"


_LATER = (
    "What is charged from now on is not in it: `dpflow ledger restore` charges that "
    "again, as far as the witness tells of it."
)


def backup(path: Path) -> Answer:
    """Copy the whole ledger and verify the copy; steps may run meanwhile.

    A copy of the file by hand would lack the charges that are still in its log. The
    verified copy contains releases, and only its owner can read it.

    Example: `dpflow ledger backup /backup/ledger.db`
    """
    from dpflow.ledger.audit.backup import backup as copy

    with project_ledger() as (_, ledger):
        count = copy(ledger, path).entries
    there = path.absolute()
    data = {**ledger_facts(ledger), "backup": str(there), "entries": count}
    done = f"Copied the ledger to {short_path(there)} and verified its "
    return data, [f"{done}{count:,} entries.", _LATER]


def restore(path: Path, *, reason: str, accept_loss: bool = False) -> Answer:
    """Install a backup as the ledger and charge again the amounts that it lacks.

    Stop all flows first. The old file stays in the same folder. Charges after the
    backup that the witness or the old file has are charged again in full.

    Example: `dpflow ledger restore /backup/ledger.db --reason "the disk died"`
    """
    from dpflow.config import settings
    from dpflow.guard.project import project_conditions
    from dpflow.ledger.audit.backup import restore as put_back
    from dpflow.ledger.opening import pinned_id, sqlite_path
    from dpflow.ledger.witness.rollback_check import witness_at

    setup = settings()
    place = sqlite_path(setup.ledger_url)
    restored = put_back(
        path,
        place,
        ledger_id=pinned_id(setup.policies, str(place)),
        witness=witness_at(setup.witness, setup.ledger_url),
        policies=readable_policies(setup, tell=True),
        reason=reason,
        accept_loss=accept_loss,
        conditions=project_conditions(setup),
    )
    data = {"restored": place, **data_of(restored)}
    return data, _restored_parts(restored, path, place)


def _restored_parts(restored: Restored, path: Path, place: Path) -> Iterator[str]:
    aside = restored.aside
    yield f"Put the backup {path} at {short_path(place)}."
    if aside is not None:
        yield f"The file that was there is {short_path(aside)} now."
    yield from comparison_parts(restored.charged_again, repaired=True)
    yield from release_parts(restored.lost, whole=restored.all_lost_told, aside=aside)


def export(
    *,
    form: Format = (Format.JSONL),
    out: Path | None = None,
    as_json: bool = False,
) -> Answer | None:
    """Write the whole journal, in order, with raw texts.

    `dpflow ledger verify FILE` checks the hash chain of an export in JSON lines,
    without project and ledger. With --json and --out, the output is the number of
    entries; with --json alone, the journal.

    Example: `dpflow ledger export --format csv --out journal.csv`
    """
    from dpflow.ledger.audit.backup import journal_rows

    form = Format.JSONL if as_json and out is None else form
    with project_ledger() as (_, ledger):
        rows = journal_rows(ledger)
        # It is read before a file is made.
        rows = chain([next(rows)], rows)
        if out is None:
            _write(sys.stdout, form, rows)
            return None
        with _new_file(out) as file:
            count = _write(file, form, rows)
    data = {"path": str(out.absolute()), "entries": count, "format": form.value}
    return data, [f"Wrote {count:,} entries to {out}."]


def reservations(*, close: str | None = None, reason: str | None = None) -> Answer:
    """List the open reservations, or close a forfeited one.

    A closed reservation is posted in full and returns no budget.

    Example: `dpflow ledger reservations --close ID --reason "the worker is gone"`
    """
    from dpflow.ledger import views
    from dpflow.ledger.views.entries import alert_text

    if (close is None) != (reason is None):
        msg = "--close and --reason go together; name both or none"
        raise typer.BadParameter(msg)
    with project_ledger(writes=close is not None) as (_, ledger):
        if close is not None and reason is not None:
            for alert in ledger.forfeit(close, reason=reason).alerts:
                warn(alert_text(alert.account, alert.threshold))
            facts = {"reservation": close, "state": "forfeited"}
            done = f"Closed reservation {close}; it is charged in full."
            return ledger_facts(ledger) | facts, [done]
        result = views.open_reservations(ledger)
    data = {**ledger_facts(ledger), "reservations": result}
    return data, _reservation_parts(result)


def charge(
    dataset: str,
    *,
    cost: str,
    reason: str,
    charge: str | None = None,
    flow: str | None = None,
    partition: list[str] | None = None,
    evidence: Path | None = None,
) -> Answer:
    """Charge prior spending on a dataset, or raise a step's charge; irreversible.

    With --charge, the cost is the corrected cost of that step. Each account of the step
    is raised by the difference, never lowered. Otherwise the cost is a loss before
    dpflow, charged to the dataset, its population, the parts and the flow's share.
    Several steps are one cost: 'Repeated(Laplace(sensitivity=1, scale=10), 12)'. An
    overdrawn account admits nothing more.

    Example: `dpflow ledger charge shop --cost 'PureDP(epsilon=1)' --reason "2025"`
    """
    from dpflow.accounting.costs.text import cost_from_text
    from dpflow.ledger.decision.office import Amend, Prior

    if charge is not None and (flow or partition):
        msg = "--flow and --partition are for prior spending; leave them out"
        raise typer.BadParameter(msg)
    read, proof = cost_from_text(cost), None if evidence is None else _sha256(evidence)
    words: dict[str, Any] = {"cost": read, "reason": reason, "evidence": proof}
    with project_ledger(quiet=True, writes=True) as (result, ledger):
        if charge is not None:
            charges = ledger.ask(Amend(charge=charge, dataset=dataset, **words))
        else:
            places = _places(result, dataset, flow, tuple(partition or ()))
            charges = ledger.ask(Prior(**places, **words))
    facts = {"dataset": dataset, "reservation": charge, "evidence_sha256": proof}
    return {**facts, "cost": read, "charges": charges}, _charged_parts(charges)


def _charged_parts(charges: list[Posted]) -> Iterator[str]:
    from dpflow.ledger.decision.refusal import amounts_text

    for each in charges:
        yield f"Charged {each.account}: {amounts_text(each.amount)}."
        if each.overdrawn:
            warn(f"account {each.account} is overdrawn and admits nothing more")


def _places(
    setup: Settings, dataset: str, flow: str | None, partitions: tuple[str, ...]
) -> dict[str, Any]:
    """Return the policy that prior spending is charged to, and where."""
    from dpflow.policy import load_policies

    policies = load_policies(setup.policies)
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


def _write(file: TextIO, form: Format, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write the journal and return how many entries it has."""
    from dpflow.ledger.entry import Columns

    # All texts are quoted: a carriage return would begin a row.
    table = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    count = 0
    for count, row in enumerate(rows):
        if form is Format.JSONL:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
        else:
            table.writerow(map(_cell, row.values()) if count else Columns._fields)
    return count


def _cell(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula."""
    begins = isinstance(value, str) and value.startswith(tuple("=+-@\t\r\n"))
    return f"'{value}" if begins else value


def _new_file(path: Path) -> TextIO:
    """Open a file that is not there yet, for its owner only."""
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        return os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8")
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}. Name another, new file."
        raise ConfigurationError(msg) from error


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        msg = f"cannot read the evidence {path}: {error.strerror}"
        raise ConfigurationError(msg) from error


def _reservation_parts(items: list[OpenReservation]) -> Iterator[Part]:
    from dpflow.ledger.views.entries import FORFEITED
    from dpflow.show.sheets import reservations_sheet

    if not items:
        yield "No reservation is open: every charge was settled, voided or closed."
        return
    yield reservations_sheet(items)
    if not all(each.alive for each in items):
        yield from ("", FORFEITED)
        yield (
            "Find out what the step did. If it released nothing more than it reserved, "
            'close it: `dpflow ledger reservations --close ID --reason "..."`.'
        )
        yield (
            "If it cost more, first raise its charge: `dpflow ledger charge DATASET "
            "--charge ID --cost COST --reason TEXT`."
        )
