"""`dpflow freeze`, `unfreeze` and `resume`: refuse everything at once, and end that."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger or Prefect)

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.output import Answer
from dpflow.cli.source import check_known, project_ledger, readable_policies
from dpflow.exceptions import DpflowError

if TYPE_CHECKING:
    from dpflow.ledger import Ledger
    from dpflow.ledger.records import RefusalView
    from dpflow.policy import PolicySet


def freeze(dataset: str, *, reason: str) -> Answer:
    """Refuse every step on a dataset at once, replays included, until it is unfrozen.

    Anyone may do it. Steps that run already may end.

    Example: `dpflow freeze sales --reason "the sensitivity is wrong"`
    """
    return _change(dataset, reason, unfreeze=False)


def unfreeze(dataset: str, *, reason: str) -> Answer:
    """End a freeze.

    Example: `dpflow unfreeze sales --reason "it was right"`
    """
    return _change(dataset, reason, unfreeze=True)


def _change(dataset: str, reason: str, *, unfreeze: bool) -> Answer:
    from dpflow.ledger.decision.office import Freeze

    with project_ledger(writes=True) as (found, ledger):
        check_known(found, ledger, dataset)
        accounts = ledger.ask(Freeze(book=dataset, reason=reason, unfreeze=unfreeze))
        with ledger.storage.read() as reading:
            standing = reading.load(lambda _: [f"book/{dataset}"]).book(dataset).frozen
    frozen, text = standing is not None, _text(dataset, standing, changed=accounts)
    data = {"dataset": dataset, "frozen": frozen, "accounts": list(accounts)}
    return data, [text]


def _text(
    dataset: str, standing: Mapping[str, Any] | None, *, changed: Sequence[str]
) -> str:
    from dpflow.ledger.decision.refusal import frozen_text

    if standing is None:
        already = "" if changed else "was not frozen and "
        return f"Dataset {dataset} {already}is open."
    already = "" if changed else " already"
    return (
        f"Dataset {dataset} is{already} {frozen_text(standing)}. "
        f"Every step is refused until `dpflow unfreeze {dataset}`."
    )


def resume(deployment: str, *, force: bool = False) -> Answer:
    """Resume a deployment's schedule after its budget was exhausted.

    The step that was refused last in this flow is asked for again, without charging
    anything: if it would be refused, the schedule stays paused.

    Example: `dpflow resume weekly-report/mondays`
    """
    from dpflow.ledger.office import resume as note_resumed
    from dpflow.prefect.client_calls import resume_deployment

    flow, _, name = deployment.partition("/")
    if not flow or not name:
        where = "`prefect deployment ls` lists them"
        msg = f"write it as FLOW/DEPLOYMENT, got {deployment[:60]!r}; {where}"
        raise typer.BadParameter(msg)
    with project_ledger(writes=True) as (found, ledger):
        refusal = _last_refusal(ledger, flow)
        told = None
        if refusal is not None:
            told = _asked_again(ledger, readable_policies(found), refusal)
        if told is not None and not force:
            raise _paused(deployment, told)
        resume_deployment(deployment)
        note_resumed(ledger, flow)
    would = None if told is None else told.message
    data = {"deployment": deployment, "paused": False, "would_refuse": would}
    lines = [f"Resumed {deployment}."]
    if would is not None:
        lines.append(f"Its next run will be refused all the same: {would}")
    return data, lines


def _paused(deployment: str, told: DpflowError) -> DpflowError:
    dataset = told.details.get("dataset", "DATASET")
    msg = (
        f"{deployment} stays paused: {told.message} Open a new term with `dpflow "
        f"policy apply {dataset} --new-term --reason TEXT`, or say --force."
    )
    return type(told)(msg, **told.details)


def _last_refusal(ledger: Ledger, flow: str) -> RefusalView | None:
    from dpflow.ledger.views import refusals

    found = [item for item in refusals(ledger) if item.body.get("flow") == flow]
    # A step that was refused with its run would fit alone: the run has to.
    run = found[0].body.get("refused_with") if found else None
    whole = [item for item in found if run and item.body.get("covers") == run]
    return next(iter(whole or found), None)


def _asked_again(
    ledger: Ledger, policies: PolicySet, refusal: RefusalView
) -> DpflowError | None:
    """Return the error that the step would meet now, if it would."""
    from dpflow.accounting.costs.base import cost_from_description
    from dpflow.ledger.records import Request

    body = refusal.body
    names = body.get("datasets") or [refusal.dataset]
    request = Request(
        reservation=uuid.uuid4().hex,
        owner="0" * 32,
        policies=tuple(policies.policy_for(name) for name in names),
        cost=cost_from_description(body["cost"]),
        step=body["step"],
        flow=body["flow"],
        partitions=tuple(body.get("partitions", ())),
    )
    told = ledger.would_answer(request)
    return told if isinstance(told, DpflowError) else None
