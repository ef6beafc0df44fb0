"""`dpflow ledger`: open reservations, and charges by hand."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.output import Answer, Part, warn
from dpflow.cli.source import ledger_facts, project_ledger
from dpflow.exceptions import ConfigurationError

if TYPE_CHECKING:
    from dpflow.config import Settings
    from dpflow.ledger import Posted
    from dpflow.ledger.views.reading import OpenReservation


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
            outcome = {"reservation": close, "state": "forfeited"}
            done = f"Closed reservation {close}; it is charged in full."
            return ledger_facts(ledger) | outcome, [done]
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

    if charge is not None and (flow or partition):
        msg = "--flow and --partition are for prior spending; leave them out"
        raise typer.BadParameter(msg)
    read, proof = cost_from_text(cost), None if evidence is None else _sha256(evidence)
    words: dict[str, Any] = {"cost": read, "reason": reason, "evidence": proof}
    with project_ledger(quiet=True, writes=True) as (result, ledger):
        if charge is not None:
            charges = ledger.amend(charge, dataset=dataset, **words)
        else:
            places = _places(result, dataset, flow, tuple(partition or ()))
            charges = ledger.charge_prior(**places, **words)
    data = {"dataset": dataset, "reservation": charge, "evidence_sha256": proof}
    return {**data, "cost": read, "charges": charges}, _list_charged(charges)


def _list_charged(charges: Sequence[Posted]) -> Iterator[str]:
    from dpflow.ledger.decisions.refusals import amounts_text

    for posted in charges:
        yield f"Charged {posted.account}: {amounts_text(posted.amount)}."
        if posted.overdrawn:
            warn(f"account {posted.account} is overdrawn and admits nothing more")


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
    if not all(item.alive for item in items):
        yield from ("", FORFEITED)
        yield (
            "Find out what the step did. If it released nothing more than it reserved, "
            'close it: `dpflow ledger reservations --close ID --reason "..."`.'
        )
        yield (
            "If it cost more, first raise its charge: `dpflow ledger charge DATASET "
            "--charge ID --cost COST --reason TEXT`."
        )
