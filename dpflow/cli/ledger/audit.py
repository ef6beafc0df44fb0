"""`dpflow ledger verify`, `sign`, `trust` and `reconcile`."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpflow.cli.ledger.losses import comparison_parts, release_parts
from dpflow.cli.output import fail, render
from dpflow.cli.source import ledger_facts, project_ledger, readable_policies
from dpflow.exceptions import ConfigurationError
from dpflow.notebook import data_of

if TYPE_CHECKING:
    from dpflow.ledger import Ledger
    from dpflow.ledger.audit.findings import Verification
    from dpflow.ledger.keys import LedgerKey
    from dpflow.ledger.witness.lines import Line

_SHOWN = 10


def verify(export: Path | None = None, *, as_json: bool = False) -> None:
    """Recompute the ledger from its journal and compare; exit with 1 if it is bad.

    Every hash, tally, reservation, gate and release is computed again. A key in
    DPFLOW_LEDGER_KEY, public or private, checks the signed checkpoints. Steps may run
    meanwhile. With FILE, the hash chains and checkpoints of an export are checked,
    without a project and a ledger.

    Example: `dpflow ledger verify`
    """
    from dpflow.ledger.audit.export import verify_export
    from dpflow.ledger.keys import ledger_key

    if export is not None:
        ledger_id, report = verify_export(export, ledger_key())
        entries = f"Export of ledger {ledger_id}: {report.entries:,} entries."
        points = f"Checkpoints: {_checkpoint_text(report)}."
        _tell({"ledger": ledger_id}, report, [entries, points], as_json=as_json)
        return
    with project_ledger(quiet=True) as (_, ledger):
        report = _verified(ledger, key=ledger_key())
    _tell(ledger_facts(ledger), report, _report_parts(report), as_json=as_json)


def sign(*, new_key: Path | None = None, as_json: bool = False) -> None:
    """Verify the whole ledger and sign the newest entry of each dataset.

    Needs the private key in DPFLOW_LEDGER_KEY. Signs datasets without a checkpoint,
    too, which `verify` calls bad: be sure that nobody has rewritten them. Keep the
    private key from everybody who can write the ledger; give the public key to
    everybody who verifies.

    Example: `dpflow ledger sign`
    """
    if new_key is not None:
        from dpflow.ledger.keys import write_keys

        public = write_keys(new_key)
        data = {"private": str(new_key.absolute()), "public": str(public.absolute())}
        text = f"Wrote the private key, which signs, to {new_key}, and the public key "
        render(data, [f"{text}to {public}."], as_json=as_json)
        return
    key = _signing_key()
    with project_ledger(quiet=True, writes=True) as (_, ledger):
        report = _verified(ledger, key=key, sign=True)
    number = len(report.heads)
    done = f"Verified {report.entries:,} entries and signed {number} journals."
    lines = [done] if report.fine else _report_parts(report)
    _tell(ledger_facts(ledger), report, lines, as_json=as_json)


def _signing_key() -> LedgerKey:
    from dpflow.config import KEY_VARIABLE
    from dpflow.ledger.keys import ledger_key

    key = ledger_key()
    if key is not None and key.sign is not None:
        return key
    what = "is not set" if key is None else "names a public key"
    msg = (
        f"{KEY_VARIABLE} {what}, and signing needs a private key. `dpflow ledger sign "
        "--new-key PATH` makes one; keep it where no writer of the ledger can read it."
    )
    raise ConfigurationError(msg)


def trust(*, yes: bool = False, as_json: bool = False) -> None:
    """Begin the ledger's witness on this machine, after verifying the ledger.

    The witness remembers each charge outside the ledger, so that a restored backup or
    a copy is refused. Without --yes this only shows what the ledger holds: compare it
    with what you know was spent, for what it forgot is not in it.

    Example: `dpflow ledger trust`
    """
    from dpflow.ledger.audit.reconcile import trust as begin
    from dpflow.ledger.witness.rollback_check import head_of

    with project_ledger(quiet=True, writes=yes) as (_, ledger):
        place = _free_place(ledger)
        report = _verified(ledger, key=None)
        if not report.fine:
            _tell({}, report, _report_parts(report), as_json=False)
        with ledger.storage.read() as reading:
            found = [head_of(reading, book) for book in reading.books()]
        if yes:
            found = begin(ledger)
        used = _used(ledger)
    data = {**ledger_facts(ledger), "witness": place, "begun": yes, "used": used}
    end = f"Began the witness {place}." if yes else "Nothing was written; add --yes."
    lines = [f"Ledger {ledger.id} holds:", *_head_parts(found, used), "", end]
    render(data, lines, as_json=as_json)
    if not yes:
        raise typer.Exit(1)


def _free_place(ledger: Ledger) -> str | None:
    """Return where the witness is to begin; None if it is waived."""
    witness = ledger.watch.witness
    if witness is not None and witness.exists():
        msg = (
            f"there is a witness at {witness.place} already. `dpflow ledger "
            "reconcile` compares it with the ledger."
        )
        raise ConfigurationError(msg)
    return None if witness is None else witness.place


def reconcile(*, reason: str | None = None, as_json: bool = False) -> None:
    """Compare the ledger with its witness; with --reason charge what it lacks.

    Shows the accounts and runs whose charges the ledger forgot: a backup was restored,
    a log was lost, or this is a copy. What is missing is charged again in full, by
    entries of kind `repair`; nothing is ever given back. Where a freeze, a tightened
    policy or a new term was lost, the dataset is frozen. Else steps run again.

    Example: `dpflow ledger reconcile --reason "the disk was replaced"`
    """
    from dpflow.ledger.audit.reconcile import compare
    from dpflow.ledger.audit.reconcile import reconcile as repair

    with project_ledger(quiet=True, writes=reason is not None) as (found, ledger):
        if reason is None:
            comparison = compare(ledger)
        else:
            policies = readable_policies(found, tell=True)
            comparison = repair(ledger, policies, reason=reason)
    repaired = reason is not None and not comparison.agrees
    facts = {"repaired": repaired, "agrees": comparison.agrees}
    data = ledger_facts(ledger) | facts | data_of(comparison)
    whole = comparison.tells_all
    lines = [
        *comparison_parts(comparison, repaired=repaired),
        *release_parts(comparison.releases, whole=whole),
    ]
    render(data | {"releases": comparison.releases}, lines, as_json=as_json)
    if not comparison.agrees and not repaired:
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show how far a verification is, where a person looks at it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("entries verified"), BarColumn(), MofNCompleteColumn())
    shown = sys.stderr.isatty()
    console = Console(file=sys.stderr)
    with Progress(
        *columns, console=console, transient=True, disable=not shown
    ) as progress:
        bar = progress.add_task("verify", total=None)

        def tell(done: int, total: int) -> None:
            progress.update(bar, advance=done, total=total)

        yield tell


def _verified(
    ledger: Ledger, *, key: LedgerKey | None, sign: bool = False
) -> Verification:
    from dpflow.ledger.audit.verify import verify as recompute

    with _progress() as tell:
        return recompute(ledger, key=key, sign=sign, progress=tell)


def _tell(
    facts: dict[str, str],
    report: Verification,
    lines: Iterable[str],
    *,
    as_json: bool,
) -> None:
    """Print what was found; the command ends with 1 if the ledger is bad."""
    if not as_json:
        _fail_for(report)
    render(facts | data_of(report) | {"fine": report.fine}, lines, as_json=as_json)
    if not report.fine:
        raise typer.Exit(1)


def _fail_for(report: Verification) -> None:
    """Say what is bad."""
    for number, finding in enumerate(report.bad[:_SHOWN]):
        fail(f"{'' if number else 'the ledger is bad: '}{finding}")
    if len(report.bad) > _SHOWN:
        fail(f"and {len(report.bad) - _SHOWN} more; --json lists them")


def _report_parts(report: Verification) -> Iterator[str]:
    if report.fine:
        yield (
            f"The ledger agrees with its journal: {report.accounts} accounts, "
            f"{report.entries:,} entries, {report.reservations:,} reservations, "
            f"{report.releases:,} releases."
        )
    if not report.values:
        yield "Values of releases: not checked, for this role cannot read the secret."
    yield f"Checkpoints: {_checkpoint_text(report)}."
    yield f"Witness: {report.witness}."
    if not report.fine:
        yield (
            "Let no step run before each line is explained. Where the ledger was "
            "damaged or edited, put a good backup back: `dpflow ledger restore`."
        )


def _checkpoint_text(report: Verification) -> str:
    if report.signed:
        return f"{report.checkpoints} checked"
    if not report.checkpoints:
        return "none"
    return (
        f"{report.checkpoints} are there, but their signatures were not checked: "
        "DPFLOW_LEDGER_KEY is not set"
    )


def _used(ledger: Ledger) -> dict[str, dict[str, str]]:
    """Return what each account has used, in its theorem's currency."""
    from dpflow.ledger.decision.gates import gate_at
    from dpflow.ledger.model import Keys
    from dpflow.ledger.rows import Account

    found: dict[str, dict[str, str]] = {}
    with ledger.storage.read() as reading:
        for book in reading.books():
            state = reading.load(Keys(whole=(book,)))
            for row in state.rows.values():
                if not isinstance(row, Account):
                    continue
                gate = gate_at(state, row.id)
                if gate is not None:
                    found[row.id] = dict(gate.rule.named(gate.used))
    return found


def _head_parts(found: list[Line], used: dict[str, dict[str, str]]) -> list[str]:
    from dpflow.ledger.views.words import amounts_text

    lines = [
        f"  {account}: used {amounts_text(used[account])} in {line.number} "
        f"entries of {line.book}"
        for line in found
        for account, amounts in line.used.items()
        if amounts and account in used
    ]
    return lines or ["  nothing: no step was ever charged"]
