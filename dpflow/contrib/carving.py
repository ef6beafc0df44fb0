"""`dpflow ledger carve`: give a part of a budget to another ledger."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.options import Because
from dpflow.cli.output import AsJson, say, say_json
from dpflow.cli.source import project_ledger
from dpflow.exceptions import ConfigurationError
from dpflow.notebook import plain

_Dataset = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="Dataset whose policy has a source."),
]
_Out = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="File to write; nothing may be there."),
]
_Serves = Annotated[
    str | None,
    typer.Option("--for", help="The only environment that it may serve."),
]


def carve(
    dataset: _Dataset,
    out: _Out,
    *,
    epsilon: Annotated[str, typer.Option(help="What the other ledger may lose.")],
    delta: Annotated[str, typer.Option(help="The same.")] = "0",
    to: Annotated[str, typer.Option("--to", help="Id of the other ledger.")],
    because: Because,
    serves: _Serves = None,
    as_json: AsJson = False,
) -> None:
    """Give a part of a dataset's budget to another ledger; this cannot be undone.

    One ledger governs a data source. The part is charged here in full, whatever the
    other ledger makes of it, and FILE grants it: apply it there with `dpflow policy
    apply DATASET --grant FILE`. The theorem must price an (epsilon, delta)-DP step.

    Example: `dpflow ledger carve sales staging.grant --epsilon 1 --to LEDGER
    --for staging --because TEXT`
    """
    from dpflow.accounting.costs.notions import ApproxDP
    from dpflow.ledger.keys import ledger_key, signer
    from dpflow.ledger.office import carve as charge
    from dpflow.policy import load_policies

    if out.exists():
        msg = f"there is a file at {out} already, and none is overwritten"
        raise ConfigurationError(msg)
    # Before anything is charged: it may name no key.
    sign = signer(ledger_key())
    cost = ApproxDP(epsilon=epsilon, delta=delta)
    with project_ledger(quiet=True, writes=True) as (found, ledger):
        policies = load_policies(found.policies)
        policy = policies.policy_for(dataset)
        grant, charges = charge(
            ledger,
            policy,
            cost,
            taker=to,
            because=because,
            environment=serves,
            populations=policies.populations_of([policy]),
        )
    _write(out, grant.to_text(sign))
    if as_json:
        posted = [
            {"account": each.account, "entry": each.entry, "amount": each.amount}
            for each in charges
        ]
        facts = {"dataset": dataset, "file": str(out), "digest": grant.digest}
        say_json({**facts, "taker": grant.taker, "charges": posted})
        return
    for each in charges:
        say(f"Charged {plain(each.account)}, for ever.")
    say(
        f"Wrote the grant of epsilon {grant.epsilon} and delta {grant.delta} to {out}.",
        f"Next, where ledger {plain(grant.taker)} is: dpflow policy apply "
        f"{plain(dataset)} --grant {plain(str(out))}",
    )


def _write(out: Path, text: str) -> None:
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        # It was charged; what is needed to use it must not be lost.
        say(text)
        msg = f"the grant was charged, and {out} cannot be written: {error.strerror}. "
        raise ConfigurationError(msg + "Keep the text above.") from error
