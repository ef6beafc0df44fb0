"""`dpflow freeze`, `unfreeze` and `resume`: stop a dataset or let it go on."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger or Prefect)

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import Answer
from dpflow.cli.source import check_known, project_ledger
from dpflow.exceptions import DpflowError

if TYPE_CHECKING:
    from dpflow.ledger import Ledger
    from dpflow.policy import PolicySet


def freeze(dataset: str, *, reason: str) -> Answer:
    """Refuse every step on a dataset, replays included, until it is unfrozen.

    Every user may freeze. Running steps may end.

    Example: `dpflow freeze sales --reason "the sensitivity is wrong"`
    """
    return _change(dataset, reason, unfreeze=False)


def unfreeze(dataset: str, *, reason: str) -> Answer:
    """End a freeze.

    Example: `dpflow unfreeze sales --reason "it was right"`
    """
    return _change(dataset, reason, unfreeze=True)


def _change(dataset: str, reason: str, *, unfreeze: bool) -> Answer:
    from dpflow.ledger.decisions.refusals import frozen_text
    from dpflow.ledger.views import open_reading

    with project_ledger(writes=True) as (result, ledger):
        check_known(result, ledger, dataset)
        changed = ledger.freeze(dataset, reason=reason, unfreeze=unfreeze)
        with open_reading(ledger) as reading:
            standing = reading.rows.book(dataset).frozen
    text = f"Dataset {dataset} {'' if changed else 'was not frozen and '}is open."
    if standing is not None:
        text = (
            f"Dataset {dataset} is{'' if changed else ' already'} "
            f"{frozen_text(standing)}. "
            f"Every step is refused until `dpflow unfreeze {dataset}`."
        )
    return {"dataset": dataset, "frozen": standing is not None}, [text]


def resume(deployment: str, *, force: bool = False) -> Answer:
    """Resume a deployment's schedule after its budget was exhausted.

    The command checks the flow's last refused step without a charge. If the step
    would be refused again, the schedule stays paused.

    Example: `dpflow resume weekly-report/mondays`
    """
    from dpflow.policy.files import readable_policies
    from dpflow.prefect.client_calls import resume_deployment

    flow, _, name = deployment.partition("/")
    if not flow or not name:
        where = "`prefect deployment ls` lists them"
        msg = f"write it as FLOW/DEPLOYMENT, got {deployment[:60]!r}; {where}"
        raise typer.BadParameter(msg)
    with project_ledger(writes=True) as (result, ledger):
        error = _ask_again(ledger, readable_policies(result.policies), flow)
        if error is not None and not force:
            raise _stay_paused(deployment, error)
        resume_deployment(deployment)
    would = None if error is None else error.message
    data = {"deployment": deployment, "paused": False, "would_refuse": would}
    lines = [f"Resumed {deployment}."]
    if would is not None:
        lines.append(f"Its next run will be refused all the same: {would}")
    return data, lines


def _stay_paused(deployment: str, error: DpflowError) -> DpflowError:
    dataset = error.details.get("dataset", "DATASET")
    msg = (
        f"{deployment} stays paused: {error.message} Open a new term with `dpflow "
        f"policy apply {dataset} --new-term --reason TEXT`, or say --force."
    )
    return type(error)(msg, **error.details)


def _ask_again(ledger: Ledger, policies: PolicySet, flow: str) -> DpflowError | None:
    """Return the error that a flow's last refused step would meet now, if it would."""
    from dpflow.accounting.costs.base import cost_from_description
    from dpflow.ledger.requests import Request
    from dpflow.ledger.views import refusals

    result = [item for item in refusals(ledger) if item.body.get("flow") == flow]
    if not result:
        return None
    body = result[0].body
    names = body.get("datasets") or [result[0].dataset]
    request = Request(
        reservation=uuid.uuid4().hex,
        owner="0" * 32,
        policies=tuple(policies.policy_for(name) for name in names),
        cost=cost_from_description(body["cost"]),
        step=body["step"],
        flow=body["flow"],
        partitions=tuple(body.get("partitions", ())),
    )
    answer = ledger.would_answer(request)
    return answer if isinstance(answer, DpflowError) else None
