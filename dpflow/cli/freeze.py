"""`dpflow freeze` and `dpflow unfreeze`: refuse everything at once, and end that."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.cli.output import render
from dpflow.cli.source import check_known, project_ledger


def freeze(dataset: str, *, reason: str, as_json: bool = False) -> None:
    """Refuse every step on a dataset at once, replays included, until it is unfrozen.

    Anyone may do it. Steps that run already may end.

    Example: `dpflow freeze sales --reason "the sensitivity is wrong"`
    """
    _change(dataset, reason, unfreeze=False, as_json=as_json)


def unfreeze(dataset: str, *, reason: str, as_json: bool = False) -> None:
    """End a freeze.

    Example: `dpflow unfreeze sales --reason "it was right"`
    """
    _change(dataset, reason, unfreeze=True, as_json=as_json)


def _change(dataset: str, reason: str, *, unfreeze: bool, as_json: bool) -> None:
    from dpflow.ledger.decision.office import Freeze
    from dpflow.ledger.model import Keys

    with project_ledger(writes=True) as (found, ledger):
        check_known(found, ledger, dataset)
        accounts = ledger.ask(Freeze(book=dataset, reason=reason, unfreeze=unfreeze))
        with ledger.storage.read() as reading:
            standing = reading.load(Keys(books=(dataset,))).book(dataset).frozen
    frozen, text = standing is not None, _text(dataset, standing, changed=accounts)
    data = {"dataset": dataset, "frozen": frozen, "accounts": list(accounts)}
    render(data, [text], as_json=as_json)


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
