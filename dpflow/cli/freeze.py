"""`dpflow freeze` and `dpflow thaw`: refuse everything at once, and end that."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from typing import Annotated

import typer

from dpflow.cli.output import AsJson, plain, say, say_json

Dataset = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset.")]
Because = Annotated[
    str, typer.Option("--because", metavar="TEXT", help="Why; the journal keeps it.")
]


def freeze(dataset: Dataset, *, because: Because, as_json: AsJson = False) -> None:
    """Refuse every step on a dataset at once, replays included, until it is thawed.

    Anyone may do it. Steps that run already may end.

    Example: `dpflow freeze sales --because "the sensitivity is wrong"`
    """
    _change("freeze", dataset, because, as_json=as_json)


def thaw(dataset: Dataset, *, because: Because, as_json: AsJson = False) -> None:
    """End a freeze. Where the policy names officers, one of them has to.

    Example: `dpflow thaw sales --because "it was right"`
    """
    _change("thaw", dataset, because, as_json=as_json)


def _change(kind: str, dataset: str, because: str, *, as_json: bool) -> None:
    from dpflow.cli.source import project_ledger
    from dpflow.ledger import office
    from dpflow.ledger.decision.refusal import frozen_text
    from dpflow.ledger.views.standing import check_dataset
    from dpflow.policy.files import policies_and_problem

    if not because.strip():
        msg = "say why; the journal keeps it"
        raise typer.BadParameter(msg, param_hint="--because")
    with project_ledger(writes=True) as (found, ledger):
        policies, _ = policies_and_problem(found.policies)
        check_dataset(ledger, policies, dataset)
        who = str(ledger.conditions.facts["who"])
        operate = office.freeze if kind == "freeze" else office.thaw
        accounts = operate(ledger, dataset, who=who, because=because)
        standing = office.freeze_of(ledger, dataset)
    if as_json:
        say_json(
            {
                "dataset": dataset,
                "frozen": standing is not None,
                "accounts": list(accounts),
            }
        )
    elif standing is not None:
        already = "" if accounts else " already"
        say(
            f"Dataset {plain(dataset)} is{already} {plain(frozen_text(standing))}. "
            f"Every step is refused until `dpflow thaw {plain(dataset)}`."
        )
    else:
        already = "" if accounts else "was not frozen and "
        say(f"Dataset {plain(dataset)} {already}is open.")
