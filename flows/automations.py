# ---
# title: Automations for privacy budgets
# description: Notify when 80 % is used; pause and notify when a budget is exhausted.
# dependencies: dpflow
# run: python -m flows.automations --notify slack-webhook/privacy-team
# ---
"""Automations for the budget events of docs/monitoring.md.

They run on Prefect's server, so they need a permanent one: `prefect server start`, or
Prefect Cloud. The ledger decides; a failed or late automation admits nothing.

Code walkthrough:

1. `automations` defines their triggers and actions.
2. `install` saves them and replaces those of the same name.
3. `main` takes the dataset and the notification block from the command line.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.automations import (
    Automation,
    EventTrigger,
    PauseDeployment,
    Posture,
    SendNotification,
)
from prefect.client.orchestration import get_client

EXHAUSTED = "dpflow.budget.exhausted"
ALERT = "dpflow.budget.alert"
ALL = "*"


def automations(
    dataset: str = ALL,
    *,
    project: str = ALL,
    notify: UUID | None = None,
    threshold: str = "0.8",
) -> list[Automation]:
    """Make the automations.

    Args:
        dataset: Name of a dataset, or "*" for all.
        project: Environment, or six characters of the ledger's id; "*" for all.
        notify: Id of a notification block. Without one, no message is sent.
        threshold: Threshold of the policy's `alerts` for a message.

    Returns:
        One that pauses the deployment whose run was refused, and, with a block, one
        that tells of the alert.
    """
    which = "all datasets" if dataset == ALL else dataset
    which += "" if project == ALL else f" of {project}"
    resource = {"prefect.resource.id": "dpflow.dataset.*"}
    resource |= {} if dataset == ALL else {"prefect.resource.name": dataset}
    resource |= {} if project == ALL else {"dpflow.project": project}
    pause: list[Any] = [PauseDeployment(source="inferred")]
    made = [
        Automation(
            name=f"dpflow: pause when exhausted ({which})",
            trigger=_each(EXHAUSTED, resource),
            actions=pause + _told("exhausted", notify),
        )
    ]
    if notify is not None:
        reached = {**resource, "dpflow.threshold": threshold}
        made.append(
            Automation(
                name=f"dpflow: tell at {threshold} ({which})",
                trigger=_each(ALERT, reached),
                actions=_told(f"{threshold} is used", notify),
            )
        )
    return made


def _each(event: str, resource: dict[str, str]) -> EventTrigger:
    return EventTrigger(
        expect={event},
        match=resource,
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )


def _told(what: str, notify: UUID | None) -> list[Any]:
    """Return the notification; its text is public, as all that events say."""
    if notify is None:
        return []
    return [
        SendNotification(
            block_document_id=notify,
            subject="Privacy budget of {{ event.payload.dataset }}: " + what,
            body="{{ event.payload.message }} (flow {{ event.payload.flow }}, "
            "step {{ event.payload.step }})",
        )
    ]


def install(wanted: list[Automation]) -> None:
    """Save automations on the server; those of the same names are replaced."""
    with get_client(sync_client=True) as client:
        for automation in wanted:
            for old in client.read_automations_by_name(automation.name):
                client.delete_automation(old.id)
            automation.create()


def block_id(name: str) -> UUID:
    """Return the id of a saved notification block.

    Args:
        name: "TYPE/NAME", such as "slack-webhook/privacy-team".
    """
    kind, _, document = name.partition("/")
    with get_client(sync_client=True) as client:
        return client.read_block_document_by_name(document, kind).id


def main() -> None:
    """Install the automations that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", default=ALL, help='default: "*", all of them')
    parser.add_argument("--project", default=ALL, help='default: "*", all of them')
    parser.add_argument("--notify", metavar="TYPE/NAME", help="a notification block")
    parser.add_argument("--threshold", default="0.8", help="default: 0.8")
    asked = parser.parse_args()
    notify = None if asked.notify is None else block_id(asked.notify)
    wanted = automations(
        asked.dataset, project=asked.project, notify=notify, threshold=asked.threshold
    )
    install(wanted)
    for automation in wanted:
        print(f"installed: {automation.name}")


if __name__ == "__main__":
    main()
