"""`dpflow ledger verify`, `trust` and `reconcile`."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpflow.cli.ledger.losses import SHOWN, loss_parts, repair_parts
from dpflow.cli.output import Answer, fail
from dpflow.cli.source import ledger_facts, project_ledger
from dpflow.exceptions import ConfigurationError
from dpflow.notebook import data_of

if TYPE_CHECKING:
    from dpflow.ledger import Ledger
    from dpflow.ledger.audit.journals import Verification

_AGREES = "The registry entry agrees. Its free texts are those of the policy, unproven."


def verify(export: Path | None = None, *, entry: Path | None = None) -> Answer:
    """Recompute the ledger from its journal and compare; exit with 1 if it is bad.

    The command checks every hash, tally, reservation, gate and release. Steps may run
    meanwhile. With FILE, it checks an export in the same way, without a project and a
    ledger, and prints the newest entry of each journal: compare it with `dpflow ledger
    info`. With --entry, it also compares an entry of `dpflow policy registry`
    with the journal, and exits with 1 where the entry differs.

    Example: `dpflow ledger verify`
    """
    from dpflow.ledger.audit.exports import verify_export

    if export is not None and entry is not None:
        msg = "an export holds no state to compare an entry with; leave FILE out"
        raise typer.BadParameter(msg, param_hint="--entry")
    if export is not None:
        ledger_id, report = verify_export(export)
        lines = [f"Export of ledger {ledger_id}: {report.entries:,} entries."]
        lines += head_lines(report.heads)
        return _answer({"ledger": ledger_id}, report, lines)
    with project_ledger(quiet=True) as (_, ledger):
        report = _verify(ledger)
        if entry is not None and report.fine:
            return _compare(ledger, report, entry)
    return _answer(ledger_facts(ledger), report, _report_parts(report))


def head_lines(heads: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """Say the newest entry of each journal."""
    for name, (number, digest) in heads.items():
        yield f"newest entry       {name}: {number}, hash {digest}"


def _compare(ledger: Ledger, report: Verification, entry: Path) -> Answer:
    """Compare a registry entry with a journal that was verified."""
    from dpflow.policy.strict_yaml import read_document
    from dpflow.show.registry import entry_differences

    differences = entry_differences(ledger, read_document(entry).data)
    for line in differences:
        fail(f"{entry} differs from the ledger: {line}. Correct the file.")
    fine = not differences
    data = data_of(report) | {"differences": differences, "fine": fine}
    lines = [*_report_parts(report), _AGREES] if fine else []
    return ledger_facts(ledger) | data, lines, fine


def trust(*, yes: bool = False, reason: str = "a witness was begun") -> Answer:
    """Begin a witness of the ledger on this machine, after a verification.

    The witness records each charge outside the ledger, so that a restored backup or a
    copy is refused. Without --yes, the command only shows the ledger's amounts. Compare
    them with your own records: charges that the ledger lost are not among them. Open
    charges end in full.

    Example: `dpflow ledger trust`
    """
    from dpflow.ledger.audit.reconcile import trust as begin

    with project_ledger(quiet=True, writes=yes) as (_, ledger):
        witness = _free_place(ledger)
        report = _verify(ledger)
        if not report.fine:
            return _answer(ledger_facts(ledger), report, _report_parts(report))
        if yes:
            begin(ledger, reason=reason)
        used = _sum_used(ledger)
    data = {**ledger_facts(ledger), "witness": witness, "begun": yes, "used": used}
    end = f"Began the witness {witness}." if yes else "Nothing was written; add --yes."
    holds = f"Ledger {ledger.id} holds {report.entries:,} entries:"
    lines = [holds, *_list_used(used), "", end]
    return data, lines, yes


def _free_place(ledger: Ledger) -> str | None:
    """Return where the witness is to begin; None if it is waived."""
    witness = ledger.watch.witness
    if witness is not None and witness.exists():
        msg = (
            f"there is a witness at {witness.address} already. `dpflow ledger "
            "reconcile` compares it with the ledger."
        )
        raise ConfigurationError(msg)
    return None if witness is None else witness.address


def reconcile(*, reason: str | None = None) -> Answer:
    """Compare the ledger with its witness; --reason charges the missing amounts.

    The command lists accounts and runs with missing charges, after a restored backup, a
    lost log, or in a copy. It charges missing amounts again in full, by entries of kind
    `repair`, and returns no budget. If a freeze, a tightened policy or a new term was
    lost, it freezes the dataset. Otherwise steps run again.

    Example: `dpflow ledger reconcile --reason "the disk was replaced"`
    """
    from dpflow.ledger.audit.reconcile import compare
    from dpflow.ledger.audit.reconcile import reconcile as repair

    with project_ledger(quiet=True, writes=reason is not None) as (_, ledger):
        if reason is None:
            losses = compare(ledger)
            data = {"repaired": False, "agrees": not losses, "losses": losses}
            return ledger_facts(ledger) | data, loss_parts(losses), not losses
        repaired = repair(ledger, reason=reason)
    data = {"repaired": bool(repaired), "agrees": not repaired, "losses": repaired}
    return ledger_facts(ledger) | data, repair_parts(repaired, None)


def _verify(ledger: Ledger) -> Verification:
    """Verify, and show how far it is, where a person looks at it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from dpflow.ledger.audit.verify import verify as recompute

    # Before version 15, rich ends a disabled bar with an empty line.
    if not sys.stderr.isatty():
        return recompute(ledger)
    columns = (TextColumn("entries verified"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("verify", total=None)

        def tell(done: int, total: int) -> None:
            progress.update(bar, advance=done, total=total)

        return recompute(ledger, progress=tell)


def _answer(
    fields: dict[str, str], report: Verification, lines: Iterable[str]
) -> Answer:
    """Return the result; the command ends with 1 if the ledger is bad."""
    data = fields | data_of(report) | {"fine": report.fine}
    return data, _with_findings(report, lines), report.fine


def _with_findings(report: Verification, lines: Iterable[str]) -> Iterator[str]:
    for number, finding in enumerate(report.bad[:SHOWN]):
        fail(f"{'' if number else 'the ledger is bad: '}{finding}")
    if len(report.bad) > SHOWN:
        fail(f"and {len(report.bad) - SHOWN} more; --json lists them")
    yield from lines


def _report_parts(report: Verification) -> Iterator[str]:
    if report.fine:
        yield (
            f"The ledger agrees with its journal. Accounts: {report.accounts:,}, "
            f"entries: {report.entries:,}, reservations: {report.reservations:,}, "
            f"releases: {report.releases:,}."
        )
    if not report.values:
        yield "Values of releases: not checked, for this role cannot read the secret."
    yield f"Witness: {report.witness}."
    if not report.fine:
        yield (
            "Let no step run before each line is explained. Where the ledger was "
            "damaged or edited, put a good backup back: `dpflow ledger restore`."
        )


def _sum_used(ledger: Ledger) -> dict[str, dict[str, str]]:
    """Return what each account has used, in its theorem's currency."""
    from dpflow.ledger.views import open_reading

    with open_reading(ledger) as reading:
        gates = reading.gates(reading.account_ids)
    return {name: dict(gate.rule.label(gate.used)) for name, gate in gates.items()}


def _list_used(used: dict[str, dict[str, str]]) -> list[str]:
    from dpflow.ledger.decisions.refusals import amounts_text

    lines = [f"  {name}: used {amounts_text(sums)}" for name, sums in used.items()]
    return lines or ["  nothing: no step was ever charged"]
