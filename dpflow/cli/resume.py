"""`dpflow resume`: let a paused schedule run again, once there is budget for it."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger or Prefect)

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from dpflow.cli.output import AsJson, plain, say, say_json
from dpflow.exceptions import DpflowError

if TYPE_CHECKING:
    from dpflow.ledger import Ledger
    from dpflow.ledger.records import RefusalView
    from dpflow.policy import PolicySet


_Deployment = Annotated[
    str, typer.Argument(metavar="FLOW/DEPLOYMENT", help="The deployment.")
]
_Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Resume even if its last refused step would be refused."
    ),
]


def resume(
    deployment: _Deployment,
    *,
    force: _Force = False,
    as_json: AsJson = False,
) -> None:
    """Resume a deployment's schedule after its budget was exhausted.

    The step that was refused last in this flow is asked for again, without charging
    anything: if it would be refused, the schedule stays paused.

    Example: `dpflow resume weekly-report/mondays`
    """
    from dpflow.cli.source import project_ledger
    from dpflow.policy.files import policies_and_problem
    from dpflow.prefect.schedules import resume_deployment

    flow, _, name = deployment.partition("/")
    if not flow or not name:
        told = "`prefect deployment ls` lists them"
        msg = f"write it as FLOW/DEPLOYMENT, got {deployment[:60]!r}; {told}"
        raise typer.BadParameter(msg)
    with project_ledger(writes=True) as (found, ledger):
        policies, _ = policies_and_problem(found.policies)
        refusal = _last_refusal(ledger, flow)
        answer = None if refusal is None else _asked_again(ledger, policies, refusal)
    if answer is not None and not force:
        dataset = answer.details.get("dataset", "DATASET")
        msg = (
            f"{deployment} stays paused: {answer.message} Open a new term with `dpflow "
            f"policy apply {dataset} --new-term --because TEXT`, or say --force."
        )
        raise type(answer)(msg, **answer.details)
    resume_deployment(deployment)
    if as_json:
        would = None if answer is None else answer.message
        say_json({"deployment": deployment, "paused": False, "would_refuse": would})
        return
    say(f"Resumed {plain(deployment)}.")
    if answer is not None:
        say(f"Its next run will be refused all the same: {plain(answer.message)}")


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
    answer = ledger.would_answer(request)
    return answer if isinstance(answer, DpflowError) else None
