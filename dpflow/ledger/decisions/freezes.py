"""Freezes: everything on a dataset is refused until a person ends that."""

from __future__ import annotations

from collections.abc import Iterable

from dpflow.exceptions import PolicyNotApplied
from dpflow.ledger.account_ids import split
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Dataset


def decide_freeze(
    rows: Rows, author: Author, dataset: str, reason: str, *, unfreeze: bool = False
) -> Decision:
    """Freeze a dataset, or open it again; the answer is whether that is new.

    Raises:
        PolicyNotApplied: If no policy of the dataset was applied yet, or its newest
            term was lost.
    """
    row, term = rows.book(dataset), rows.newest(dataset)
    lost = name_lost_term(rows, dataset)
    if lost and unfreeze:
        msg = (
            f"the ledger lost term {lost} of dataset {dataset!r}, under which steps "
            "were charged. The dataset stays frozen. Run `dpflow policy apply "
            f"{dataset} --new-term --raise-lifetime --reason TEXT` first."
        )
        raise PolicyNotApplied(msg, dataset=dataset)
    if term is None:
        msg = (
            f"the ledger has applied no policy of dataset {dataset!r}, so there "
            f"is nothing to freeze. Run `dpflow policy apply {dataset}` first."
        )
        raise PolicyNotApplied(msg, dataset=dataset)
    is_new = (row.frozen is not None) == unfreeze
    decision = Decision(author, answer=is_new)
    if is_new:
        append_freeze(decision, row, reason, unfreeze=unfreeze)
    return decision


def append_freeze(
    decision: Decision, row: Dataset, reason: str, *, unfreeze: bool = False
) -> None:
    """Append the entry that freezes a dataset or opens it again."""
    author = decision.author
    why = {"who": author.provenance.get("who", ""), "reason": reason}
    frozen = None if unfreeze else {**why, "at": author.at}
    kind = "unfreeze" if unfreeze else "freeze"
    body = {**author.provenance, **why, "frozen": frozen}
    decision.append(row._replace(frozen=frozen), kind, body=body)


def name_lost_term(rows: Rows, dataset: str, further: Iterable[str] = ()) -> int:
    """Return the number of the newest term that was lost; 0 if none was.

    A repair writes the accounts of such a term without a gate. It is lost until a
    person opens a term behind it.

    Args:
        rows: Rows of the dataset, with all its accounts.
        dataset: Name of the dataset.
        further: Ids of accounts that are written now.
    """
    names = [*(row.id for row in rows.accounts(dataset)), *further]
    newest = max((split(name)[1] for name in names), default=0)
    return newest if newest > rows.book(dataset).term else 0
